"""One epoch of training: an optimizer step for each batch. The trainer and the studies share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch

from triptych.errors import InputError, TrainingError
from triptych.interfaces import Batch
from triptych.space import Space
from triptych.training.distributed import SINGLE_PROCESS, DistributedContext
from triptych.training.objective_set import ObjectiveSet
from triptych.training.optimizer import set_learning_rates
from triptych.training.step import check_divergence, take_step


def _make_error(reason: str, row_ids: Sequence[str]) -> TrainingError:  # noqa: ARG001 - the trainer's writes them down
    return TrainingError(reason)


def train_one_epoch(
    space: Space,
    objectives: ObjectiveSet,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    epoch: int,
    steps_per_epoch: int,
    context: DistributedContext = SINGLE_PROCESS,
    on_step: Callable[[dict[str, float], Batch], None] | None = None,
    make_error: Callable[[str, Sequence[str]], TrainingError] = _make_error,
) -> dict[str, float]:
    """Train on all batches of one epoch (numbered from 0) and return its metrics; empty if there was no batch.

    The metrics are the number of steps, the mean of each loss term and what the objectives log. A step whose loss or
    gradient is not finite, collapses or diverges raises make_error(reason, row ids of the batch).
    """
    recipe, training = space.recipe, space.recipe.training
    # Seeded anew each epoch, so that a resumed run draws the same random numbers as an uninterrupted one.
    context.seed(training.seed * 1_000_003 + epoch + 1)
    space.train()
    totals, counts = Counter[str](), Counter[str]()
    first_values: dict[str, float] = {}
    for step, batch in enumerate(batches):
        set_learning_rates(optimizer, recipe, epoch * steps_per_epoch + step, training.epochs * steps_per_epoch)
        try:
            values = take_step(space, objectives, optimizer, batch.to(context.device), training, context)
            first_values = values | first_values
            check_divergence(values, first_values)
        except InputError as error:
            raise make_error(f"epoch {epoch + 1}, step {step + 1}: {error}", batch.row_ids) from error
        totals.update(values)
        counts.update(values.keys())
        if on_step:
            on_step(values, batch)
    if not totals:
        return {}
    means = {name: total / counts[name] for name, total in totals.items()}
    return {"steps": counts["loss"], **means, **objectives.metrics_to_log()}
