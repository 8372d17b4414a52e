"""Results match the original implementations, and the check itself detects wrong numbers and broken folders."""

import json
import math
import shutil
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from tests.reference.__main__ import main
from tests.reference.case import Case, is_different, max_relative_error
from tests.reference.generated import GENERATORS
from tests.reference.run import FAMILIES, VECTORS_FOLDER, check_case, find_family, list_case_names

CASE_NAMES = list_case_names(VECTORS_FOLDER)
FIRST_CASE = {find_family(name): name for name in reversed(CASE_NAMES)}
NOT_COMPARED = {"out__iterations", "out__sinkhorn_iterations"}  # iteration counts of the original


@pytest.mark.parametrize("name", CASE_NAMES)
def test_results_match_the_original_implementation(name):
    assert check_case(VECTORS_FOLDER, name).problems == ()


def test_every_family_has_a_case_and_every_case_a_family():
    assert set(FIRST_CASE) == set(FAMILIES)
    index = json.loads((VECTORS_FOLDER / "INDEX.json").read_text())
    assert sorted(entry["name"] for entry in index) == CASE_NAMES


@pytest.mark.parametrize("family", FAMILIES)
def test_each_wrong_value_is_caught(family):
    original = Case.load(VECTORS_FOLDER, FIRST_CASE[family])
    for key, array in original.arrays.items():
        if key.startswith("in__") or key in NOT_COMPARED:
            continue
        corrupted = array.astype(np.float64)
        corrupted.flat[np.abs(corrupted).argmax()] += 1e-2 * max(1.0, np.abs(corrupted).max())
        case = Case(original.name, original.config, original.tolerance, {**original.arrays, key: corrupted})
        FAMILIES[family](case)
        case.check_complete()
        assert case.problems, f"a wrong {key} is not detected"


def test_an_unchecked_value_is_a_failure():
    original = Case.load(VECTORS_FOLDER, FIRST_CASE["shre_ranking"])
    case = Case(original.name, original.config, original.tolerance, {**original.arrays, "out__more": np.zeros(())})
    FAMILIES["shre_ranking"](case)
    case.check_complete()
    assert case.problems == ["not checked: out__more"]


def test_max_relative_error_is_relative_to_the_largest_value():
    assert max_relative_error(1.1, 1.0) == pytest.approx(0.1)
    assert max_relative_error(1e-3, 0.0) == 1e-3
    assert max_relative_error(float("nan"), 1.0) == math.inf
    with_minus_infinity = Case("", {}, 0.0, {"x": np.array([-1e300, 2.0])}).array("x")
    assert max_relative_error(with_minus_infinity.clone().fill_(2.0), with_minus_infinity) == math.inf
    assert max_relative_error(with_minus_infinity, with_minus_infinity) == 0
    assert max_relative_error(with_minus_infinity[:1], with_minus_infinity[1:]) == math.inf
    assert max_relative_error(with_minus_infinity, with_minus_infinity[:1]) == math.inf
    assert is_different(1.0, 1.1, 1e-3)
    assert not is_different(1.0, 1.1, 0.2)


def run_command(folder, capsys) -> tuple[int, list[str]]:
    with warnings.catch_warnings():
        code = main([str(folder)])
    return code, capsys.readouterr().out.splitlines()


def copy_case(name, folder):
    for ending in (".npz", ".json"):
        shutil.copy(VECTORS_FOLDER / f"{name}{ending}", folder)


def test_the_command_prints_a_line_for_each_family_and_the_totals(tmp_path, capsys):
    for family in ("shre_ranking", "mei_triplet_max"):
        copy_case(FIRST_CASE[family], tmp_path)
    (tmp_path / "INDEX.json").write_text("[]")
    code, lines = run_command(tmp_path, capsys)
    assert code == 0
    assert lines[-1] == "2 passed, 0 failed"
    assert [line.split()[:4] for line in lines[1:-1]] == [
        ["mei_triplet_max", "1", "1", "0"],
        ["shre_ranking", "1", "1", "0"],
    ]


def test_the_command_fails_on_a_wrong_number(tmp_path, capsys):
    name = FIRST_CASE["shre_ranking"]
    copy_case(name, tmp_path)
    arrays = Case.load(VECTORS_FOLDER, name).arrays
    np.savez(tmp_path / f"{name}.npz", **{**arrays, "out__loss": arrays["out__loss"] * (1 + 1e-7)})
    code, lines = run_command(tmp_path, capsys)
    assert code == 1
    assert lines[-1] == "0 passed, 1 failed"
    assert any(line.strip().startswith(f"{name}: out__loss: off by 1.00e-07") for line in lines)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda folder, name: (folder / f"{name}.json").unlink(), "cannot be read: FileNotFoundError"),
        (lambda folder, name: (folder / f"{name}.npz").unlink(), "cannot be read: FileNotFoundError"),
        (lambda folder, name: (folder / f"{name}.npz").write_bytes(b"PK\x03\x04 and no more"), "cannot be read"),
        (lambda folder, name: (folder / f"{name}.json").write_text("{}"), "cannot be read: KeyError: 'config'"),
        (lambda folder, name: np.savez(folder / f"{name}.npz", in__v=np.ones((2, 2))), "has no array in__x"),
        (lambda folder, name: [p.rename(folder / f"new{p.suffix}") for p in [*folder.iterdir()]], "no family is known"),
    ],
)
def test_a_broken_case_is_a_failure_with_a_reason(tmp_path, capsys, corrupt: Callable, message):
    name = FIRST_CASE["shre_ranking"]
    copy_case(name, tmp_path)
    corrupt(tmp_path, name)
    code, lines = run_command(tmp_path, capsys)
    assert code == 1
    assert lines[-1] == "0 passed, 1 failed"
    assert any(message in line for line in lines), lines


def test_an_empty_or_missing_folder_is_a_failure(tmp_path, capsys):
    for folder, message in ((tmp_path, "holds no cases"), (tmp_path / "no", "is not a folder")):
        code, lines = run_command(folder, capsys)
        assert code == 1
        assert message in lines[0]
        assert lines[-1] == "0 passed, 1 failed"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_generated_cases_pass_and_notice_a_change(tmp_path, capsys, seed):
    for generate in GENERATORS:
        generate(tmp_path, np.random.default_rng(seed))
    code, lines = run_command(tmp_path, capsys)
    assert lines[-1] == f"{len(GENERATORS)} passed, 0 failed", lines
    assert code == 0
    for name in list_case_names(tmp_path):
        metadata = json.loads((tmp_path / f"{name}.json").read_text())
        arrays = dict(np.load(tmp_path / f"{name}.npz"))
        changed_key = next(key for key in arrays if key.startswith("in__") and arrays[key].ndim == 2)
        arrays[changed_key] = arrays[changed_key] + np.random.default_rng(9).uniform(
            0.1, 0.5, arrays[changed_key].shape
        )
        case = Case(name, metadata["config"], 1e-8, arrays)
        FAMILIES[find_family(name) or ""](case)
        assert case.problems, f"{name} does not read its inputs"
