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

from tests.conftest import have_identical_weights
from triptych.checkpoint import load
from triptych.errors import InputError, TrainingError
from triptych.training import run_lock
from triptych.training.loop import train
from triptych.training.run_directory import RunDirectory
from triptych.training.run_lock import check_disk_space, is_running, lock_folder
from triptych.training.step import check_divergence, format_losses

TIMEOUT_SECONDS = 240  # seconds, on a machine that has other things to do
KILLED_EPOCHS = 20  # many more than are done when the last kill comes, however fast the machine


def with_training(recipe, **changes):
    return replace(recipe, training=replace(recipe.training, **changes))


def count_epochs(folder):
    path = folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.slow
def test_killed_three_times_it_resumes_to_the_weights_of_an_uninterrupted_run(tiny_recipe, tmp_path):
    """A real process, killed without warning: while it loads, computes, logs, saves or validates, as chance will."""
    recipe = with_training(tiny_recipe, epochs=KILLED_EPOCHS, eval_every=1)
    uninterrupted = train(recipe, tmp_path / "unbroken", show_progress=False)
    seed = int(os.environ.get("TRIPTYCH_KILL_SEED", time.time_ns() % 1_000_000))
    print(f"TRIPTYCH_KILL_SEED={seed}")
    rng = random.Random(seed)
    folder = tmp_path / "killed"
    (tmp_path / "recipe.toml").write_text(recipe.text())
    command = [sys.executable, "-m", "triptych", "train", str(tmp_path / "recipe.toml"), "-o", str(folder)]
    for first, last in ((0, 2), (2, 4), (4, 6)):
        epochs_before_kill, delay = rng.randint(first, last), rng.uniform(0, 0.4)
        with subprocess.Popen(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as process:
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while not (folder / "metrics.jsonl").exists() or count_epochs(folder) < epochs_before_kill:
                assert process.poll() is None, "it ended by itself"
                assert time.monotonic() < deadline
                time.sleep(0.005)
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        assert count_epochs(folder) < KILLED_EPOCHS, "killed too late to prove anything"
        assert not is_running(folder), "a dead process must not hold the folder"
    assert have_identical_weights(train(recipe, folder, show_progress=False), uninterrupted)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [*range(1, KILLED_EPOCHS + 1)]
    assert (folder / "last.safetensors").read_bytes() == (tmp_path / "unbroken" / "last.safetensors").read_bytes()


def hold_lock(folder, ready, done):
    with lock_folder(folder):
        ready.set()
        done.wait(TIMEOUT_SECONDS)


@pytest.mark.slow
def test_a_second_training_in_the_same_folder_raises(tiny_recipe, run_dir, tmp_path):
    shutil.copytree(run_dir, tmp_path / "run")
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold_lock, args=(tmp_path / "run", ready, done))
    other.start()
    assert ready.wait(TIMEOUT_SECONDS)
    assert is_running(tmp_path / "run")
    with pytest.raises(TrainingError, match="another process is training in this folder"):
        train(tiny_recipe, tmp_path / "run", restart=True, show_progress=False)
    assert (tmp_path / "run" / "space.safetensors").exists()
    other.kill()
    other.join()
    assert not is_running(tmp_path / "run")
    train(tiny_recipe, tmp_path / "run", show_progress=False)


