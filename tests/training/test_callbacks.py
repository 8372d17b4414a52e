"""Callbacks receive plain values, may stop training, and never change or lose a run."""

import json
import math
from pathlib import Path

import pytest
import torch

from tests.conftest import have_identical_weights
from tests.training.cases import with_training
from triptych.checkpoint import load
from triptych.errors import TrainingError, UsageError
from triptych.training.callbacks import Callback, TrainingProgress, check_callback
from triptych.training.loop import train
from triptych.training.metrics_log import read_metrics
from triptych.training.run_summary import list_runs


class Recorder(Callback):
    """Records all calls."""

    def __init__(self):
        self.calls: list[tuple[str, TrainingProgress]] = []
        self.errors = []

    def on_start(self, progress):
        self.calls.append(("start", progress))

    def on_step(self, progress):
        self.calls.append(("step", progress))

    def on_epoch(self, progress):
        self.calls.append(("epoch", progress))

    def on_end(self, progress, error):
        self.calls.append(("end", progress))
        self.errors.append(error)

    def values(self, name):
        return [progress for event, progress in self.calls if event == name]


class Broken(Callback):
    """Raises in one method at one step, or draws random numbers."""

    def __init__(self, method, step=0):
        self.method, self.step = method, step

    def _raise(self, method, progress):
        if method == self.method and progress.step >= self.step:
            raise ValueError("no connection")

    def on_start(self, progress):
        self._raise("on_start", progress)

    def on_step(self, progress):
        torch.rand(3)
        self._raise("on_step", progress)

    def on_epoch(self, progress):
        self._raise("on_epoch", progress)

    def on_end(self, progress, error):
        self._raise("on_end", progress)


def test_callbacks_receive_the_values_of_the_run(tiny_recipe, tmp_path):
    recipe, recorder = with_training(tiny_recipe, epochs=3, eval_every=2), Recorder()
    train(recipe, tmp_path / "run", callbacks=[recorder], show_progress=False)
    lines = read_metrics(tmp_path / "run")
    steps_per_epoch = int(lines[0]["steps"])
    events = [event for event, _ in recorder.calls]
    assert events == ["start", *([*["step"] * steps_per_epoch, "epoch"] * 3), "end"]
    steps = recorder.values("step")
    assert [p.step for p in steps] == list(range(1, 3 * steps_per_epoch + 1))
    assert [p.epoch for p in steps] == [e for e in (1, 2, 3) for _ in range(steps_per_epoch)]
    assert {(p.total_epochs, p.total_steps, p.folder) for p in steps} == {(3, len(steps), tmp_path / "run")}
    for p in steps:  # linear warm-up, then cosine decay
        warmup, i = recipe.training.warmup_ratio * len(steps), p.step - 1
        decay = 0.5 * (1 + math.cos(math.pi * (i - warmup) / (len(steps) - warmup)))
        expected = (i + 1) / (warmup + 1) if i < warmup else decay
        assert p.learning_rate == pytest.approx(recipe.training.learning_rate * expected)
    for line, p in zip(lines, recorder.values("epoch"), strict=True):
        own_steps = [s for s in steps if s.epoch == line["epoch"]]
        assert set(p.losses) == set(own_steps[0].losses) >= {"loss", "infonce(image,text).a_to_b"}
        for name, value in p.losses.items():
            assert value == pytest.approx(sum(s.losses[name] for s in own_steps) / len(own_steps))
            assert value == pytest.approx(line[name])
        assert p.validation_score == line.get("valid")
        assert "infonce(image,text).temperature" in p.metrics
        scalars = p.to_scalars()
        assert {name: scalars[name] for name in line if name in scalars} == {n: line[n] for n in line if n != "time"}
    assert [p.validation_score is None for p in recorder.values("epoch")] == [True, False, False]
    assert recorder.errors == [None]


def test_on_end_is_called_when_the_space_is_saved(tiny_recipe, tmp_path):
    class Loader(Callback):
        def on_end(self, progress, error):
            self.space = load(progress.folder)

    loader = Loader()
    space = train(tiny_recipe, tmp_path / "run", callbacks=[loader], show_progress=False)
    assert have_identical_weights(loader.space, space)


def test_random_numbers_of_a_callback_do_not_change_the_weights(tiny_recipe, run_dir, tmp_path):
    space = train(tiny_recipe, tmp_path / "run", callbacks=[Broken("never")], show_progress=False)
    assert have_identical_weights(space, load(run_dir))


