"""One modality of a collection put in order for a query: a shortlist by keys, then the space's own similarity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triptych.contracts import Features, Modality
from triptych.search.entry import unpacked
from triptych.search.gallery import SAMPLE, Gallery
from triptych.search.relevance import Background
from triptych.search.store import SCORING, Store
from triptych.space import Space

WIDER = 10  # times as many items as are wanted are looked at closely, where keys do not give the last order
LEAST, MOST = 200, 1000
SAMPLE_PARTS = 200  # items for the background, where scoring one means comparing parts


@dataclass(frozen=True)
class Asked:
    """A part of a query, embedded."""

    features: Features  # of one item
    modality: Modality
    weight: float


@dataclass(frozen=True)
class Ranked:
    """Items of one modality, best first: their numbers, keys, similarity to each part, score, and relevance."""

    modality: Modality
    gallery: Gallery
    numbers: np.ndarray  # (C,)
    keys: np.ndarray  # (C, S)
    parts: np.ndarray  # (C, P)
    score: np.ndarray  # (C,)
    surprise: np.ndarray  # (C,)
    relevance: np.ndarray  # (C,)


class Ranking:
    """A query against one modality."""

    def __init__(
        self, space: Space, store: Store, modality: Modality, gallery: Gallery, asked: Sequence[Asked]
    ) -> None:
        self.space, self.store, self.gallery, self.asked = space, store, gallery, asked
        self.modality: Modality = modality
        vectors = [space.similarity.query(part.features)[0].float().numpy() for part in asked]
        self.vectors = np.array(vectors)  # (P, S)
        self.weights = np.array([part.weight for part in asked])
        numbers, keys = gallery.sample(SAMPLE if space.similarity.exact else SAMPLE_PARTS)
        sample = self._parts(numbers, keys)  # (B, P)
        self.centre, spread = sample.mean(axis=0), sample.std(axis=0)
        self.spread = np.where(spread > 1e-9, spread, 1.0)
        self.background = Background(self._total(sample), len(gallery))

    def best(self, k: int, allowed: np.ndarray | None) -> Ranked:
        """The k best items, of those allowed."""
        numbers, keys = self._shortlist(k, allowed)
        parts = self._parts(numbers, keys)
        total = self._total(parts)
        order = np.argsort(-total, kind="stable")[:k]
        total = total[order]
        return Ranked(
            self.modality,
            self.gallery,
            numbers[order],
            keys[order],
            parts[order],
            parts[order, 0] if len(self.asked) == 1 and self.weights[0] > 0 else total,
            self.background.surprise(total),
            self.background.relevance(total),
        )

    def _shortlist(self, k: int, allowed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        slopes = (self.weights / self.spread)[
            :, None
        ] * self.vectors  # (P, S): the total is linear in the key but for minus
        liked = self.weights > 0
        directions = [slopes.sum(axis=0)]
        if liked.any() and not liked.all():
            directions.append(slopes[liked].sum(axis=0))
        is_final = self.space.similarity.exact and len(directions) == 1
        count = k if is_final else min(MOST, max(LEAST, WIDER * k))
        found = [self.gallery.nearest(direction, max(k, count), allowed) for direction in directions]
        numbers, keys = (np.concatenate(some) for some in zip(*found, strict=True))
        numbers, first = np.unique(numbers, return_index=True) if len(found) > 1 else (numbers, np.arange(len(numbers)))
        return numbers, keys[first]

    def _parts(self, numbers: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """The space's similarity of some items to each part of the query: (C, P)."""
        if self.space.similarity.exact or not len(numbers):
            return keys @ self.vectors.T
        rows = self.store.numbered(SCORING, numbers)
        features = unpacked([rows[int(number)] for number in numbers], self.space.recipe.space.width)
        scores = [self.space.scores(part.features, part.modality, features, self.modality)[0] for part in self.asked]
        return np.stack([column.float().numpy() for column in scores], axis=1)

    def _total(self, parts: np.ndarray) -> np.ndarray:
        """All parts together: standardised, weighted; what is not wanted counts only where it is there.

        total = Σ w_p z_p over the wanted - Σ |w_p| max(0, z_p) over the others,   z_p = (s_p - mean_p) / deviation_p
        with mean and deviation over the background. Where nothing is wanted: -Σ |w_p| z_p.
        """
        z = (parts - self.centre) / self.spread
        liked = self.weights > 0
        against = np.maximum(z[:, ~liked], 0) if liked.any() else z[:, ~liked]
        return z[:, liked] @ self.weights[liked] + against @ self.weights[~liked]
