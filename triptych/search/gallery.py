"""The keys of one modality of a collection, ready to be scored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from triptych.errors import CollectionError
from triptych.interfaces import Modality
from triptych.search.index import IVFIndex, IVFMask, top_k
from triptych.search.query import quote_sql
from triptych.search.store import REBUILD_COMMAND, Store

BACKGROUND_ITEMS = 1000  # items that stand for the collection's background
MIN_INDEXED_KEYS = 20_000  # keys from which on lists are faster than a scan
MAX_UNINDEXED_FRACTION = 0.2  # share of keys outside the lists from which on they are built anew
MAX_CACHED_FILTERS = 16  # answers to filters that are kept


@dataclass(frozen=True)
class Gallery:
    """All items of a modality in one version of the store: those in lists, and in memory those that came later."""

    ivf_index: IVFIndex | None
    live_mask: np.ndarray | None  # (M,) bool: which items of the lists are still there; None: all
    tail_row_ids: np.ndarray  # (T,) int64, of the others
    tail_keys: np.ndarray  # (T, S) float32
    _filter_masks: dict[str, tuple[np.ndarray | slice, IVFMask | None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tail_row_ids) + self._indexed_count

    @property
    def _indexed_count(self) -> int:
        if self.ivf_index is None:
            return 0
        return len(self.ivf_index.row_ids) if self.live_mask is None else int(self.live_mask.sum())

    @staticmethod
    def load(store: Store, modality: Modality, folder: Path, previous: Gallery | None = None) -> Gallery:
        """The keys as the store has them now; what is in lists, or was read before, is not read again."""
        condition = f"modality = {quote_sql(modality)}"
        total = store.count(condition)
        if previous is not None and len(previous):
            newer = f"{condition} AND row_id > {previous._max_row_id}"
            row_ids, keys = _read_keys(store, store.select_rows(["row_id", "vector"], newer))
            if len(previous) + len(row_ids) == total:
                tail = np.concatenate([previous.tail_row_ids, row_ids]), np.concatenate([previous.tail_keys, keys])
                # Without what was known of filters: whatever they read may have changed.
                return (
                    Gallery(previous.ivf_index, previous.live_mask, *tail)
                    if len(row_ids)
                    else replace(previous, _filter_masks={})
                )
        ivf_index = IVFIndex.open(folder / modality, store.metadata.table_id)
        if ivf_index is None:
            return Gallery(None, None, *_read_keys(store, store.select_rows(["row_id", "vector"], condition)))
        last_indexed = int(ivf_index.row_ids.max())
        row_ids, keys = _read_keys(
            store, store.select_rows(["row_id", "vector"], f"{condition} AND row_id > {last_indexed}")
        )
        live_mask = None
        if len(ivf_index.row_ids) + len(row_ids) != total:
            live_row_ids = store.select_rows(["row_id"], f"{condition} AND row_id <= {last_indexed}")[
                "row_id"
            ].to_numpy()
            live_mask = np.isin(ivf_index.row_ids, live_row_ids)
        return Gallery(ivf_index, live_mask, row_ids, keys)

    @property
    def _max_row_id(self) -> int:
        max_indexed = int(self.ivf_index.row_ids.max()) if self.ivf_index is not None else -1
        return max(max_indexed, int(self.tail_row_ids.max(initial=-1)))

    def search(
        self, query: np.ndarray, k: int, condition: str = "", allowed_row_ids: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and keys of the k items with the largest <query, key>, best first.

        allowed are the numbers that may be found, condition is what they fulfil: it is worked out once.
        """
        tail, mask = self._load_masks(condition, allowed_row_ids)
        scores = (self.tail_keys if allowed_row_ids is None else self.tail_keys[tail]) @ query
        positions, tail_scores = top_k(scores, k)
        row_ids, keys = self.tail_row_ids[tail][positions], self.tail_keys[tail][positions]
        if self.ivf_index is None:
            return row_ids, keys
        ivf_positions, ivf_scores = self.ivf_index.search(query, k, mask)
        order, _ = top_k(np.concatenate([tail_scores, ivf_scores]), k)
        row_ids = np.concatenate([row_ids, self.ivf_index.row_ids[ivf_positions]])
        keys = np.concatenate([keys, self.ivf_index.keys[ivf_positions]])
        return row_ids[order], keys[order]

    def sample(self, count: int = BACKGROUND_ITEMS) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and keys of a part of the items that is always the same."""
        live_positions = np.empty(0, int) if self.ivf_index is None else np.arange(len(self.ivf_index.row_ids))
        live_positions = live_positions if self.live_mask is None else live_positions[self.live_mask]
        chosen = np.arange(len(self))
        if len(self) > count:
            chosen = np.sort(np.random.default_rng(0).choice(len(self), count, replace=False))
        tail, ivf_positions = (
            chosen[chosen >= len(live_positions)] - len(live_positions),
            live_positions[chosen[chosen < len(live_positions)]],
        )
        if self.ivf_index is None:
            return self.tail_row_ids[tail], self.tail_keys[tail]
        row_ids = np.concatenate([self.ivf_index.row_ids[ivf_positions], self.tail_row_ids[tail]])
        return row_ids, np.concatenate([self.ivf_index.keys[ivf_positions], self.tail_keys[tail]])

    @cached_property
    def mean_squared_distance(self) -> float:
        """How far two items lie apart on average: the mean of |key - other key|²."""
        keys = self.sample()[1].astype(np.float64)
        return 2 * float(((keys - keys.mean(axis=0)) ** 2).sum(axis=1).mean()) if len(keys) else 0.0

    def should_build_index(self) -> bool:
        """Whether lists would pay, and are missing or no longer hold most of the items."""
        num_unindexed = len(self.tail_row_ids) + (0 if self.live_mask is None else int((~self.live_mask).sum()))
        return len(self) >= MIN_INDEXED_KEYS and num_unindexed > MAX_UNINDEXED_FRACTION * len(self)

    def _load_masks(
        self, condition: str, allowed_row_ids: np.ndarray | None
    ) -> tuple[np.ndarray | slice, IVFMask | None]:
        if condition not in self._filter_masks:
            if len(self._filter_masks) >= MAX_CACHED_FILTERS:
                self._filter_masks.clear()
            tail = np.isin(self.tail_row_ids, allowed_row_ids) if allowed_row_ids is not None else slice(None)
            mask = None
            if self.ivf_index is not None and (allowed_row_ids is not None or self.live_mask is not None):
                chosen = np.ones(len(self.ivf_index.row_ids), bool) if self.live_mask is None else self.live_mask
                chosen = (
                    chosen if allowed_row_ids is None else chosen & np.isin(self.ivf_index.row_ids, allowed_row_ids)
                )
                mask = IVFMask(self.ivf_index, chosen)
            self._filter_masks[condition] = tail, mask
        return self._filter_masks[condition]


def build_ivf_index(store: Store, modality: Modality, folder: Path, queries: np.ndarray) -> None:
    """Sort all keys of a modality into lists, where that pays."""
    condition = f"modality = {quote_sql(modality)}"
    row_ids, keys = _read_keys(store, store.select_rows(["row_id", "vector"], condition))
    if len(keys) >= MIN_INDEXED_KEYS and IVFIndex.has_equal_norms(keys):
        IVFIndex.build(folder / modality, store.metadata.table_id, row_ids, keys, queries)


def _read_keys(store: Store, rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and keys of rows of the store, in order of the numbers."""
    column = rows["vector"].combine_chunks()
    keys = np.asarray(column.flatten(), np.float32).reshape(len(rows), column.type.list_size)
    row_ids = rows["row_id"].to_numpy()
    if not np.isfinite(keys).all():
        raise CollectionError(f"{store.uri}: holds vectors that are none: it is damaged; rebuild it: {REBUILD_COMMAND}")
    if (np.diff(row_ids) > 0).all():
        return row_ids, keys
    order = np.argsort(row_ids)
    return row_ids[order], keys[order]
