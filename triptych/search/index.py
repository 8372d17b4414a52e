"""The nearest keys to a query, by exact scan."""

import numpy as np


def nearest(query: np.ndarray, keys: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and scores of the k keys (M, S) with the largest <query, key>, best first; ties by position."""
    scores = keys @ query  # (M,)
    k = min(k, len(scores))
    shortlist = np.flatnonzero(scores >= np.partition(scores, -k)[-k]) if k else np.empty(0, int)
    order = shortlist[np.argsort(-scores[shortlist], kind="stable")][:k]
    return order, scores[order]
