"""An interrupted or killed run resumes to the same weights."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import have_identical_weights
from tests.training.cases import with_training
from triptych.checkpoint import load
from triptych.training import loop
from triptych.training.loop import train
from triptych.training.metrics_log import read_metrics
from triptych.training.run_directory import RunDirectory
from triptych.training.run_lock import is_running

TIMEOUT_SECONDS = 240  # generous, for a busy machine


KILLED_EPOCHS = 20  # more than a fast machine completes before the last kill


def count_epochs(folder):
    path = folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.slow
def test_killed_three_times_it_resumes_to_the_weights_of_an_uninterrupted_run(tiny_recipe, tmp_path):
    """Kill a real process at random times: while it loads, computes, logs, saves or validates."""
    recipe = with_training(tiny_recipe, epochs=KILLED_EPOCHS, eval_every=1)
    uninterrupted = train(recipe, tmp_path / "uninterrupted", show_progress=False)
    seed = int(os.environ.get("TRIPTYCH_KILL_SEED", time.time_ns() % 1_000_000))
    print(f"TRIPTYCH_KILL_SEED={seed}")
    rng = random.Random(seed)
    folder = tmp_path / "killed"
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    command = [sys.executable, "-m", "triptych", "train", str(tmp_path / "recipe.toml"), "-o", str(folder)]
    for first, last in ((0, 2), (2, 4), (4, 6)):
        epochs_before_kill, delay = rng.randint(first, last), rng.uniform(0, 0.4)
        with subprocess.Popen(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ) as process:
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while not (folder / "metrics.jsonl").exists() or count_epochs(folder) < epochs_before_kill:
                assert process.poll() is None, "it exited by itself"
                assert time.monotonic() < deadline
                time.sleep(0.005)
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        assert count_epochs(folder) < KILLED_EPOCHS, "killed too late"
        assert not is_running(folder), "a dead process holds the lock"
    assert have_identical_weights(train(recipe, folder, show_progress=False), uninterrupted)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [*range(1, KILLED_EPOCHS + 1)]
    assert (folder / "last.safetensors").read_bytes() == (tmp_path / "uninterrupted" / "last.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("interrupted_file", ["space.safetensors", "last.safetensors", "metrics.jsonl"])
def test_interrupted_at_any_file_of_a_save_it_resumes_to_the_same_weights(
    tiny_recipe, run_dir, tmp_path, monkeypatch, interrupted_file
):
    """Interrupt while a file of the second epoch is being replaced, and leave its temporary file as a kill would."""
    folder = tmp_path / "run"
    replace_file, log_metrics, count = Path.replace, RunDirectory.log_metrics, Counter()

    def maybe_interrupt(name):
        count[name] += name == interrupted_file
        if count[interrupted_file] == (3 if interrupted_file == "metrics.jsonl" else 2):
            shutil.copy(folder / "recipe.toml", folder / f".{interrupted_file}.abc.part")
            raise KeyboardInterrupt

    def interrupted_replace(self, target):
        maybe_interrupt(Path(target).name)
        return replace_file(self, target)

    def interrupted_log(self, metrics):
        log_metrics(self, metrics)
        maybe_interrupt("metrics.jsonl")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted_replace)
        patch.setattr(RunDirectory, "log_metrics", interrupted_log)
        with pytest.raises(KeyboardInterrupt):
            train(tiny_recipe, folder, show_progress=False)
    assert have_identical_weights(train(tiny_recipe, folder, show_progress=False), load(run_dir))
    assert have_identical_weights(load(folder), load(run_dir))
    assert [line["epoch"] for line in read_metrics(folder)] == [1, 2]
    assert not list(folder.glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"optimizer": "sgd", "learning_rate": 0.1}, {"precision": "bfloat16"}])
def test_sgd_and_bfloat16_learn_and_resume(tiny_recipe, tmp_path, changes):
    recipe = with_training(tiny_recipe, epochs=4, **changes)
    uninterrupted = train(recipe, tmp_path / "uninterrupted", show_progress=False)
    losses = [line["loss"] for line in read_metrics(tmp_path / "uninterrupted")]
    assert losses[-1] < losses[0]
    with pytest.MonkeyPatch.context() as patch:
        calls = []
        patch.setattr(loop.RunDirectory, "log_skipped", lambda *_: calls.append(1) if len(calls) < 2 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(recipe, tmp_path / "interrupted", show_progress=False)
    assert have_identical_weights(train(recipe, tmp_path / "interrupted", show_progress=False), uninterrupted)
