"""What random questions score with random items of a collection, for each kind of question and item."""

from __future__ import annotations

import numpy as np
import torch

from triptych.interfaces import Features, Modality, Source
from triptych.search.entry import can_query_with_keys, features_from_rows
from triptych.search.gallery import BACKGROUND_ITEMS, Gallery
from triptych.search.relevance import BACKGROUND_PHRASES, ScoreDistribution
from triptych.search.store import VECTOR_COLUMNS, Store, Version
from triptych.space import Space, features_without_parts

BACKGROUND_QUERIES = 100
MIN_QUERY_ITEMS = 8  # with fewer items than this, a modality cannot stand for questions
PARTS_SAMPLE = (40, 100)  # questions and items, where a score compares parts


class BackgroundScores:
    """Scores of random pairs, worked out once for each kind of question, kind of item and version of the store."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._has_exact_keys = space.similarity.is_exact
        self._can_query_with_keys = (
            can_query_with_keys(space.similarity, space.recipe.space.embed_dim) and not space.similarity.reads_parts
        )
        self._phrase_features: Features | None = None
        self._distributions: dict[tuple[Version, Modality, Modality], ScoreDistribution] = {}

    def estimate(
        self,
        store: Store,
        version: Version,
        query_gallery: tuple[Modality, Gallery],
        item_gallery: tuple[Modality, Gallery],
        fallback_query: Features,
    ) -> ScoreDistribution:
        """What random questions of a kind score with random items; own is asked, where no other question can be had."""
        (query_modality, queries), (item_modality, gallery) = query_gallery, item_gallery
        key = (version, query_modality, item_modality)
        if key not in self._distributions:
            self._distributions = {k: v for k, v in self._distributions.items() if k[0] == version}
            query_row_ids, query_features = self._sample_queries(store, query_modality, queries)
            row_ids, keys = gallery.sample(BACKGROUND_ITEMS if self._has_exact_keys else PARTS_SAMPLE[1])
            scores = self._score(
                store,
                query_features if query_features is not None else fallback_query,
                row_ids,
                keys,
                item_modality,
            )
            scores[query_row_ids[:, None] == row_ids] = np.nan
            if query_features is None:
                return ScoreDistribution(scores)
            self._distributions[key] = ScoreDistribution(scores)
        return self._distributions[key]

    def _sample_queries(self, store: Store, modality: Modality, gallery: Gallery) -> tuple[np.ndarray, Features | None]:
        """The numbers and features of random questions of a modality: items of the collection, else plain phrases."""
        if len(gallery) >= MIN_QUERY_ITEMS:
            row_ids, keys = gallery.sample(BACKGROUND_QUERIES if self._has_exact_keys else PARTS_SAMPLE[0])
            return row_ids, self._load_features(store, row_ids, keys, modality)
        if modality != "text":
            return np.array([-1]), None
        if self._phrase_features is None:
            sources = [Source("text", phrase) for phrase in BACKGROUND_PHRASES]
            self._phrase_features = self.space.embed(
                sources, "text", with_parts=self.space.similarity.reads_parts
            ).features
        return np.full(len(self._phrase_features.embedding), -1), self._phrase_features

    def _score(
        self,
        store: Store,
        queries: Features,
        row_ids: np.ndarray,
        keys: np.ndarray,
        item_modality: Modality,
    ) -> np.ndarray:
        if self._has_exact_keys:
            return self.space.similarity.query(queries).float().numpy() @ keys.T
        features = self._load_features(store, row_ids, keys, item_modality)
        return self.space.scores(queries, features).float().numpy().copy()

    def _load_features(self, store: Store, row_ids: np.ndarray, keys: np.ndarray, modality: Modality) -> Features:
        if self._can_query_with_keys:
            return features_without_parts(torch.from_numpy(np.array(keys)), modality)
        rows = store.take(VECTOR_COLUMNS, row_ids)
        return features_from_rows(
            [rows[int(number)] for number in row_ids], self.space.recipe.space.embed_dim, modality
        )
