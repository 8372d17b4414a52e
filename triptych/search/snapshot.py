"""The data in memory that is derived from one version of the store of a collection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from triptych.interfaces import Modality
from triptych.search.index import Gallery, GalleryMask
from triptych.search.item import METADATA_COLUMNS, Item, item_from_row
from triptych.search.ranking import BackgroundScores, EmbeddedPart, RankedItems, Ranker, ScoreDistribution
from triptych.search.store import Store, Version
from triptych.space import Space

MAX_CACHED_ITEMS, MAX_CACHED_FILTERS = 20_000, 16  # a cache that exceeds its limit is emptied


class Snapshot:
    """The data in memory that is derived from one version of the store. Each new version gets a new snapshot.

    If the table was not rebuilt, the galleries of the previous snapshot are updated instead of loaded again.
    """

    def __init__(
        self, store: Store, space: Space, background: BackgroundScores, index_folder: Path, previous: Snapshot | None
    ) -> None:
        self.version: Version = store.version
        self.store, self.space = store, space
        self._background, self._index_folder = background, index_folder
        self._galleries, self._previous_galleries = dict[Modality, Gallery](), dict[Modality, Gallery]()
        # After a rebuild, the same row id belongs to another item.
        if previous is not None and previous.version[0] == self.version[0]:
            self._previous_galleries = previous._previous_galleries | previous._galleries
        self._filtered_row_ids: dict[str, np.ndarray] = {}
        self._masks: dict[tuple[Modality, str], GalleryMask] = {}
        self._items: dict[int, Item] = {}
        self._distributions: dict[tuple[Modality, Modality], ScoreDistribution] = {}

    def load_gallery(self, modality: Modality) -> Gallery:
        """Return the gallery of a modality, which contains the keys of its items."""
        if modality not in self._galleries:
            previous = self._previous_galleries.get(modality)
            self._galleries[modality] = Gallery.load(self.store, modality, self._index_folder, previous)
        return self._galleries[modality]

    def load_items(self, row_ids: Sequence[int]) -> dict[int, Item]:
        """Return a dictionary from row id to item. The dictionary also contains items that were loaded before."""
        missing = [row_id for row_id in row_ids if row_id not in self._items]
        if len(self._items) + len(missing) > MAX_CACHED_ITEMS:
            self._items.clear()
            missing = list(row_ids)
        if missing:
            rows = self.store.take(METADATA_COLUMNS, missing)
            self._items |= {row_id: item_from_row(row, self.store.roots) for row_id, row in rows.items()}
        return self._items

    def filter_row_ids(self, sql: str) -> np.ndarray:
        """Return the row ids of the items that satisfy an SQL condition, in ascending order."""
        if sql not in self._filtered_row_ids:
            if len(self._filtered_row_ids) >= MAX_CACHED_FILTERS:
                self._filtered_row_ids.clear()
                self._masks.clear()
            self._filtered_row_ids[sql] = np.sort(self.store.select_rows(["row_id"], sql)["row_id"].to_numpy())
        return self._filtered_row_ids[sql]

    def make_mask(self, modality: Modality, sql: str) -> GalleryMask | None:
        """Return the mask of the items that satisfy an SQL condition; None if the condition is empty."""
        if not sql:
            return None
        row_ids = self.filter_row_ids(sql)
        if (modality, sql) not in self._masks:
            self._masks[modality, sql] = self.load_gallery(modality).make_mask(row_ids)
        return self._masks[modality, sql]

    def estimate_background(self, part: EmbeddedPart, modality: Modality) -> ScoreDistribution:
        """Return the scores of random queries, of the same modality as the query part, with random items of `modality`.

        If no random queries are available, the query part itself is scored, and the scores are not cached.
        """
        query_modality = part.features.require_modality()
        key = query_modality, modality
        if key in self._distributions:
            return self._distributions[key]
        gallery, query_gallery = self.load_gallery(modality), self.load_gallery(query_modality)
        row_ids, sampled = self._background.sample_queries(self.store, query_modality, query_gallery)
        queries = part.features if sampled is None else sampled
        distribution = self._background.score_items(self.store, row_ids, queries, modality, gallery)
        if sampled is not None:
            self._distributions[key] = distribution
        return distribution

    def rank(self, parts: Sequence[EmbeddedPart], modality: Modality, k: int, sql: str) -> RankedItems:
        """Return the k best items of a modality among those that satisfy an SQL condition."""
        distributions = [self.estimate_background(part, modality) for part in parts]
        ranker = Ranker(self.space, self.store, self.load_gallery(modality), modality, parts, distributions)
        return ranker.rank(k, self.make_mask(modality, sql))
