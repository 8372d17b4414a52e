"""One run per folder; an unwritable folder or a full disk raises before the first step."""

import errno
import multiprocessing
import os
import resource
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from triptych.errors import TrainingError
from triptych.training import run_lock
from triptych.training.loop import train
from triptych.training.run_lock import check_disk_space, is_running, lock_folder

TIMEOUT_SECONDS = 240  # generous, for a busy machine


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
    with pytest.raises(TrainingError, match=r"file/run: cannot be written \(Not a directory\); give another folder"):
        train(tiny_recipe, tmp_path / "file" / "run", show_progress=False)


def test_a_full_disk_raises_before_the_first_step(tiny_recipe, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(run_lock.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(TrainingError, match=r"run: this run needs .* MB for its checkpoints, .* has 1\.0 MB free"):
        train(tiny_recipe, tmp_path / "run", show_progress=False)
    assert not (tmp_path / "run").exists(), "an empty folder was left behind"


def test_a_disk_quota_raises(tmp_path):
    """Limit the file size of this process, so that the system raises the error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        check_disk_space(tmp_path / "last.safetensors", 900_000)
        with pytest.raises(TrainingError, match=rf"but they cannot be written \({os.strerror(errno.EFBIG)}\)"):
            check_disk_space(tmp_path / "last.safetensors", 2_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_the_lock_is_released_after_an_error(tiny_recipe, tmp_path):
    unknown_split = replace(tiny_recipe, data=replace(tiny_recipe.data, train_split="missing"))
    with pytest.raises(Exception, match="missing"):
        train(unknown_split, tmp_path / "run", show_progress=False)
    assert not Path(tmp_path / "run").exists()
    with lock_folder(tmp_path / "run"):
        assert is_running(tmp_path / "run")
    assert not is_running(tmp_path / "run")