@pytest.mark.parametrize(("method", "step"), [("on_start", 0), ("on_step", 5), ("on_epoch", 1), ("on_end", 1)])
def test_a_callback_that_raises_stops_the_run_which_stays_resumable(tiny_recipe, run_dir, tmp_path, method, step):
    folder, recorder = tmp_path / "run", Recorder()
    with pytest.raises(
        TrainingError, match=rf"callback Broken\.{method}, epoch \d, step \d: ValueError: no con"
    ) as caught:
        train(tiny_recipe, folder, callbacks=[recorder, Broken(method, step)], show_progress=False)
    assert isinstance(caught.value.__cause__, ValueError)
    assert [event for event, _ in recorder.calls].count("end") == 1
    expected_epochs = {"on_start": 0, "on_step": 1, "on_epoch": 1, "on_end": 2}[method]
    assert len(read_metrics(folder)) == expected_epochs
    assert json.loads((folder / "error.json").read_text())["reason"].startswith(f"callback Broken.{method}")
    (summary,) = list_runs(tmp_path)
    assert (summary.state, summary.epochs) == ("stopped", expected_epochs)
    assert f"callback Broken.{method}" in summary.stop_reason
    assert have_identical_weights(train(tiny_recipe, folder, show_progress=False), load(run_dir))
    assert [line["epoch"] for line in read_metrics(folder)] == [1, 2]
    assert not (folder / "error.json").exists()


def test_the_error_of_training_is_not_hidden_by_a_callback(tiny_recipe, tmp_path, capsys):
    recorder = Recorder()
    with pytest.raises(TrainingError, match=r"Broken\.on_step"):
        train(
            tiny_recipe,
            tmp_path / "run",
            callbacks=[Broken("on_end"), Broken("on_step"), recorder],
            show_progress=False,
        )
    assert "callback Broken.on_end, epoch 1, step 1: ValueError: no connection" in capsys.readouterr().err
    assert isinstance(recorder.errors[0], TrainingError)


@pytest.mark.parametrize("method", ["on_step", "on_epoch"])
def test_a_callback_stops_training_after_the_epoch(tiny_recipe, tmp_path, method, capsys):
    class Stop(Callback):
        def on_step(self, progress):
            return method == "on_step" and progress.step == 2

        def on_epoch(self, progress):
            return method == "on_epoch" and progress.epoch == 1

    recipe = with_training(tiny_recipe, epochs=3)
    stopped = train(recipe, tmp_path / "run", callbacks=[Stop()])
    assert f"training is stopped by Stop.{method}, epoch 1" in capsys.readouterr().err
    assert [line["epoch"] for line in read_metrics(tmp_path / "run")] == [1]
    assert have_identical_weights(load(tmp_path / "run"), stopped)
    resumed = train(recipe, tmp_path / "run", show_progress=False)
    assert have_identical_weights(resumed, train(recipe, tmp_path / "uninterrupted", show_progress=False))


def test_a_resumed_run_continues_its_steps(tiny_recipe, tmp_path):
    with pytest.raises(TrainingError):
        train(tiny_recipe, tmp_path / "run", callbacks=[Broken("on_step", 5)], show_progress=False)
    recorder = Recorder()
    train(tiny_recipe, tmp_path / "run", callbacks=[recorder], show_progress=False)
    (start,) = recorder.values("start")
    assert (start.epoch, start.step) == (1, recorder.values("step")[0].step - 1)
    assert recorder.values("step")[-1].step == start.total_steps


def test_an_interrupt_in_a_callback_is_not_wrapped(tiny_recipe, tmp_path):
    class Interrupted(Callback):
        def on_epoch(self, progress):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe, tmp_path / "run", callbacks=[Interrupted()], show_progress=False)
    assert len(read_metrics(tmp_path / "run")) == 1


def test_objects_that_are_not_callbacks_raise(tiny_recipe, tmp_path):
    class Misspelled(Callback):
        def on_epoch_end(self, progress):
            pass

    with pytest.raises(UsageError, match=r"Misspelled: method 'on_epoch_end' is unknown; .* did you mean 'on_epoch'"):
        check_callback(Misspelled())
    with pytest.raises(UsageError, match="callback Recorder is a class, not an object"):
        check_callback(Recorder)
    with pytest.raises(UsageError, match=r"callback function has no method on_start; .* triptych\.Callback"):
        train(tiny_recipe, tmp_path / "run", callbacks=[print_nothing], show_progress=False)  # pyright: ignore[reportArgumentType]
    assert list(Path(tmp_path).iterdir()) == []


def print_nothing(progress):
    """A function is not a callback."""
