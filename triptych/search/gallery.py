"""The keys of one modality of a collection, ready to be scored."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from triptych.contracts import Modality
from triptych.errors import CollectionError
from triptych.search.index import nearest
from triptych.search.query import quoted
from triptych.search.store import REBUILD, Store

SAMPLE = 1000  # items that stand for the collection's background


@dataclass(frozen=True)
class Gallery:
    """Numbers and keys of all items of a modality: row i of the keys belongs to number i."""

    numbers: np.ndarray  # (M,) int64
    keys: np.ndarray  # (M, S) float32

    def __len__(self) -> int:
        return len(self.numbers)

    @staticmethod
    def read(store: Store, modality: Modality, before: Gallery | None = None) -> Gallery:
        """The keys as the store has them now; of what was read before only the new ones are read."""
        condition = f"modality = {quoted(modality)}"
        total = store.count(condition)
        if before is not None and len(before):
            more = _matrix(store, store.rows(["number", "vector"], f"{condition} AND number > {before.numbers.max()}"))
            if len(before) + len(more) == total:
                numbers = np.concatenate([before.numbers, more.numbers])
                return Gallery(numbers, np.concatenate([before.keys, more.keys])) if len(more) else before
        return _matrix(store, store.rows(["number", "vector"], condition))

    def nearest(self, query: np.ndarray, k: int, allowed: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and keys of the k items with the largest <query, key>, best first; allowed: sorted numbers."""
        numbers, keys = self.numbers, self.keys
        if allowed is not None:
            chosen = np.isin(numbers, allowed)
            numbers, keys = numbers[chosen], keys[chosen]
        order, _ = nearest(query, keys, k)
        return numbers[order], keys[order]

    def sample(self, count: int = SAMPLE) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and keys of a part of the items that is always the same."""
        if len(self) <= count:
            return self.numbers, self.keys
        some = np.random.default_rng(0).choice(len(self), count, replace=False)
        return self.numbers[some], self.keys[some]

    @cached_property
    def apart(self) -> float:
        """How far two items lie apart on average: the mean of |key - other key|²."""
        keys = self.sample()[1].astype(np.float64)
        return 2 * float(((keys - keys.mean(axis=0)) ** 2).sum(axis=1).mean()) if len(keys) else 0.0


def _matrix(store: Store, rows: pa.Table) -> Gallery:
    column = rows["vector"].combine_chunks()
    keys = np.asarray(column.flatten(), np.float32).reshape(len(rows), column.type.list_size)
    numbers = rows["number"].to_numpy()
    if not np.isfinite(keys).all():
        raise CollectionError(
            f"{store.place}: holds vectors that are none: the store is damaged; rebuild it: {REBUILD}"
        )
    order = np.argsort(numbers)
    return Gallery(numbers[order], keys[order])
