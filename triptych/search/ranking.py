"""One modality of a collection put in order for a query: a shortlist by keys, then the space's own similarity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triptych.interfaces import Features, Modality
from triptych.search.entry import features_from_rows
from triptych.search.gallery import Gallery
from triptych.search.relevance import NullDistribution, ScoreDistribution
from triptych.search.store import VECTOR_COLUMNS, Store
from triptych.space import Space

RERANK_FACTOR = 10  # times as many items as are wanted are looked at closely, where keys do not give the last order
MIN_RERANK, MAX_RERANK = 200, 1000
MAX_JOINT_BACKGROUND = 200  # items that stand for the background of a query of several parts


@dataclass(frozen=True)
class EmbeddedPart:
    """A part of a query, embedded."""

    features: Features  # of one item
    modality: Modality
    weight: float


@dataclass(frozen=True)
class RankedItems:
    """Items of one modality, best first: numbers, keys, similarity to each part, score, rarity and relevance."""

    gallery: Gallery
    row_ids: np.ndarray  # (C,)
    keys: np.ndarray  # (C, S)
    part_scores: np.ndarray  # (C, P)
    scores: np.ndarray  # (C,)
    neg_log_p: np.ndarray  # (C,)
    relevance: np.ndarray  # (C,)


@dataclass(frozen=True)
class FilterResult:
    """Which items may be found: a condition, and the numbers that fulfil it."""

    condition: str = ""
    row_ids: np.ndarray | None = None


class Ranker:
    """A query against one modality; kinds holds what each part's kind of question scores at random."""

    def __init__(
        self,
        space: Space,
        store: Store,
        gallery: Gallery,
        modality: Modality,
        parts: Sequence[EmbeddedPart],
        distributions: Sequence[ScoreDistribution],
    ) -> None:
        self.space, self.store, self.gallery, self.parts = space, store, gallery, parts
        self.modality: Modality = modality
        self.query_vectors = np.array(
            [space.similarity.query(part.features)[0].float().numpy() for part in parts]
        )  # (P, S)
        weights = np.array([part.weight for part in parts])
        self.weights = weights / np.abs(weights).max()  # only their proportions matter
        self.mean = np.array([kind.mean for kind in distributions])
        self.std = np.array([kind.std for kind in distributions])
        self.is_single_positive = len(parts) == 1 and weights[0] > 0
        self.null_distribution = (
            distributions[0].null_distribution
            if self.is_single_positive
            else NullDistribution(self._combine_parts(_sample_joint_scores(distributions)))
        )

    def rank(self, k: int, filter_result: FilterResult) -> RankedItems:
        """The k best items, of those allowed."""
        row_ids, keys = self._shortlist(k, filter_result)
        part_scores = self._score_parts(row_ids, keys)
        totals = self._combine_parts(part_scores)
        order = np.argsort(-totals, kind="stable")[:k]
        totals, part_scores = totals[order], part_scores[order]
        scores = part_scores[:, 0] if self.is_single_positive else totals
        neg_log_p, relevance = self.null_distribution.neg_log_p(totals), self.null_distribution.relevance(totals)
        return RankedItems(self.gallery, row_ids[order], keys[order], part_scores, scores, neg_log_p, relevance)

    def _shortlist(self, k: int, filter_result: FilterResult) -> tuple[np.ndarray, np.ndarray]:
        weighted_vectors = (self.weights / self.std)[
            :, None
        ] * self.query_vectors  # (P, S): but for minus, the total is linear
        is_positive = self.weights > 0
        directions = [weighted_vectors.sum(axis=0)]
        if is_positive.any() and not is_positive.all():
            directions.append(weighted_vectors[is_positive].sum(axis=0))
        is_final = self.space.similarity.is_exact and len(directions) == 1
        count = k if is_final else max(k, min(MAX_RERANK, max(MIN_RERANK, RERANK_FACTOR * k)))
        shortlists = [
            self.gallery.search(d.astype(np.float32), count, filter_result.condition, filter_result.row_ids)
            for d in directions
        ]
        row_ids, keys = (np.concatenate(some) for some in zip(*shortlists, strict=True))
        if len(shortlists) == 1:
            return row_ids, keys
        row_ids, first = np.unique(row_ids, return_index=True)
        return row_ids, keys[first]

    def _score_parts(self, row_ids: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """The space's similarity of some items to each part of the query: (C, P)."""
        if self.space.similarity.is_exact or not len(row_ids):
            return keys @ self.query_vectors.T
        rows = self.store.take(VECTOR_COLUMNS, row_ids)
        features = features_from_rows(
            [rows[int(number)] for number in row_ids], self.space.recipe.space.embed_dim, self.modality
        )
        scores = [self.space.scores(part.features, features)[0] for part in self.parts]
        return np.stack([column.float().numpy() for column in scores], axis=1)

    def _combine_parts(self, part_scores: np.ndarray) -> np.ndarray:
        """All parts together: standardised, weighted; what is not wanted counts only where it is there.

        total = Σ w_p z_p over the wanted - Σ |w_p| max(0, z_p) over the others,   z_p = (s_p - mean_p) / deviation_p
        with mean and deviation over the background. Where nothing is wanted: -Σ |w_p| z_p.
        """
        z = (part_scores - self.mean) / self.std
        is_positive = self.weights > 0
        negative_scores = np.maximum(z[:, ~is_positive], 0) if is_positive.any() else z[:, ~is_positive]
        return z[:, is_positive] @ self.weights[is_positive] + negative_scores @ self.weights[~is_positive]


def _sample_joint_scores(distributions: Sequence[ScoreDistribution]) -> np.ndarray:
    """Scores of random pairs for all parts at once, (pairs, P).

    Parts of a random query have nothing to do with each other, so each is shifted: another question each.
    """
    max_queries = max(len(kind.scores) for kind in distributions)
    rows = [
        np.resize(kind.scores[:, :MAX_JOINT_BACKGROUND], (max_queries, min(MAX_JOINT_BACKGROUND, kind.scores.shape[1])))
        for kind in distributions
    ]
    return np.stack([np.roll(scores, i, axis=0).ravel() for i, scores in enumerate(rows)], axis=1)
