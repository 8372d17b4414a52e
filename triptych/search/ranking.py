"""Rank the items of one modality for a query, and compute their relevance.

If the similarity of the space is not an inner product with the keys, inner products select a shortlist of items, which
the similarity then re-ranks. Relevance says how unusual a score is compared with the background: the scores of random
queries with random items of the collection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from triptych.interfaces import Features, Modality, Source, features_from_embeddings
from triptych.search.index import BACKGROUND_ITEMS, Gallery, GalleryMask
from triptych.search.item import VECTOR_COLUMNS, Hit, Item, can_query_with_keys, features_from_rows
from triptych.search.store import Store
from triptych.space import Space

RELEVANCE_THRESHOLD = 0.5  # hits with a lower relevance are probably not relevant
P_AT_THRESHOLD = 0.01  # fraction of random pairs that score at least as high as a hit at the threshold
TAIL_FRACTION = 0.005  # highest fraction of the background scores, to which the exponential tail is fitted
BACKGROUND_QUERIES = 100  # number of random queries in the background score distribution
MIN_QUERY_ITEMS = 8  # a modality with fewer items in the collection has no background queries
PARTS_SAMPLE = (40, 100)  # numbers of background queries and items if the similarity is not an inner product of keys
RERANK_FACTOR = 10  # number of items that are re-ranked per requested item, if the similarity needs re-ranking
MIN_RERANK, MAX_RERANK = 200, 1000  # limits of the number of re-ranked items
MAX_JOINT_BACKGROUND = 200  # number of background items for a query with several parts
DUPLICATE_DISTANCE_RATIO = 1e-3  # maximum squared distance of near-duplicates, relative to the gallery's mean
# Typical text queries, used as background queries if the collection has too few texts.
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
    """Scores (Q, B) of random queries of one modality with random items; NaN for the score of an item with itself."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores
        self.mean = float(np.nanmean(scores))
        std = float(np.nanstd(scores))
        self.std = std if std > 1e-9 else 1.0

    @cached_property
    def null_distribution(self) -> NullDistribution:
        """The null distribution of the standardised scores."""
        return NullDistribution((self.scores - self.mean) / self.std)


class NullDistribution:
    """The distribution of the scores of random pairs of query and item, with an exponential upper tail."""

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = np.sort(scores[np.isfinite(scores)])
        count = len(self.scores)
        self._tail_start = float(np.quantile(self.scores, 1 - TAIL_FRACTION)) if count else 0.0
        tail = self.scores[self.scores > self._tail_start]
        # The scale of an exponential tail is its mean excess. Without scores in the tail, use the standard deviation.
        scale = float((tail - self._tail_start).mean()) if len(tail) else float(self.scores.std()) if count else 0.0
        self._tail_scale = max(scale, 1e-9)

    def neg_log_p(self, scores: np.ndarray) -> np.ndarray:
        """Return -ln p, with p the fraction of random pairs that score at least as high.

        The values of different modalities are comparable.
        """
        count = max(1, len(self.scores))
        p_value = (count - np.searchsorted(self.scores, scores, side="left") + 0.5) / (count + 0.5)
        log_fraction, excess = np.log(TAIL_FRACTION), scores - self._tail_start
        log_p_in_tail = np.minimum(log_fraction - excess / self._tail_scale, log_fraction)
        return -np.where(scores > self._tail_start, log_p_in_tail, np.log(np.maximum(p_value, TAIL_FRACTION)))

    def relevance(self, scores: np.ndarray) -> np.ndarray:
        """Return 0.01 / (0.01 + p), with p the fraction of random pairs that score at least as high."""
        return P_AT_THRESHOLD / (P_AT_THRESHOLD + np.exp(-self.neg_log_p(scores)))


