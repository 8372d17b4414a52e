"""One epoch of training: an optimizer step for each batch. Used by `train` and by the studies."""

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


def _make_error(reason: str, row_ids: Sequence[str]) -> TrainingError:  # noqa: ARG001 - RunDirectory.abort uses it
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
    """Train on all batches of an epoch (numbered from 0) and return its metrics, or {} if there was no batch.

    The metrics are the number of steps, the mean of each loss term and the metrics that the objectives log.
    make_error(reason, row ids of the batch) is raised if a loss or gradient is not finite, a loss term diverges, or
    the embeddings collapse.
    """
    recipe, training = space.recipe, space.recipe.training
    # Seed each epoch, so that a resumed run draws the same random numbers as an uninterrupted run.
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
