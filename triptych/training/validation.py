"""One number for how good an epoch is, for all trained directions together, and what it means for the run."""

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
    """Mean of R@1, R@5 and R@10, in %, over both directions of every pair that is trained."""
    trained_pairs = {frozenset(pair) for config in recipe.objectives for pair in config.pairs}
    directions = evaluate(space, rows, show_progress=False, cache=recipe.data.cache, num_resamples=0).directions
    recalls = [d.recall[k] for d in directions if {d.query, d.gallery} in trained_pairs for k in (1, 5, 10)]
    return 100 * statistics.mean(recalls) if recalls else 0.0


def has_validation_pairs(rows: Sequence[Row], recipe: Recipe) -> bool:
    """Whether some row has both sides of a pair that is trained."""
    return any(
        a in row.modalities and b in row.modalities
        for row in rows
        for config in recipe.objectives
        for a, b in config.pairs
    )


@dataclass(frozen=True)
class EarlyStopping:
    """How a run stands after its last look at the validation rows."""

    best: float = -math.inf
    last: float = -math.inf
    num_bad_evals: int = 0  # looks since the best
    was_evaluated: bool = False  # was the epoch that has just ended looked at?

    def __str__(self) -> str:
        return "" if math.isinf(self.best) else f" · valid {self.last:.1f} (best {self.best:.1f})"

    @property
    def is_best(self) -> bool:
        """Whether the space as it is now is the one to keep: it was looked at and is the best, or none was yet."""
        return math.isinf(self.best) or (self.was_evaluated and self.num_bad_evals == 0)

    def update(self, score: float) -> EarlyStopping:
        """The standing after one more look."""
        is_better = score > self.best
        return EarlyStopping(
            score if is_better else self.best, score, 0 if is_better else self.num_bad_evals + 1, was_evaluated=True
        )

    def skip(self) -> EarlyStopping:
        """The standing after an epoch that nobody looked at."""
        return replace(self, was_evaluated=False)

    def should_stop(self, patience: int) -> bool:
        """Whether there was no better look for too long."""
        return bool(patience) and self.num_bad_evals >= patience
