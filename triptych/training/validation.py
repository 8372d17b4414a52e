"""The validation score: the mean recall of the trained pairs on the validation rows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

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
    pairs = {frozenset(pair) for config in recipe.objectives for pair in config.pairs}
    return any(pair <= set(row.modalities) for row in rows for pair in pairs)
