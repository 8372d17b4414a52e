"""Killed at random moments a run ends in the same weights; what cannot go well stops early and loses nothing."""

import errno
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import identical
from triptych.checkpoint import load
from triptych.errors import InputError, TrainingError
from triptych.training import claim
from triptych.training.claim import check_room, claimed, is_claimed
from triptych.training.loop import train
from triptych.training.run import Run
from triptych.training.step import in_words, refuse_explosion

PATIENCE = 240  # seconds, on a machine that has other things to do
KILLED_EPOCHS = 20  # many more than are done when the last kill comes, however fast the machine


def with_training(recipe, **changes):
    return replace(recipe, training=replace(recipe.training, **changes))


def epochs_done(folder):
    path = folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.slow
def test_killed_at_three_random_moments_it_ends_in_the_weights_of_an_unbroken_run(quick, tmp_path):
    """A real process, killed without warning: while it loads, computes, logs, saves or validates, as chance will."""
    recipe = with_training(quick, epochs=KILLED_EPOCHS, validate=1)
    unbroken = train(recipe, tmp_path / "unbroken", show=False)
    seed = int(os.environ.get("TRIPTYCH_KILL_SEED", time.time_ns() % 1_000_000))
    print(f"TRIPTYCH_KILL_SEED={seed}")
    dice = random.Random(seed)
    folder = tmp_path / "killed"
    (tmp_path / "recipe.toml").write_text(recipe.text())
    command = [sys.executable, "-m", "triptych", "train", str(tmp_path / "recipe.toml"), "-o", str(folder)]
    for first, last in ((0, 2), (2, 4), (4, 6)):
        after, moment = dice.randint(first, last), dice.uniform(0, 0.4)
        with subprocess.Popen(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as process:
            deadline = time.monotonic() + PATIENCE
            while not (folder / "metrics.jsonl").exists() or epochs_done(folder) < after:
                assert process.poll() is None, "it ended by itself"
                assert time.monotonic() < deadline
                time.sleep(0.005)
            time.sleep(moment)
            process.send_signal(signal.SIGKILL)
        assert epochs_done(folder) < KILLED_EPOCHS, "killed too late to prove anything"
        assert not is_claimed(folder), "a dead process must not hold the folder"
    assert identical(train(recipe, folder, show=False), unbroken)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [*range(1, KILLED_EPOCHS + 1)]
    assert (folder / "last.safetensors").read_bytes() == (tmp_path / "unbroken" / "last.safetensors").read_bytes()


def hold(folder, ready, done):
    with claimed(folder):
        ready.set()
        done.wait(PATIENCE)


@pytest.mark.slow
def test_two_trainings_never_share_a_folder(quick, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "run", ready, done))
    other.start()
    assert ready.wait(PATIENCE)
    assert is_claimed(tmp_path / "run")
    with pytest.raises(TrainingError, match="another process is training into this folder"):
        train(quick, tmp_path / "run", restart=True, show=False)
    assert (tmp_path / "run" / "space.safetensors").exists()
    other.kill()
    other.join()
    assert not is_claimed(tmp_path / "run")
    train(quick, tmp_path / "run", show=False)


