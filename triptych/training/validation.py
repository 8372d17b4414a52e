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


def score(space: Space, rows: Sequence[Row], recipe: Recipe) -> float:
    """Mean of R@1, R@5 and R@10, in %, over both directions of every pair that is trained."""
    trained = {frozenset(pair) for use in recipe.objectives for pair in use.pairs}
    found = evaluate(space, rows, show=False, cache=recipe.data.cache, draws=0).directions
    recalls = [d.recall[k] for d in found if {d.query, d.gallery} in trained for k in (1, 5, 10)]
    return 100 * statistics.mean(recalls) if recalls else 0.0


def can_judge(rows: Sequence[Row], recipe: Recipe) -> bool:
    """Whether some row has both sides of a pair that is trained."""
    return any(
        a in row.modalities and b in row.modalities for row in rows for u in recipe.objectives for a, b in u.pairs
    )


@dataclass(frozen=True)
class Standing:
    """How a run stands after its last look at the validation rows."""

    best: float = -math.inf
    last: float = -math.inf
    since: int = 0  # looks since the best
    looked: bool = False  # was the epoch that has just ended looked at?

    def __str__(self) -> str:
        return "" if math.isinf(self.best) else f" · valid {self.last:.1f} (best {self.best:.1f})"

    @property
    def is_best(self) -> bool:
        """Whether the space as it is now is the one to keep: it was looked at and is the best, or none was yet."""
        return math.isinf(self.best) or (self.looked and self.since == 0)

    def after(self, found: float) -> Standing:
        """The standing after one more look."""
        better = found > self.best
        return Standing(found if better else self.best, found, 0 if better else self.since + 1, looked=True)

    def unlooked(self) -> Standing:
        """The standing after an epoch that nobody looked at."""
        return replace(self, looked=False)

    def is_over(self, patience: int) -> bool:
        """Whether there was no better look for too long."""
        return bool(patience) and self.since >= patience
