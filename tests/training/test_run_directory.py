"""A run folder says everything: what was done, with what, on what, how well; and nothing about whose machine it was."""

import getpass
import hashlib
import json
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from triptych.checkpoint import load
from triptych.training import environment
from triptych.training.loop import train


def test_the_folder_records_environment_and_data(tiny_recipe, run_dir):
    record = json.loads((run_dir / "environment.json").read_text())
    manifest = Path(tiny_recipe.data.manifest)
    assert record["data"] == {manifest.name: hashlib.sha256(manifest.read_bytes()).hexdigest()}
    assert record["packages"]["torch"].startswith("2.")
    assert (record["processes"], record["device"], record["threads"]) == (1, "cpu", 1)
    text = (run_dir / "environment.json").read_text() + (run_dir / "README.md").read_text()
    for private in (str(Path.home()), str(Path.cwd()), str(manifest.parent), socket.gethostname()):
        assert len(private) < 3 or private not in text, private
    assert f"/{getpass.getuser()}" not in text
    card = (run_dir / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: triptych\n")
    assert record["data"][manifest.name] in card


def test_the_code_revision_is_the_git_commit(tmp_path, monkeypatch):
    def run_git(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(environment, "PACKAGE_FOLDER", tmp_path)
    assert environment.describe_code_revision() == "installed package"
    run_git("init", "-q")
    (tmp_path / "__init__.py").write_text("")
    assert environment.describe_code_revision() == "installed package", (
        "somebody's own repository, in which we are installed"
    )
    run_git("add", ".")
    run_git("commit", "-q", "-m", "first")
    commit = run_git("rev-parse", "HEAD")
    assert environment.describe_code_revision() == commit
    (tmp_path / "__init__.py").write_text("changed")
    assert environment.describe_code_revision() == f"{commit}, changed since"


def test_tensorboard_reads_the_metrics(tiny_recipe, tmp_path):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )
    train(tiny_recipe, tmp_path / "run", show_progress=False)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "run" / "metrics.jsonl").write_text(lines[0] + "\nnot json\n")
    train(tiny_recipe, tmp_path / "run", show_progress=False)  # goes on from what is there: the events are made anew
    files = list((tmp_path / "run" / "tensorboard").iterdir())
    assert len(files) == 1
    assert socket.gethostname() not in files[0].name or len(socket.gethostname()) < 3
    events = reader.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert {"loss", "infonce(image,text).a_to_b"} <= set(events.Tags()["scalars"])
    (loss,) = events.Scalars("loss")
    assert loss.step == 1
    assert loss.value == pytest.approx(json.loads(lines[0])["loss"])


def test_the_space_records_its_epoch_and_validation_score(tiny_recipe, tmp_path):
    recipe = replace(tiny_recipe, training=replace(tiny_recipe.training, eval_every=1, epochs=3))
    space = train(recipe, tmp_path / "run", show_progress=False)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    best = max(lines, key=lambda line: line["valid"])
    assert space.history["valid"] == pytest.approx(best["valid"], abs=1e-4)
    assert lines[space.history["epochs"] - 1]["valid"] == best["valid"]
    assert f"{best['valid']:.2f}%" in (tmp_path / "run" / "README.md").read_text()


def test_training_works_without_tensorboard(tiny_recipe, run_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("triptych.training.metrics_log.find_spec", lambda _: None)
    shutil.copytree(run_dir, tmp_path / "run")
    train(tiny_recipe, tmp_path / "run", restart=True, show_progress=False)
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert load(tmp_path / "run").history["epochs"] == 2
