"""Early stopping: stop training when the validation score no longer improves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class EarlyStopping:
    """The best and the last validation score, and the number of evaluations since the best score."""

    best: float = -math.inf
    last: float = -math.inf
    num_bad_evals: int = 0  # evaluations since the best score
    was_evaluated: bool = False  # whether the last epoch was evaluated

    def __str__(self) -> str:
        return "" if math.isinf(self.best) else f" · validation {self.last:.1f} (best {self.best:.1f})"

    @property
    def is_best(self) -> bool:
        """Whether to save the current space: its score is the best so far, or no epoch was evaluated yet."""
        return math.isinf(self.best) or (self.was_evaluated and self.num_bad_evals == 0)

    def update(self, score: float) -> EarlyStopping:
        """Return the state after an evaluation."""
        num_bad_evals = 0 if score > self.best else self.num_bad_evals + 1
        return EarlyStopping(max(self.best, score), score, num_bad_evals, was_evaluated=True)

    def skip(self) -> EarlyStopping:
        """Return the state after an epoch without evaluation."""
        return replace(self, was_evaluated=False)

    def should_stop(self, patience: int) -> bool:
        """Return whether the last `patience` evaluations brought no new best score. With patience 0, return False."""
        return bool(patience) and self.num_bad_evals >= patience
