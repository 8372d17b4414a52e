"""How unusual a score is against the background of a collection: what lets one say that nothing matches."""

from __future__ import annotations

import math

import numpy as np

RELEVANT = 0.5  # below it, a hit is probably not relevant
FEW = 8  # with fewer items than this there is no background to speak of


class Background:
    """The scores of one query against a sample of everything in a modality, which mostly does not match it."""

    def __init__(self, scores: np.ndarray, items: int) -> None:
        self.items = items
        self.centre = float(np.median(scores)) if len(scores) else 0.0
        spread = 1.4826 * float(np.median(np.abs(scores - self.centre))) if len(scores) else 0.0
        self.spread = max(spread, 1e-6)

    def surprise(self, scores: np.ndarray) -> np.ndarray:
        """By how many spreads scores lie above the centre: comparable between modalities."""
        return (scores - self.centre) / self.spread

    def relevance(self, scores: np.ndarray) -> np.ndarray:
        """From 0 to 1."""
        return np.array([1 / (1 + math.exp(-(min(s, 60.0) - 3.0))) for s in self.surprise(scores)])