class BackgroundScores:
    """Samples the scores of random queries with random items of a collection."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._is_exact = space.similarity.is_exact
        keys_suffice = can_query_with_keys(space.similarity, space.recipe.space.embed_dim)
        self._can_query_with_keys = keys_suffice and not space.similarity.reads_parts

    def sample_queries(self, store: Store, modality: Modality, gallery: Gallery) -> tuple[np.ndarray, Features | None]:
        """Return row ids and features of random items of a modality, to be used as queries.

        If the collection has too few texts, return common phrases, with row id -1. If it has too few items of another
        modality, return None instead of features.
        """
        if len(gallery) >= MIN_QUERY_ITEMS:
            row_ids, keys = gallery.sample(BACKGROUND_QUERIES if self._is_exact else PARTS_SAMPLE[0])
            return row_ids, self._load_features(store, row_ids, keys, modality)
        if modality != "text":
            return np.array([-1]), None
        return np.full(len(BACKGROUND_PHRASES), -1), self._phrase_features

    def score_items(
        self, store: Store, query_row_ids: np.ndarray, queries: Features, modality: Modality, gallery: Gallery
    ) -> ScoreDistribution:
        """Score queries with random items of a modality. The score of an item with itself is NaN."""
        row_ids, keys = gallery.sample(BACKGROUND_ITEMS if self._is_exact else PARTS_SAMPLE[1])
        if self._is_exact:
            scores = self.space.similarity.query(queries).float().numpy() @ keys.T
        else:
            features = self._load_features(store, row_ids, keys, modality)
            scores = self.space.scores(queries, features).float().numpy().copy()
        scores[query_row_ids[:, None] == row_ids] = np.nan
        return ScoreDistribution(scores)

    @cached_property
    def _phrase_features(self) -> Features:
        sources = [Source("text", phrase) for phrase in BACKGROUND_PHRASES]
        reads_parts = self.space.similarity.reads_parts
        return self.space.embed(sources, "text", with_parts=reads_parts, prompt_name="query").features

    def _load_features(self, store: Store, row_ids: np.ndarray, keys: np.ndarray, modality: Modality) -> Features:
        if self._can_query_with_keys:
            return features_from_embeddings(torch.from_numpy(np.array(keys)), modality)
        return load_features(store, row_ids, self.space, modality)


def load_features(store: Store, row_ids: np.ndarray, space: Space, modality: Modality) -> Features:
    """Load the stored features of items of a modality."""
    rows = store.take(VECTOR_COLUMNS, row_ids)
    return features_from_rows([rows[int(row_id)] for row_id in row_ids], space.recipe.space.embed_dim, modality)


@dataclass(frozen=True)
class EmbeddedPart:
    """An embedded part of a query."""

    features: Features  # features of one item
    weight: float


@dataclass(frozen=True)
class RankedItems:
    """Items of one modality, best first."""

    gallery: Gallery
    row_ids: np.ndarray  # (C,)
    keys: np.ndarray  # (C, S)
    part_scores: np.ndarray  # (C, P): the similarity to each part of the query
    scores: np.ndarray  # (C,)
    neg_log_p: np.ndarray  # (C,)
    relevance: np.ndarray  # (C,)


class Ranker:
    """Ranks the items of one modality for a query; distributions[p] has the background scores of query part p."""

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
        query_vectors = [space.similarity.query(part.features)[0].float().numpy() for part in parts]
        self.query_vectors = np.array(query_vectors)  # (P, S)
        weights = np.array([part.weight for part in parts])
        self.weights = weights / np.abs(weights).max()  # only the ratios of the weights affect the ranking
        self.mean = np.array([distribution.mean for distribution in distributions])
        self.std = np.array([distribution.std for distribution in distributions])
        self.is_single_positive = len(parts) == 1 and weights[0] > 0
        if self.is_single_positive:
            self.null_distribution = distributions[0].null_distribution
        else:
            self.null_distribution = NullDistribution(self._combine_parts(_sample_joint_scores(distributions)))

    def rank(self, k: int, mask: GalleryMask | None = None) -> RankedItems:
        """Return the k best items among those that the mask selects."""
        row_ids, keys = self._shortlist(k, mask)
        part_scores = self._score_parts(row_ids, keys)
        totals = self._combine_parts(part_scores)
        order = np.argsort(-totals, kind="stable")[:k]
        totals, part_scores = totals[order], part_scores[order]
        scores = part_scores[:, 0] if self.is_single_positive else totals
        neg_log_p, relevance = self.null_distribution.neg_log_p(totals), self.null_distribution.relevance(totals)
        return RankedItems(self.gallery, row_ids[order], keys[order], part_scores, scores, neg_log_p, relevance)

    def _shortlist(self, k: int, mask: GalleryMask | None) -> tuple[np.ndarray, np.ndarray]:
        # Unless negative parts are clipped, the total is linear in the key, so a search with one vector is sufficient.
        weighted_vectors = (self.weights / self.std)[:, None] * self.query_vectors  # (P, S)
        is_positive = self.weights > 0
        directions = [weighted_vectors.sum(axis=0)]
        if is_positive.any() and not is_positive.all():
            directions.append(weighted_vectors[is_positive].sum(axis=0))
        is_final = self.space.similarity.is_exact and len(directions) == 1
        count = k if is_final else max(k, min(MAX_RERANK, max(MIN_RERANK, RERANK_FACTOR * k)))
        shortlists = [self.gallery.search(direction.astype(np.float32), count, mask) for direction in directions]
        row_ids, keys = (np.concatenate(arrays) for arrays in zip(*shortlists, strict=True))
        if len(shortlists) == 1:
            return row_ids, keys
        row_ids, first = np.unique(row_ids, return_index=True)
        return row_ids, keys[first]

    def _score_parts(self, row_ids: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return the similarity of items to each part of the query: (C, P)."""
        if self.space.similarity.is_exact or not len(row_ids):
            return keys @ self.query_vectors.T
        features = load_features(self.store, row_ids, self.space, self.modality)
        scores = [self.space.scores(part.features, features)[0] for part in self.parts]
        return np.stack([column.float().numpy() for column in scores], axis=1)

    def _combine_parts(self, part_scores: np.ndarray) -> np.ndarray:
        """Combine the scores of all parts: standardise, weight, and clip negative parts at zero.

        total = Σ w_p z_p over positive parts - Σ |w_p| max(0, z_p) over negative parts,   z_p = (s_p - mean_p) / std_p
        mean_p and std_p are of the background scores. Without positive parts, total = -Σ |w_p| z_p.
        """
        z = (part_scores - self.mean) / self.std
        is_positive = self.weights > 0
        negative_scores = np.maximum(z[:, ~is_positive], 0) if is_positive.any() else z[:, ~is_positive]
        return z[:, is_positive] @ self.weights[is_positive] + negative_scores @ self.weights[~is_positive]


