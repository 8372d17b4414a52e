"""train() on Python data: the same weights as on files, after a kill too; commands can use the run later."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import triptych
from tests.app.cli.run_cli import triptych as run_command
from tests.conftest import TINY_OVERRIDES, have_identical_weights
from tests.data.test_tables_in_memory import import_optional
from tests.training.cases import with_training
from tests.training.test_distributed import WEIGHT_TOLERANCE, run_torchrun
from tests.training.train_python_data import make_python_rows, train_python_rows
from triptych.checkpoint import load
from triptych.data import manifest
from triptych.errors import CheckpointError, ManifestError, RecipeError, TrainingError, TriptychError, UsageError
from triptych.recipe import Recipe
from triptych.training.loop import train
from triptych.training.metrics_log import read_metrics
from triptych.training.run_directory import read_skipped

SETTINGS = [override for override in TINY_OVERRIDES if "epochs" not in override and "batch_size" not in override]


@pytest.fixture(scope="module")
def bare_recipe(tiny_recipe):
    """The tiny recipe without a manifest."""
    return replace(tiny_recipe, data=replace(tiny_recipe.data, manifest=""))


@pytest.fixture(scope="module")
def rows(synthetic_manifest):
    return make_python_rows(synthetic_manifest)


def list_paths(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_short_call_equals_the_recipe_with_overrides(run_dir, synthetic_manifest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = {"data": synthetic_manifest, "epochs": 2, "batch_size": 16, "overrides": SETTINGS, "show_progress": False}
    assert have_identical_weights(triptych.train("trimodal", **call), load(run_dir))
    assert have_identical_weights(load("runs/trimodal"), load(run_dir)), "the default folder is runs/NAME"
    other = triptych.train("trimodal", "other", seed=1, learning_rate=0.01, **call)
    assert not have_identical_weights(other, load(run_dir))
    assert (other.recipe.training.seed, other.recipe.training.learning_rate) == (1, 0.01)


def test_tables_and_objects_in_memory_give_the_weights_of_files(
    bare_recipe, run_dir, synthetic_manifest, rows, tmp_path
):
    pandas, folder = import_optional("pandas"), synthetic_manifest.parent
    frame = pandas.read_csv(synthetic_manifest)
    for column in ("image", "audio"):
        frame[column] = [folder / name for name in frame[column]]
    splits = {name: [row for row in rows if row["split"] == name] for name in ("train", "valid", "test")}
    for name, data in {"paths": frame, "objects": rows, "splits": splits}.items():
        space = train(bare_recipe, tmp_path / name, data=data, show_progress=False)
        assert have_identical_weights(space, load(run_dir)), name
    assert list_paths(tmp_path / "paths" / "data") == ["manifest.parquet"], "files are not copied"
    assert len(list_paths(tmp_path / "objects" / "data" / "media")) == 160


def test_the_same_call_resumes_and_changed_data_raises(bare_recipe, run_dir, rows, tmp_path):
    folder = tmp_path / "run"
    train(bare_recipe, folder, data=rows, show_progress=False)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "recipe.toml"}
    space = train(bare_recipe, folder, data=rows, show_progress=False)
    assert have_identical_weights(space, load(run_dir))
    assert {path: before[path] for path in before if path.parent.name in ("data", "media")} == {
        path: path.stat().st_mtime_ns for path in before if path.parent.name in ("data", "media")
    }
    with pytest.raises(UsageError, match=r"contains other data; give another folder, or restart=True"):
        train(bare_recipe, folder, data=rows[:-1], show_progress=False)
    with pytest.raises(CheckpointError, match="another recipe"):
        train(with_training(bare_recipe, epochs=3), folder, data=rows, show_progress=False)
    assert len(list_paths(folder / "data" / "media")) == 160
    train(bare_recipe, folder, data=rows[:40], restart=True, show_progress=False)
    assert len(list_paths(folder / "data" / "media")) == 80


@pytest.mark.slow
def test_a_killed_run_on_a_generator_resumes_to_the_same_weights(bare_recipe, synthetic_manifest, tmp_path):
    recipe = with_training(bare_recipe, epochs=30)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    program = [sys.executable, "-m", "tests.training.train_python_data", str(tmp_path / "recipe.toml")]
    folder, root = tmp_path / "killed", Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    with subprocess.Popen(
        [*program, str(synthetic_manifest), str(folder)], env=environment, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 240
        while len(read_metrics(folder)) < 2 and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert 2 <= len(read_metrics(folder)) < 30
    resumed = train_python_rows(recipe, synthetic_manifest, folder, show_progress=False)
    uninterrupted = train_python_rows(recipe, synthetic_manifest, tmp_path / "whole", show_progress=False)
    assert have_identical_weights(resumed, uninterrupted)
    assert [line["epoch"] for line in read_metrics(folder)] == list(range(1, 31))


@pytest.mark.slow
def test_commands_use_the_run_later(bare_recipe, rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = train(bare_recipe, "runs/mine", data=rows, show_progress=False)
    train_command = run_command("train", "runs/mine/recipe.toml", "-o", "runs/mine", cwd=tmp_path)
    assert train_command.returncode == 0, train_command.stderr
    assert "2 of 2 epochs are complete" in train_command.stderr
    assert "evaluate runs/mine --data runs/mine/data/manifest.parquet --split test" in train_command.stderr
    evaluation = run_command("evaluate", "runs/mine", "--data", "runs/mine/data", "--json", cwd=tmp_path)
    in_python = triptych.evaluate(space, rows, show_progress=False)
    assert json.loads(evaluation.stdout) == json.loads(json.dumps(in_python.to_dict()["directions"]))
    validation = run_command("validate", "runs/mine/data", "--decode", cwd=tmp_path)
    assert validation.returncode == 0, validation.stdout + validation.stderr


@pytest.mark.slow
def test_two_processes_train_on_python_data_and_stop_together(bare_recipe, synthetic_manifest, tmp_path):
    recipe = with_training(bare_recipe, optimizer="sgd", learning_rate=0.1)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    program = ["-m", "tests.training.train_python_data", tmp_path / "recipe.toml", synthetic_manifest]
    process = run_torchrun(*program, tmp_path / "two", "stop")
    assert process.stderr.count("training is stopped by StopAfterFirstEpoch.on_epoch, epoch 1") == 1
    assert len(read_metrics(tmp_path / "two")) == 1
    one = train_python_rows(recipe, synthetic_manifest, tmp_path / "one", show_progress=False)
    run_torchrun(*program, tmp_path / "two")
    two = load(tmp_path / "two")
    for (name, a), (_, b) in zip(one.named_parameters(), two.named_parameters(), strict=True):
        assert torch.allclose(a, b, atol=WEIGHT_TOLERANCE), name


def test_rows_without_splits_are_split_and_the_test_rows_are_held_out(bare_recipe, rows, tmp_path, capsys):
    unsplit = [{name: value for name, value in row.items() if name != "split"} for row in rows]
    space = train(bare_recipe, tmp_path / "run", data=unsplit)
    assert "train 64 (80%), valid 8 (10%), test 8 (10%)" in capsys.readouterr().err
    table = manifest.read(tmp_path / "run" / "data")
    result = triptych.evaluate(space, unsplit, show_progress=False, num_resamples=0)
    assert [item.row for item in result.items["image"].entries] == [row.id for row in table.split("test").rows]


def test_a_corrupt_file_among_good_ones_is_skipped_and_reported(bare_recipe, rows, tmp_path):
    first = next(i for i, row in enumerate(rows) if row["split"] == "train")
    damaged = [{**row, "image": b"\x89PNG damaged"} if i == first else row for i, row in enumerate(rows)]
    space = train(bare_recipe, tmp_path / "run", data=damaged, show_progress=False)
    assert all(torch.isfinite(p).all() for p in space.parameters())
    (line,) = read_skipped(tmp_path / "run")
    assert "broken image data" in line or "cannot be read as an image" in line


def raise_after_three(rows):
    yield from rows[:3]
    raise OSError("connection lost")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda rows: None, TrainingError, "the recipe names no manifest; give data="),
        (lambda rows: [], ManifestError, "the table has no rows"),
        (lambda rows: [{**rows[0], "picture": 1}], ManifestError, "column 'picture' is unknown"),
        (
            lambda rows: [*rows, {"image": "gone.png", "text": "a"}],
            ManifestError,
            "row 81, image: no such file: .*gone",
        ),
        (
            lambda rows: [{**rows[0], "audio": ([0.0], "fast")}],
            ManifestError,
            "row 1, column audio: sampling rate 'fast'",
        ),
        (raise_after_three, ManifestError, r"failed after 3 rows \(OSError: connection lost\)"),
        (
            lambda rows: [{"text": row["text"]} for row in rows],
            RecipeError,
            "the data has only text; the recipe trains",
        ),
        (lambda rows: [{**row, "split": "x"} for row in rows], ManifestError, "split 'train' is unknown; known: x"),
        (lambda rows: "missing.csv", ManifestError, r"missing\.csv: no such file"),
        (lambda rows: 7, UsageError, "data is int; give a manifest"),
        (lambda rows: rows[:1], TrainingError, "no batch can be formed"),
    ],
)
def test_bad_data_raises_and_nothing_is_written(bare_recipe, rows, tmp_path, make, error, message):
    with pytest.raises(error, match=message):
        train(bare_recipe, tmp_path / "run", data=make(rows), show_progress=False)
    assert list(tmp_path.iterdir()) == []


def test_bad_data_keeps_an_existing_run(bare_recipe, run_dir, rows, tmp_path):
    train(bare_recipe, tmp_path / "run", data=rows, show_progress=False)
    before = list_paths(tmp_path)
    for restart in (False, True):
        with pytest.raises(ManifestError):
            train(bare_recipe, tmp_path / "run", data=raise_after_three(rows), restart=restart, show_progress=False)
    assert list_paths(tmp_path) == before
    assert have_identical_weights(train(bare_recipe, tmp_path / "run", data=rows, show_progress=False), load(run_dir))


@pytest.mark.parametrize("file", ["thesis.tex", "recipe.toml", "data/notes.txt"])
def test_files_of_the_user_in_the_folder_raise(bare_recipe, rows, tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("years of work")
    with pytest.raises(TriptychError, match="contains other files"):
        train(bare_recipe, tmp_path, data=rows, show_progress=False)
    assert [path for path in list_paths(tmp_path) if "." in path] == [file]


def test_several_manifests_are_trained_together(bare_recipe, synthetic_manifest, tmp_path):
    space = train(
        bare_recipe, tmp_path / "run", data=[synthetic_manifest, str(synthetic_manifest)], show_progress=False
    )
    assert space.recipe.data.extra_manifests == (str(synthetic_manifest),)
    assert Recipe.load(tmp_path / "run" / "recipe.toml") == space.recipe