def test_a_folder_that_cannot_be_written_to_is_noticed_before_anything_is_computed(quick, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(TrainingError, match=r"file/run: cannot be written to \(Not a directory\); give another folder"):
        train(quick, tmp_path / "file" / "run", show=False)


def test_a_disk_without_room_is_noticed_before_the_first_step(quick, tmp_path, monkeypatch):
    few = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(claim.shutil, "disk_usage", lambda _: few)
    with pytest.raises(TrainingError, match=r"run: this run needs .* MB for its checkpoints, .* has 1\.0 MB free"):
        train(quick, tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists(), "an empty folder was left behind"


def test_a_quota_that_free_space_does_not_show_is_noticed_too(tmp_path):
    """The system itself refuses: files of this process may not grow beyond a limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        check_room(tmp_path / "last.safetensors", 900_000)
        with pytest.raises(TrainingError, match=rf"cannot write them \({os.strerror(errno.EFBIG)}\)"):
            check_room(tmp_path / "last.safetensors", 2_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_the_room_asked_for_is_what_a_run_needs(quick, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("triptych.training.run.check_room", lambda path, needed: asked.append(needed))
    train(quick, tmp_path / "run", show=False)
    space, last = ((tmp_path / "run" / name).stat().st_size for name in ("space.safetensors", "last.safetensors"))
    small = sum(p.stat().st_size for p in (tmp_path / "run").rglob("*") if p.is_file()) - space - last
    assert space + 2 * last + small < asked[0] < space + 2 * last + 3e6
    train(quick, tmp_path / "run", show=False)
    assert asked[1] < last + 3e6, "what is there already needs no room"


def test_a_loss_that_is_not_a_number_stops_and_names_the_term_and_the_rows(quick, tmp_path):
    wild = with_training(quick, learning_rate=1e3, clip=1e12, epochs=30, warmup=0.0)
    with pytest.raises(
        TrainingError, match=r"epoch \d+, step \d+: infonce\(.*in the batch of rows \d+.*16 rows"
    ) as why:
        train(wild, tmp_path / "run", show=False)
    note = json.loads((tmp_path / "run" / "stopped.json").read_text())
    assert len(note["rows"]) == 16
    assert str(why.value).startswith(note["reason"])
    kept = epochs_done(tmp_path / "run")
    assert kept == 0 or load(tmp_path / "run").history["epochs"] == kept, "the last good epoch is gone"


def test_a_loss_that_explodes_stops_before_it_is_infinite(quick, tmp_path):
    first = {"triplet.a_to_b": 0.2, "loss": 3.0}
    refuse_explosion({"triplet.a_to_b": 999.0, "loss": 2999.0}, first)
    with pytest.raises(InputError, match=r"triplet\.a_to_b exploded: 1\.2e\+03, from 0\.2"):
        refuse_explosion({"triplet.a_to_b": 1200.0, "loss": 3.0}, first)
    wild = replace(quick, objectives=(replace(quick.objectives[0], name="align_uniform", settings={}),))
    wild = replace(wild, space=replace(wild.space, geometry="free"))
    wild = with_training(wild, learning_rate=1.0, clip=1e12, epochs=30, warmup=0.0, optimizer="sgd", momentum=0.0)
    with pytest.raises(TrainingError, match=r"align_uniform\(.*(exploded|NaN|infinit).*in the batch of rows"):
        train(wild, tmp_path / "run", show=False)


def test_the_bar_says_what_the_loss_is_made_of():
    assert in_words({"infonce(a,b).x": 1.0, "infonce(a,b).y": 2.0, "loss": 3.0}) == "loss 3.000"
    assert (
        in_words({"infonce(a,b).x": 1.0, "infonce(a,b).y": 2.0, "triplet(a,b).z": 0.5, "loss": 3.5})
        == "loss 3.500 = 3.00 infonce(a,b) + 0.50 triplet(a,b)"
    )


def test_a_folder_is_free_again_after_an_error(quick, tmp_path):
    nobody = replace(quick, data=replace(quick.data, train="nobody"))
    with pytest.raises(Exception, match="nobody"):
        train(nobody, tmp_path / "run", show=False)
    assert not Path(tmp_path / "run").exists()
    with claimed(tmp_path / "run"):
        assert is_claimed(tmp_path / "run")
    assert not is_claimed(tmp_path / "run")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists the files that are mapped")
def test_a_resumed_run_maps_no_file_that_it_replaces(quick, tmp_path, monkeypatch):
    """A mapped file keeps its bytes on the disk after it has been replaced: room that nobody has checked for."""
    recipe, folder, save, saves = with_training(quick, epochs=3), tmp_path / "run", Run.save, []

    def save_and_look(self, *arguments):
        save(self, *arguments)
        saves.append([line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line])
        if len(saves) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "save", save_and_look)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, folder, show=False)
    train(recipe, folder, show=False)
    assert saves == [[], [], []]
