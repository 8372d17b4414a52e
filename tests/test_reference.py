"""Ours against the figures of the originals, and that the check itself can fail: wrong numbers, broken folders."""

import json
import math
import shutil
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from tests.reference.__main__ import main
from tests.reference.case import Case, differ, relative_difference
from tests.reference.fresh import MAKERS
from tests.reference.run import FAMILIES, VECTORS, check, family_of, names

CASES = names(VECTORS)
FIRST = {family_of(name): name for name in reversed(CASES)}
NOT_COMPARED = {"out__iterations", "out__sinkhorn_iterations"}  # how long the original took


@pytest.mark.parametrize("name", CASES)
def test_ours_gives_the_figures_of_the_original(name):
    assert check(VECTORS, name).problems == ()


def test_every_family_has_a_case_and_every_case_a_family():
    assert set(FIRST) == set(FAMILIES)
    index = json.loads((VECTORS / "INDEX.json").read_text())
    assert sorted(entry["name"] for entry in index) == CASES


@pytest.mark.parametrize("family", FAMILIES)
def test_each_wrong_figure_is_caught(family):
    good = Case.load(VECTORS, FIRST[family])
    for key, array in good.arrays.items():
        if key.startswith("in__") or key in NOT_COMPARED:
            continue
        spoilt = array.astype(np.float64)
        spoilt.flat[np.abs(spoilt).argmax()] += 1e-2 * max(1.0, np.abs(spoilt).max())
        case = Case(good.name, good.config, good.tolerance, {**good.arrays, key: spoilt})
        FAMILIES[family](case)
        case.finish()
        assert case.problems, f"{key} may be anything"


def test_a_figure_nobody_looked_at_is_a_failure():
    good = Case.load(VECTORS, FIRST["shre_ranking"])
    case = Case(good.name, good.config, good.tolerance, {**good.arrays, "out__more": np.zeros(())})
    FAMILIES["shre_ranking"](case)
    case.finish()
    assert case.problems == ["not checked: out__more"]


def test_differences_are_relative_to_the_largest_number():
    assert relative_difference(1.1, 1.0) == pytest.approx(0.1)
    assert relative_difference(1e-3, 0.0) == 1e-3
    assert relative_difference(float("nan"), 1.0) == math.inf
    minus = Case("", {}, 0.0, {"x": np.array([-1e300, 2.0])}).array("x")
    assert relative_difference(minus.clone().fill_(2.0), minus) == math.inf
    assert relative_difference(minus, minus) == 0
    assert relative_difference(minus[:1], minus[1:]) == math.inf
    assert relative_difference(minus, minus[:1]) == math.inf
    assert differ(1.0, 1.1, 1e-3)
    assert not differ(1.0, 1.1, 0.2)


def run(folder, capsys) -> tuple[int, list[str]]:
    with warnings.catch_warnings():
        code = main([str(folder)])
    return code, capsys.readouterr().out.splitlines()


def copied(name, folder):
    for ending in (".npz", ".json"):
        shutil.copy(VECTORS / f"{name}{ending}", folder)


def test_the_command_prints_a_line_for_each_family_and_the_sum(tmp_path, capsys):
    for family in ("shre_ranking", "mei_triplet_max"):
        copied(FIRST[family], tmp_path)
    (tmp_path / "INDEX.json").write_text("[]")
    code, lines = run(tmp_path, capsys)
    assert code == 0
    assert lines[-1] == "2 passed, 0 failed"
    assert [line.split()[:4] for line in lines[1:-1]] == [
        ["mei_triplet_max", "1", "1", "0"],
        ["shre_ranking", "1", "1", "0"],
    ]


def test_the_command_fails_on_a_wrong_number(tmp_path, capsys):
    name = FIRST["shre_ranking"]
    copied(name, tmp_path)
    arrays = Case.load(VECTORS, name).arrays
    np.savez(tmp_path / f"{name}.npz", **{**arrays, "out__loss": arrays["out__loss"] * (1 + 1e-7)})
    code, lines = run(tmp_path, capsys)
    assert code == 1
    assert lines[-1] == "0 passed, 1 failed"
    assert any(line.strip().startswith(f"{name}: out__loss: off by 1.00e-07") for line in lines)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder, name: (folder / f"{name}.json").unlink(), "cannot be read: FileNotFoundError"),
        (lambda folder, name: (folder / f"{name}.npz").unlink(), "cannot be read: FileNotFoundError"),
        (lambda folder, name: (folder / f"{name}.npz").write_bytes(b"PK\x03\x04 and no more"), "cannot be read"),
        (lambda folder, name: (folder / f"{name}.json").write_text("{}"), "cannot be read: KeyError: 'config'"),
        (lambda folder, name: np.savez(folder / f"{name}.npz", in__v=np.ones((2, 2))), "has no array in__x"),
        (lambda folder, name: [p.rename(folder / f"new{p.suffix}") for p in [*folder.iterdir()]], "no family is known"),
    ],
)
def test_a_broken_case_is_a_failure_that_says_why(tmp_path, capsys, spoil: Callable, says):
    name = FIRST["shre_ranking"]
    copied(name, tmp_path)
    spoil(tmp_path, name)
    code, lines = run(tmp_path, capsys)
    assert code == 1
    assert lines[-1] == "0 passed, 1 failed"
    assert any(says in line for line in lines), lines


def test_an_empty_or_missing_folder_is_a_failure(tmp_path, capsys):
    for folder, says in ((tmp_path, "holds no cases"), (tmp_path / "no", "is not a folder")):
        code, lines = run(folder, capsys)
        assert code == 1
        assert says in lines[0]
        assert lines[-1] == "0 passed, 1 failed"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_new_cases_with_other_shapes_pass_and_notice_a_change(tmp_path, capsys, seed):
    for make in MAKERS:
        make(tmp_path, np.random.default_rng(seed))
    code, lines = run(tmp_path, capsys)
    assert lines[-1] == f"{len(MAKERS)} passed, 0 failed", lines
    assert code == 0
    for name in names(tmp_path):
        about = json.loads((tmp_path / f"{name}.json").read_text())
        arrays = dict(np.load(tmp_path / f"{name}.npz"))
        moved = next(key for key in arrays if key.startswith("in__") and arrays[key].ndim == 2)
        arrays[moved] = arrays[moved] + np.random.default_rng(9).uniform(0.1, 0.5, arrays[moved].shape)
        case = Case(name, about["config"], 1e-8, arrays)
        FAMILIES[family_of(name) or ""](case)
        assert case.problems, f"{name} does not read its inputs"
