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


def test_the_folder_says_with_what_and_on_what_it_was_trained(quick, run):
    said = json.loads((run / "environment.json").read_text())
    manifest = Path(quick.data.manifest)
    assert said["data"] == {manifest.name: hashlib.sha256(manifest.read_bytes()).hexdigest()}
    assert said["packages"]["torch"].startswith("2.")
    assert (said["processes"], said["device"], said["threads"]) == (1, "cpu", 1)
    text = (run / "environment.json").read_text() + (run / "README.md").read_text()
    for private in (str(Path.home()), str(Path.cwd()), str(manifest.parent), socket.gethostname()):
        assert len(private) < 3 or private not in text, private
    assert f"/{getpass.getuser()}" not in text
    card = (run / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: triptych\n")
    assert said["data"][manifest.name] in card


def test_the_state_of_the_code_is_its_commit(tmp_path, monkeypatch):
    def git(*words):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(environment, "HERE", tmp_path)
    assert environment.code_state() == "installed package"
    git("init", "-q")
    (tmp_path / "__init__.py").write_text("")
    assert environment.code_state() == "installed package", "somebody's own repository, in which we are installed"
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert environment.code_state() == commit
    (tmp_path / "__init__.py").write_text("changed")
    assert environment.code_state() == f"{commit}, changed since"


def test_tensorboard_reads_the_numbers_of_the_metrics(quick, tmp_path):
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )
    train(quick, tmp_path / "run", show=False)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "run" / "metrics.jsonl").write_text(lines[0] + "\nnot json\n")
    train(quick, tmp_path / "run", show=False)  # goes on from what is there: the events are made anew
    files = list((tmp_path / "run" / "tensorboard").iterdir())
    assert len(files) == 1
    assert socket.gethostname() not in files[0].name or len(socket.gethostname()) < 3
    found = reader.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    assert {"loss", "infonce(image,text).a_to_b"} <= set(found.Tags()["scalars"])
    (loss,) = found.Scalars("loss")
    assert loss.step == 1
    assert loss.value == pytest.approx(json.loads(lines[0])["loss"])


def test_the_space_knows_which_epoch_and_which_score_it_is(quick, tmp_path):
    recipe = replace(quick, training=replace(quick.training, validate=1, epochs=3))
    space = train(recipe, tmp_path / "run", show=False)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    best = max(lines, key=lambda line: line["valid"])
    assert space.history["valid"] == pytest.approx(best["valid"], abs=1e-4)
    assert lines[space.history["epochs"] - 1]["valid"] == best["valid"]
    assert f"{best['valid']:.2f}%" in (tmp_path / "run" / "README.md").read_text()


def test_without_tensorboard_nothing_is_missing(quick, run, tmp_path, monkeypatch):
    monkeypatch.setattr("triptych.training.events.find_spec", lambda _: None)
    shutil.copytree(run, tmp_path / "run")
    train(quick, tmp_path / "run", restart=True, show=False)
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert load(tmp_path / "run").history["epochs"] == 2
