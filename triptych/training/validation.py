"""The validation score of an epoch, and early stopping."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from triptych.data.manifest import Row
from triptych.evaluation.evaluate import evaluate
from triptych.recipe import Recipe
from triptych.space import Space


def compute_validation_score(space: Space, rows: Sequence[Row], recipe: Recipe) -> float:
    """Return the mean of R@1, R@5 and R@10 in % over both directions of all trained pairs."""
    trained_pairs = {frozenset(pair) for config in recipe.objectives for pair in config.pairs}
    directions = evaluate(space, rows, show_progress=False, cache=recipe.data.cache, num_resamples=0).directions
    recalls = [d.recall[k] for d in directions if {d.query, d.gallery} in trained_pairs for k in (1, 5, 10)]
    return 100 * statistics.mean(recalls) if recalls else 0.0


def has_validation_pairs(rows: Sequence[Row], recipe: Recipe) -> bool:
    """Return whether any row has both modalities of a trained pair."""
    return any(
        a in row.modalities and b in row.modalities
        for row in rows
        for config in recipe.objectives
        for a, b in config.pairs
    )


@dataclass(frozen=True)
class EarlyStopping:
    """The best and the last validation score, and the number of evaluations since the best."""

    best: float = -math.inf
    last: float = -math.inf
    num_bad_evals: int = 0  # evaluations since the best score
    was_evaluated: bool = False  # whether the last epoch was evaluated

    def __str__(self) -> str:
        return "" if math.isinf(self.best) else f" · valid {self.last:.1f} (best {self.best:.1f})"

    @property
    def is_best(self) -> bool:
        """Whether to save the current space: it has the best score so far, or no space was evaluated yet."""
        return math.isinf(self.best) or (self.was_evaluated and self.num_bad_evals == 0)

    def update(self, score: float) -> EarlyStopping:
        """Return the state after an evaluation."""
        is_better = score > self.best
        return EarlyStopping(
            score if is_better else self.best, score, 0 if is_better else self.num_bad_evals + 1, was_evaluated=True
        )

    def skip(self) -> EarlyStopping:
        """Return the state after an epoch without evaluation."""
        return replace(self, was_evaluated=False)

    def should_stop(self, patience: int) -> bool:
        """Return whether the last `patience` evaluations brought no new best score. With patience 0, return False."""
        return bool(patience) and self.num_bad_evals >= patience
