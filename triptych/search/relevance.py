"""How unusual a score is against the background of a collection: what lets one say that nothing matches.

Background: what questions of this kind score with items of this kind when they have nothing to do with each other, seen
on questions and items drawn at random from the collection.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

RELEVANCE_THRESHOLD = 0.5  # below it, a hit is probably not relevant
P_AT_THRESHOLD = 0.01  # the share of random pairs that score as high as a hit on that line
TAIL_FRACTION = 0.005  # the share of the background from which its tail is extrapolated
# What people ask for: it stands for questions in words where the collection holds no texts.
BACKGROUND_PHRASES = (
    "a dog", "a cat", "a bird", "people talking", "a crowd", "a child laughing", "a man with a hat",
    "a woman singing", "music", "a guitar", "drums", "a piano", "rain", "wind in the trees", "the sea", "a river",
    "thunder", "fire", "footsteps", "a door closes", "a clock", "a bell", "a phone rings", "glass breaks", "a car",
    "a train", "an aeroplane", "a boat", "an engine", "a machine", "a street at night", "a house", "a kitchen",
    "food on a table", "a cup of coffee", "a tree", "a red flower", "grass", "mountains", "snow", "the sky",
    "a beach", "a horse", "a fish", "an insect", "a frog", "a computer", "a book", "writing on paper", "a chair",
    "a ball game", "someone running", "silence", "noise", "a blue shape", "something round", "two of them",
    "many small things", "a close view", "far away", "at the beginning", "high and fast", "low and slow",
    "nothing in particular",
)  # fmt: skip


class ScoreDistribution:
    """Scores of random pairs of one kind of question with one kind of item, (Q, B); NaN where both are the same."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores
        self.mean = float(np.nanmean(scores))
        std = float(np.nanstd(scores))
        self.std = std if std > 1e-9 else 1.0

    @cached_property
    def null_distribution(self) -> NullDistribution:
        """Of the standardised scores."""
        return NullDistribution((self.scores - self.mean) / self.std)


class NullDistribution:
    """Scores of random pairs, and how rare a score is among them."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = np.sort(scores[np.isfinite(scores)])
        count = len(self.scores)
        self._tail_start = float(np.quantile(self.scores, 1 - TAIL_FRACTION)) if count else 0.0
        tail = self.scores[self.scores > self._tail_start]
        # An exponential tail: its mean excess is its scale. With no tail seen, the spread must do.
        scale = float((tail - self._tail_start).mean()) if len(tail) else float(self.scores.std()) if count else 0.0
        self._tail_scale = max(scale, 1e-9)

    def neg_log_p(self, scores: np.ndarray) -> np.ndarray:
        """-ln of the share of random pairs that score at least as high: comparable between kinds of items."""
        count = max(1, len(self.scores))
        p_value = (count - np.searchsorted(self.scores, scores, side="left") + 0.5) / (count + 0.5)
        log_p_in_tail = np.log(TAIL_FRACTION) - (scores - self._tail_start) / self._tail_scale
        return -np.where(
            scores > self._tail_start,
            np.minimum(log_p_in_tail, np.log(TAIL_FRACTION)),
            np.log(np.maximum(p_value, TAIL_FRACTION)),
        )

    def relevance(self, scores: np.ndarray) -> np.ndarray:
        """From 0 to 1: rare / (rare + share of random pairs that score at least as high), rare = 0.01."""
        return P_AT_THRESHOLD / (P_AT_THRESHOLD + np.exp(-self.neg_log_p(scores)))
