"""The keys of one modality of a collection, ready to be scored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from triptych.contracts import Modality
from triptych.errors import CollectionError
from triptych.search.index import Lists, Mask, best
from triptych.search.query import quoted
from triptych.search.store import REBUILD, Store

SAMPLE = 1000  # items that stand for the collection's background
PAYS = 20_000  # keys from which on lists are faster than a scan
STALE = 0.2  # share of keys outside the lists from which on they are built anew
FILTERS = 16  # answers to filters that are kept


@dataclass(frozen=True)
class Gallery:
    """All items of a modality in one version of the store: those in lists, and in memory those that came later."""

    lists: Lists | None
    alive: np.ndarray | None  # (M,) bool: which items of the lists are still there; None: all
    numbers: np.ndarray  # (T,) int64, of the others
    keys: np.ndarray  # (T, S) float32
    _masks: dict[str, tuple[np.ndarray | slice, Mask | None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers) + self._listed

    @property
    def _listed(self) -> int:
        if self.lists is None:
            return 0
        return len(self.lists.numbers) if self.alive is None else int(self.alive.sum())

    @staticmethod
    def read(store: Store, modality: Modality, folder: Path, before: Gallery | None = None) -> Gallery:
        """The keys as the store has them now; what is in lists, or was read before, is not read again."""
        condition = f"modality = {quoted(modality)}"
        total = store.count(condition)
        if before is not None and len(before):
            newer = f"{condition} AND number > {before._last}"
            numbers, keys = _matrix(store, store.rows(["number", "vector"], newer))
            if len(before) + len(numbers) == total:
                joined = np.concatenate([before.numbers, numbers]), np.concatenate([before.keys, keys])
                # Without what was known of filters: whatever they read may have changed.
                return Gallery(before.lists, before.alive, *joined) if len(numbers) else replace(before, _masks={})
        lists = Lists.open(folder / modality, store.note.made)
        if lists is None:
            return Gallery(None, None, *_matrix(store, store.rows(["number", "vector"], condition)))
        last = int(lists.numbers.max())
        numbers, keys = _matrix(store, store.rows(["number", "vector"], f"{condition} AND number > {last}"))
        alive = None
        if len(lists.numbers) + len(numbers) != total:
            there = store.rows(["number"], f"{condition} AND number <= {last}")["number"].to_numpy()
            alive = np.isin(lists.numbers, there)
        return Gallery(lists, alive, numbers, keys)

    @property
    def _last(self) -> int:
        listed = int(self.lists.numbers.max()) if self.lists is not None else -1
        return max(listed, int(self.numbers.max(initial=-1)))

    def nearest(
        self, query: np.ndarray, k: int, condition: str = "", allowed: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and keys of the k items with the largest <query, key>, best first.

        allowed are the numbers that may be found, condition is what they fulfil: it is worked out once.
        """
        tail, mask = self._allowed(condition, allowed)
        scores = (self.keys if allowed is None else self.keys[tail]) @ query
        places, values = best(scores, k)
        numbers, keys = self.numbers[tail][places], self.keys[tail][places]
        if self.lists is None:
            return numbers, keys
        listed, more = self.lists.nearest(query, k, mask)
        order, _ = best(np.concatenate([values, more]), k)
        numbers = np.concatenate([numbers, self.lists.numbers[listed]])
        keys = np.concatenate([keys, self.lists.keys[listed]])
        return numbers[order], keys[order]

    def sample(self, count: int = SAMPLE) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and keys of a part of the items that is always the same."""
        listed = np.empty(0, int) if self.lists is None else np.arange(len(self.lists.numbers))
        listed = listed if self.alive is None else listed[self.alive]
        chosen = np.arange(len(self))
        if len(self) > count:
            chosen = np.sort(np.random.default_rng(0).choice(len(self), count, replace=False))
        tail, base = chosen[chosen >= len(listed)] - len(listed), listed[chosen[chosen < len(listed)]]
        if self.lists is None:
            return self.numbers[tail], self.keys[tail]
        numbers = np.concatenate([self.lists.numbers[base], self.numbers[tail]])
        return numbers, np.concatenate([self.lists.keys[base], self.keys[tail]])

    @cached_property
    def apart(self) -> float:
        """How far two items lie apart on average: the mean of |key - other key|²."""
        keys = self.sample()[1].astype(np.float64)
        return 2 * float(((keys - keys.mean(axis=0)) ** 2).sum(axis=1).mean()) if len(keys) else 0.0

    def is_stale(self) -> bool:
        """Whether lists would pay, and are missing or no longer hold most of the items."""
        outside = len(self.numbers) + (0 if self.alive is None else int((~self.alive).sum()))
        return len(self) >= PAYS and outside > STALE * len(self)

    def _allowed(self, condition: str, allowed: np.ndarray | None) -> tuple[np.ndarray | slice, Mask | None]:
        if condition not in self._masks:
            if len(self._masks) >= FILTERS:
                self._masks.clear()
            tail = np.isin(self.numbers, allowed) if allowed is not None else slice(None)
            mask = None
            if self.lists is not None and (allowed is not None or self.alive is not None):
                chosen = np.ones(len(self.lists.numbers), bool) if self.alive is None else self.alive
                chosen = chosen if allowed is None else chosen & np.isin(self.lists.numbers, allowed)
                mask = Mask(self.lists, chosen)
            self._masks[condition] = tail, mask
        return self._masks[condition]


def make_lists(store: Store, modality: Modality, folder: Path, queries: np.ndarray) -> None:
    """Sort all keys of a modality into lists, where that pays."""
    condition = f"modality = {quoted(modality)}"
    numbers, keys = _matrix(store, store.rows(["number", "vector"], condition))
    if len(keys) >= PAYS and Lists.fits(keys):
        Lists.build(folder / modality, store.note.made, numbers, keys, queries)


def _matrix(store: Store, rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and keys of rows of the store, in order of the numbers."""
    column = rows["vector"].combine_chunks()
    keys = np.asarray(column.flatten(), np.float32).reshape(len(rows), column.type.list_size)
    numbers = rows["number"].to_numpy()
    if not np.isfinite(keys).all():
        raise CollectionError(f"{store.place}: holds vectors that are none: it is damaged; rebuild it: {REBUILD}")
    if (np.diff(numbers) > 0).all():
        return numbers, keys
    order = np.argsort(numbers)
    return numbers[order], keys[order]
