"""Mutation testing: the mutants of each operator, and their outcomes in a small project."""

import pytest

from bench import mutants
from bench.mutants import (
    CAUGHT,
    SURVIVED,
    TESTS,
    TIMED_OUT,
    Runner,
    compute_caught_fraction,
    compute_key,
    main,
    read_results,
    report,
    sample,
)
from bench.mutation_operators import mutants_of

# A line of a module, and its mutations.
CHANGES = {
    "x = a < b": {"x = (a <= b)", "x = (a >= b)"},
    "x = a is not b": {"x = (a is b)"},
    "x = 0 < a == b": {"x = (0 <= a == b)", "x = (0 >= a == b)", "x = (0 < a != b)", "x = 1 < a == b"},
    "x = a * (b + c)": {"x = (a / (b + c))", "x = a * ((b - c))"},
    "x = a and b": {"x = (a or b)"},
    "x = not a": {"x = (a)"},
    "x = -a": {"x = (a)"},
    "x = 200": {"x = 400"},
    "x = 1": {"x = 0", "x = 2"},
    "x = 0.5": {"x = 1.0"},
    "x = True": {"x = False"},
    "x = b if a else c": {"x = b if (not (a)) else c"},
    "x = [a for a in b if c]": {"x = [a for a in b if (not (c))]"},
    "x = max(a, b)": {"x = (min(a, b))"},
    "x = np.maximum(a, b)": {"x = (np.minimum(a, b))", "x = (a)"},
    "x = a.clamp(min=b, max=c)": {"x = (a)", "x = (a.clamp(min=b))", "x = (a.clamp(max=c))"},
    "a.clamp_(b, c)": {"(a)", "(a.clamp_(None, c))", "(a.clamp_(b, None))", "pass"},
    "x += a": {"pass", "x -= a"},
    "a.x = b": {"pass"},
    "raise a": {"pass"},
    "x = f'{a + b}'; y = 'ä' + c": {"x = f'{a + b}'; y = ('ä' - c)"},
    "x: int | None = a": set(),
    "x = zip(a, b, strict=True)": set(),
    "'a + b'": set(),
}


@pytest.mark.parametrize("line", CHANGES)
def test_every_mutation_of_a_line(line):
    source = f'"""A module, naïve."""\n\n{line}\n'
    changed = {mutant.apply(source).splitlines()[2] for mutant in mutants_of("module.py", source)}
    assert changed == CHANGES[line]


def test_mutations_of_statements_in_functions_and_loops():
    body = "    while n:\n        if n:\n            break\n        n -= 1\n    return n\n"
    source = f"def f(n: int = 4) -> int | None:\n{body}"
    mutations = {(mutant.line, mutant.diff(source)[-1]) for mutant in mutants_of("module.py", source)}
    assert mutations == {
        (1, "+ def f(n: int = 8) -> int | None:"),
        (2, "+ while (not (n)):"),
        (3, "+ if (not (n)):"),
        (4, "+ continue"),
        (5, "+ pass"),
        (5, "+ n += 1"),
        (5, "+ n -= 0"),
        (5, "+ n -= 2"),
        (6, "+ return None"),
    }


def test_the_seed_decides_the_sample():
    path = "triptych/search/ranking.py"
    candidates = mutants_of(path, (mutants.ROOT / path).read_text())
    chosen = sample(candidates, 10, 0, path)
    assert chosen == sample(candidates, 10, 0, path) != sample(candidates, 10, 1, path)
    assert len(set(chosen)) == 10
    assert sample(candidates, 10_000, 0, path) == candidates


def test_the_table_names_modules_and_tests_that_exist():
    named = {*TESTS, *(test for tests in TESTS.values() for test in tests)}
    assert sorted(path for path in named if not (mutants.ROOT / path).is_file()) == []


def test_an_unknown_module_is_an_error(capsys):
    with pytest.raises(SystemExit):
        main(["triptych/nowhere"])
    assert "no module of the table starts with triptych/nowhere" in capsys.readouterr().err


@pytest.fixture
def project(tmp_path):
    """A module, tests that miss one mutation, and this mutation as an accepted survivor."""
    body = "    while n > 0:\n        n -= 1; sleep(0.001)\n    return max(n, 0)\n"
    (tmp_path / "count.py").write_text(f"from time import sleep\n\ndef count(n):\n{body}")
    (tmp_path / "test_count.py").write_text("from count import count\n\ndef test_count():\n    assert count(3) == 0\n")
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "survivors.toml").write_text(
        '[[survivor]]\npath = "count.py"\nbefore = "return max(n, 0)"\nafter = "return (min(n, 0))"\nreason = "equal"\n'
    )
    return tmp_path


@pytest.mark.slow
def test_outcomes_are_distinguished_and_cached(project, monkeypatch):
    monkeypatch.setattr(mutants, "LEAST_SECONDS", 1.0)
    source, tests = (project / "count.py").read_text(), {"count.py": ["test_count.py"]}
    expected = {"return None": CAUGHT, "return (min(n, 0))": SURVIVED, "pass; sleep(0.001)": TIMED_OUT}
    candidates = mutants_of("count.py", source)
    chosen = {"count.py": [mutant for mutant in candidates if mutant.diff(source)[-1].removeprefix("+ ") in expected]}
    results = list(Runner(project, jobs=2).run(chosen, tests))
    assert {result.diff[-1].removeprefix("+ "): result.outcome for result in results} == expected
    assert compute_caught_fraction(results) == 1.0, "an accepted survivor does not count"
    assert (project / "count.py").read_text() == source

    page = report(results, {"count.py": len(candidates)})
    assert f"| count.py | {len(candidates)} | 3 | 1 | 1 | 1 | 1 |" in page
    assert "count.py:6  function\n    - return max(n, 0)\n    + return (min(n, 0))\n    accepted: equal" in page

    monkeypatch.setattr(mutants, "run_tests", lambda *_: pytest.fail("it ran again"))
    cached_results = list(Runner(project, jobs=1).run(chosen, tests))
    assert sorted(r.outcome for r in cached_results) == sorted(r.outcome for r in results)
    keys = [compute_key(project, mutant, tests["count.py"]) for mutant in chosen["count.py"]]
    (project / "test_count.py").write_text("# changed\n")
    assert not set(keys) & {compute_key(project, mutant, tests["count.py"]) for mutant in chosen["count.py"]}


def test_tests_that_fail_without_a_mutation_are_named(project):
    (project / "test_count.py").write_text("def test_count():\n    assert False\n")
    with pytest.raises(SystemExit, match=r"count\.py: its tests fail without a mutation"):
        main(["--sample", "1", "--jobs", "1"], project, {"count.py": ["test_count.py"]})


def test_a_mutant_that_breaks_the_import_of_conftest_is_caught(project):
    """Pytest then ends with the exit code of a usage error."""
    (project / "count.py").write_text("UNITS = int | str\n\ndef count(n):\n    return 0\n")
    (project / "conftest.py").write_text("import count\n")
    assert main(["--jobs", "1"], project, {"count.py": ["test_count.py"]}) == 0
    assert set(read_results(project / mutants.RESULTS).values()) == {CAUGHT}
