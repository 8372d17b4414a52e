"""Callbacks: objects whose methods are called during training, for example to log metrics or to stop training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from triptych.errors import TrainingError, UsageError, describe_unknown
from triptych.progress import notify
from triptych.recipe import Recipe
from triptych.training.distributed import read_rng_state, set_rng_state
from triptych.training.optimizer import compute_learning_rate

METHODS = ("on_start", "on_step", "on_epoch", "on_end")


@dataclass(frozen=True)
class TrainingProgress:
    """The values that a callback receives."""

    folder: Path  # the run folder
    recipe: Recipe
    epoch: int  # current epoch, counted from 1; in on_start, the number of completed epochs
    step: int  # current optimizer step of the run, counted from 1; in on_start, the number of completed steps
    total_epochs: int
    total_steps: int
    learning_rate: float  # learning rate of the current step, of the heads and objectives
    losses: dict[str, float] = field(default_factory=dict)  # "loss" and its terms; in on_epoch, means over the epoch
    metrics: dict[str, float] = field(default_factory=dict)  # in on_epoch: seconds, and metrics of the objectives
    # In on_epoch: the mean of R@1, R@5 and R@10 in % on the validation rows; None if the epoch was not evaluated.
    validation_score: float | None = None

    def to_scalars(self) -> dict[str, float]:
        """Return the losses, the metrics, the learning rate and the validation score by the names of metrics.jsonl."""
        valid = {} if self.validation_score is None else {"valid": self.validation_score}
        return {**self.losses, **self.metrics, **valid, "epoch": self.epoch, "learning_rate": self.learning_rate}


class Callback(Protocol):
    """The methods of a callback. Subclasses override the methods that they need; the methods here do nothing.

    Callbacks are called in the main process only. They do not change the result: the same recipe, data and seed give
    the same weights with and without callbacks, also if a callback draws random numbers with torch.

    A callback stops training if `on_step` or `on_epoch` returns True. Training stops after the epoch, so that the epoch
    is validated and saved. The same call resumes with the next epoch.

    If a callback raises an exception, training stops with a TrainingError that names the callback and the step. All
    completed epochs are saved. The same call resumes after the last completed epoch.

    Example:
        >>> import triptych
        >>> class StopAtLoss(triptych.Callback):
        ...     def __init__(self, loss):
        ...         self.loss = loss
        ...
        ...     def on_epoch(self, progress):
        ...         return progress.losses["loss"] < self.loss
        >>> space = triptych.train("trimodal", data="pairs.csv", epochs=1, callbacks=[StopAtLoss(0.1)])
    """

    def on_start(self, progress: TrainingProgress) -> None:
        """Called before the first step, also of a resumed run."""

    def on_step(self, progress: TrainingProgress) -> bool | None:  # noqa: ARG002
        """Called after each optimizer step. Return True to stop training after the epoch."""
        return None

    def on_epoch(self, progress: TrainingProgress) -> bool | None:  # noqa: ARG002
        """Called after each epoch, when the epoch is validated and saved. Return True to stop training."""
        return None

    def on_end(self, progress: TrainingProgress, error: BaseException | None) -> None:
        """Called after the last epoch, when the space is saved, or with the exception that stops training."""


class CallbackRunner:
    """Calls the methods of callbacks, and records whether a callback asked to stop training."""

    def __init__(
        self, callbacks: Sequence[Callback], device: torch.device, record_error: Callable[[str], object]
    ) -> None:
        self.callbacks, self.device, self.record_error = callbacks, device, record_error
        self.stop_reason = ""  # not empty if a callback asked to stop training
        self._loss_names: set[str] = set()

    @contextmanager
    def run(self, folder: Path, recipe: Recipe, steps_per_epoch: int, epochs_done: int) -> Iterator[None]:
        """Call `on_start` before the block and `on_end` after the block, also if the block raises an exception."""
        step, total_steps = epochs_done * steps_per_epoch, recipe.training.epochs * steps_per_epoch
        learning_rate = compute_learning_rate(recipe, step, total_steps)
        self._steps_per_epoch = steps_per_epoch
        self._progress = TrainingProgress(
            folder, recipe, epochs_done, step, recipe.training.epochs, total_steps, learning_rate
        )
        started: list[Callback] = []
        try:
            for callback in self.callbacks:
                started.append(callback)
                self._call(callback, "on_start")
            yield
        except BaseException as error:
            for failure in self._end(started, error):
                notify(str(failure))
            raise
        for failure in self._end(started, None):
            raise failure

    def start_epoch(self, epoch: int) -> None:
        """Set the current epoch, counted from 0."""
        self._progress = replace(self._progress, epoch=epoch + 1, step=epoch * self._steps_per_epoch)

    def step(self, losses: dict[str, float]) -> None:
        """Call `on_step` of all callbacks after a step."""
        progress = self._progress
        learning_rate = compute_learning_rate(progress.recipe, progress.step, progress.total_steps)
        self._progress = replace(progress, step=progress.step + 1, learning_rate=learning_rate, losses=dict(losses))
        self._loss_names |= losses.keys()
        for callback in self.callbacks:
            self._call(callback, "on_step")

    def end_epoch(self, metrics: dict[str, float]) -> None:
        """Call `on_epoch` of all callbacks after an epoch with these metrics."""
        others = {name: value for name, value in metrics.items() if name not in {*self._loss_names, "epoch", "valid"}}
        self._progress = replace(
            self._progress,
            step=self._progress.epoch * self._steps_per_epoch,
            losses={name: value for name, value in metrics.items() if name in self._loss_names},
            metrics=others,
            validation_score=metrics.get("valid"),
        )
        for callback in self.callbacks:
            self._call(callback, "on_epoch")
        self._progress = replace(self._progress, metrics={}, validation_score=None)

    def _end(self, callbacks: Sequence[Callback], error: BaseException | None) -> list[TrainingError]:
        """Call `on_end` of all callbacks, also if one of them raises. Return the errors that they raised."""
        failures: list[TrainingError] = []
        for callback in callbacks:
            try:
                self._call(callback, "on_end", error)
            except TrainingError as failure:
                failures.append(failure)
        return failures

    def _call(self, callback: Callback, method: str, *arguments: object) -> None:
        progress = self._progress
        cpu_state, device_state = torch.get_rng_state(), read_rng_state(self.device)
        position = f"{type(callback).__name__}.{method}, epoch {progress.epoch}, step {progress.step}"
        try:
            result = getattr(callback, method)(progress, *arguments)
        except Exception as error:
            reason = f"callback {position}: {type(error).__name__}: {error}"
            with suppress(OSError):
                self.record_error(reason)
            remedy = "completed epochs are saved; correct or remove the callback, and run the same call to resume"
            raise TrainingError(f"{reason}; {remedy}") from error
        finally:
            torch.set_rng_state(cpu_state)
            set_rng_state(device_state, self.device)
        if isinstance(result, bool | np.bool_) and result:
            self.stop_reason = self.stop_reason or position


def check_callback(callback: object) -> None:
    """Raise UsageError if an object is not a callback, or has a misspelled method such as on_epoch_end."""
    name = callback.__name__ if isinstance(callback, type) else type(callback).__name__
    for method in (attribute for attribute in dir(callback) if attribute.startswith("on_")):
        if method not in METHODS:
            raise UsageError(f"callback {name}: {describe_unknown('method', method, METHODS)}")
    missing = [method for method in METHODS if not callable(getattr(callback, method, None))]
    if isinstance(callback, type) or missing:
        problem = "is a class, not an object" if isinstance(callback, type) else f"has no method {missing[0]}"
        raise UsageError(f"callback {name} {problem}; give an object of a subclass of triptych.Callback")
