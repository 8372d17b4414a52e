"""One modality of a collection put in order for a query: a shortlist by keys, then the space's own similarity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triptych.contracts import Features, Modality
from triptych.search.entry import unpacked
from triptych.search.gallery import Gallery
from triptych.search.relevance import Background, Kind
from triptych.search.store import SCORING, Store
from triptych.space import Space

WIDER = 10  # times as many items as are wanted are looked at closely, where keys do not give the last order
LEAST, MOST = 200, 1000
FEWER = 200  # items that stand for the background of a query of several parts


@dataclass(frozen=True)
class Asked:
    """A part of a query, embedded."""

    features: Features  # of one item
    modality: Modality
    weight: float


@dataclass(frozen=True)
class Ranked:
    """Items of one modality, best first: numbers, keys, similarity to each part, score, rarity and relevance."""

    gallery: Gallery
    numbers: np.ndarray  # (C,)
    keys: np.ndarray  # (C, S)
    parts: np.ndarray  # (C, P)
    score: np.ndarray  # (C,)
    rarity: np.ndarray  # (C,)
    relevance: np.ndarray  # (C,)


@dataclass(frozen=True)
class Allowed:
    """Which items may be found: a condition, and the numbers that fulfil it."""

    condition: str = ""
    numbers: np.ndarray | None = None


class Ranking:
    """A query against one modality; kinds holds what each part's kind of question scores at random."""

    def __init__(
        self,
        space: Space,
        store: Store,
        gallery: Gallery,
        gallery_is: Modality,
        asked: Sequence[Asked],
        kinds: Sequence[Kind],
    ) -> None:
        self.space, self.store, self.gallery, self.asked = space, store, gallery, asked
        self.gallery_is: Modality = gallery_is
        self.vectors = np.array([space.similarity.query(part.features)[0].float().numpy() for part in asked])  # (P, S)
        weights = np.array([part.weight for part in asked])
        self.weights = weights / np.abs(weights).max()  # only their proportions matter
        self.centre = np.array([kind.centre for kind in kinds])
        self.spread = np.array([kind.spread for kind in kinds])
        self.is_plain = len(asked) == 1 and weights[0] > 0
        self.background = kinds[0].background if self.is_plain else Background(self._total(_together(kinds)))

    def best(self, k: int, allowed: Allowed) -> Ranked:
        """The k best items, of those allowed."""
        numbers, keys = self._shortlist(k, allowed)
        parts = self._parts(numbers, keys)
        total = self._total(parts)
        order = np.argsort(-total, kind="stable")[:k]
        total, parts = total[order], parts[order]
        score = parts[:, 0] if self.is_plain else total
        rarity, relevance = self.background.rarity(total), self.background.relevance(total)
        return Ranked(self.gallery, numbers[order], keys[order], parts, score, rarity, relevance)

    def _shortlist(self, k: int, allowed: Allowed) -> tuple[np.ndarray, np.ndarray]:
        slopes = (self.weights / self.spread)[:, None] * self.vectors  # (P, S): but for minus, the total is linear
        liked = self.weights > 0
        directions = [slopes.sum(axis=0)]
        if liked.any() and not liked.all():
            directions.append(slopes[liked].sum(axis=0))
        is_final = self.space.similarity.exact and len(directions) == 1
        count = k if is_final else max(k, min(MOST, max(LEAST, WIDER * k)))
        found = [
            self.gallery.nearest(d.astype(np.float32), count, allowed.condition, allowed.numbers) for d in directions
        ]
        numbers, keys = (np.concatenate(some) for some in zip(*found, strict=True))
        if len(found) == 1:
            return numbers, keys
        numbers, first = np.unique(numbers, return_index=True)
        return numbers, keys[first]

    def _parts(self, numbers: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """The space's similarity of some items to each part of the query: (C, P)."""
        if self.space.similarity.exact or not len(numbers):
            return keys @ self.vectors.T
        rows = self.store.numbered(SCORING, numbers)
        features = unpacked([rows[int(number)] for number in numbers], self.space.recipe.space.width)
        scores = [self.space.scores(part.features, part.modality, features, self.gallery_is)[0] for part in self.asked]
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


def _together(kinds: Sequence[Kind]) -> np.ndarray:
    """Scores of random pairs for all parts at once, (pairs, P).

    Parts of a random query have nothing to do with each other, so each is shifted: another question each.
    """
    most = max(len(kind.scores) for kind in kinds)
    rows = [np.resize(kind.scores[:, :FEWER], (most, min(FEWER, kind.scores.shape[1]))) for kind in kinds]
    return np.stack([np.roll(scores, i, axis=0).ravel() for i, scores in enumerate(rows)], axis=1)