def _sample_joint_scores(distributions: Sequence[ScoreDistribution]) -> np.ndarray:
    """Return the background scores of all query parts for random pairs of query and item: (pairs, P).

    The parts of a random query are assumed independent, so the scores of part i are shifted by i background queries.
    """
    max_queries = max(len(distribution.scores) for distribution in distributions)
    samples = (distribution.scores[:, :MAX_JOINT_BACKGROUND] for distribution in distributions)
    rows = [np.resize(scores, (max_queries, scores.shape[1])) for scores in samples]
    return np.stack([np.roll(scores, i, axis=0).ravel() for i, scores in enumerate(rows)], axis=1)


def merge_hits(
    items: Mapping[int, Item], rankings: Sequence[RankedItems], excluded: set[int], k: int, fold: bool
) -> list[Hit]:
    """Merge the ranked items of all modalities by p-value, without the excluded row ids.

    If `fold` is True, a near-duplicate of a hit is not listed. Its id is added to the `duplicates` of the hit.
    """
    candidates = [(ranked, i) for ranked in rankings for i in range(len(ranked.row_ids))]
    listed: list[tuple[np.ndarray, Hit, list[str]]] = []
    for ranked, i in sorted(candidates, key=lambda candidate: -candidate[0].neg_log_p[candidate[1]]):
        item, key = items.get(int(ranked.row_ids[i])), ranked.keys[i]
        if item is None or item.row_id in excluded:
            continue
        max_distance = DUPLICATE_DISTANCE_RATIO * ranked.gallery.mean_squared_distance
        duplicates = (ids for other, hit, ids in listed if _is_duplicate(item, key, hit.item, other, max_distance))
        if fold and (ids := next(duplicates, None)) is not None:
            ids.append(item.id)
        elif len(listed) < k:
            part_scores = tuple(map(float, ranked.part_scores[i]))
            listed.append((key, Hit(item, float(ranked.scores[i]), float(ranked.relevance[i]), part_scores), []))
    return [replace(hit, duplicates=tuple(ids)) for _, hit, ids in listed]


def _is_duplicate(item: Item, key: np.ndarray, other: Item, other_key: np.ndarray, max_distance: float) -> bool:
    if item.source.modality != other.source.modality:
        return False
    return item.content_hash == other.content_hash or float(((key - other_key) ** 2).sum()) < max_distance