def test_an_unwritable_folder_raises_before_anything_is_computed(tiny_recipe, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(TrainingError, match=r"file/run: cannot be written to \(Not a directory\); give another folder"):
        train(tiny_recipe, tmp_path / "file" / "run", show_progress=False)


def test_a_full_disk_raises_before_the_first_step(tiny_recipe, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(run_lock.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(TrainingError, match=r"run: this run needs .* MB for its checkpoints, .* has 1\.0 MB free"):
        train(tiny_recipe, tmp_path / "run", show_progress=False)
    assert not (tmp_path / "run").exists(), "an empty folder was left behind"


def test_a_disk_quota_raises(tmp_path):
    """The system itself refuses: files of this process may not grow beyond a limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        check_disk_space(tmp_path / "last.safetensors", 900_000)
        with pytest.raises(TrainingError, match=rf"but they cannot be written \({os.strerror(errno.EFBIG)}\)"):
            check_disk_space(tmp_path / "last.safetensors", 2_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_the_reserved_disk_space_fits_a_run(tiny_recipe, tmp_path, monkeypatch):
    reserved = []
    monkeypatch.setattr(
        "triptych.training.run_directory.check_disk_space", lambda path, required_bytes: reserved.append(required_bytes)
    )
    train(tiny_recipe, tmp_path / "run", show_progress=False)
    space, last = ((tmp_path / "run" / name).stat().st_size for name in ("space.safetensors", "last.safetensors"))
    other_bytes = sum(p.stat().st_size for p in (tmp_path / "run").rglob("*") if p.is_file()) - space - last
    assert space + 2 * last + other_bytes < reserved[0] < space + 2 * last + 3e6
    train(tiny_recipe, tmp_path / "run", show_progress=False)
    assert reserved[1] < last + 3e6, "what is there already needs no room"


def test_a_nan_loss_aborts_and_names_the_term_and_the_rows(tiny_recipe, tmp_path):
    diverging = with_training(tiny_recipe, learning_rate=1e3, max_grad_norm=1e12, epochs=30, warmup_ratio=0.0)
    with pytest.raises(
        TrainingError, match=r"epoch \d+, step \d+: infonce\(.*in the batch of rows \d+.*16 rows"
    ) as error:
        train(diverging, tmp_path / "run", show_progress=False)
    error_record = json.loads((tmp_path / "run" / "error.json").read_text())
    assert len(error_record["rows"]) == 16
    assert str(error.value).startswith(error_record["reason"])
    num_epochs = count_epochs(tmp_path / "run")
    assert num_epochs == 0 or load(tmp_path / "run").history["epochs"] == num_epochs, "the last completed epoch is gone"


def test_a_diverging_loss_aborts_before_it_is_infinite(tiny_recipe, tmp_path):
    first_values = {"triplet.a_to_b": 0.2, "loss": 3.0}
    check_divergence({"triplet.a_to_b": 999.0, "loss": 2999.0}, first_values)
    with pytest.raises(InputError, match=r"triplet\.a_to_b diverged: 1\.2e\+03, from 0\.2"):
        check_divergence({"triplet.a_to_b": 1200.0, "loss": 3.0}, first_values)
    diverging = replace(
        tiny_recipe, objectives=(replace(tiny_recipe.objectives[0], name="align_uniform", settings={}),)
    )
    diverging = replace(diverging, space=replace(diverging.space, geometry="free"))
    diverging = with_training(
        diverging, learning_rate=1.0, max_grad_norm=1e12, epochs=30, warmup_ratio=0.0, optimizer="sgd", momentum=0.0
    )
    with pytest.raises(TrainingError, match=r"align_uniform\(.*(diverged|NaN|infinit).*in the batch of rows"):
        train(diverging, tmp_path / "run", show_progress=False)


def test_format_losses_lists_each_objective():
    assert format_losses({"infonce(a,b).x": 1.0, "infonce(a,b).y": 2.0, "loss": 3.0}) == "loss 3.000"
    assert (
        format_losses({"infonce(a,b).x": 1.0, "infonce(a,b).y": 2.0, "triplet(a,b).z": 0.5, "loss": 3.5})
        == "loss 3.500 = 3.00 infonce(a,b) + 0.50 triplet(a,b)"
    )


def test_the_lock_is_released_after_an_error(tiny_recipe, tmp_path):
    unknown_split = replace(tiny_recipe, data=replace(tiny_recipe.data, train_split="nobody"))
    with pytest.raises(Exception, match="nobody"):
        train(unknown_split, tmp_path / "run", show_progress=False)
    assert not Path(tmp_path / "run").exists()
    with lock_folder(tmp_path / "run"):
        assert is_running(tmp_path / "run")
    assert not is_running(tmp_path / "run")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists the files that are mapped")
def test_a_resumed_run_does_not_memory_map_files_it_replaces(tiny_recipe, tmp_path, monkeypatch):
    """A mapped file keeps its bytes on the disk after it has been replaced: room that nobody has checked for."""
    recipe, folder, save_checkpoints, mapped_files = (
        with_training(tiny_recipe, epochs=3),
        tmp_path / "run",
        RunDirectory.save_checkpoints,
        [],
    )

    def save_and_record(self, *arguments):
        save_checkpoints(self, *arguments)
        mapped_files.append([line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line])
        if len(mapped_files) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunDirectory, "save_checkpoints", save_and_record)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, folder, show_progress=False)
    train(recipe, folder, show_progress=False)
    assert mapped_files == [[], [], []]
