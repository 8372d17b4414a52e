"""Nearest-neighbour search over the keys of a collection: an exact scan, or an IVF index for large collections."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from triptych.errors import CollectionError
from triptych.files import TEMP_SUFFIX, write_text
from triptych.interfaces import Modality
from triptych.search.query import quote_sql
from triptych.search.store import REBUILD_COMMAND, Store

PROBE_FRACTIONS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)  # candidate fractions of all keys that a query scans
TARGET_RECALL, CALIBRATION_K = 0.97, 10  # an index is used if its mean recall@10 reaches the target
NUM_CALIBRATION_QUERIES = 200  # number of queries with which the probe fraction is determined
KMEANS_ITERATIONS, KEYS_PER_CENTROID = 8, 64  # k-means is fitted to a sample of KEYS_PER_CENTROID keys per centroid
METADATA_FILE = "ivf.json"
BACKGROUND_ITEMS = 1000  # number of random items in the background score distribution
MIN_INDEXED_KEYS = 20_000  # with fewer keys, an exact scan is as fast as an index
MAX_UNINDEXED_FRACTION = 0.2  # above this fraction of keys outside the index, the index is rebuilt


def search_exact(query: np.ndarray, keys: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and scores of the k keys (M, S) with the largest <query, key>, best first.

    Keys with equal scores are ordered by position.
    """
    return top_k(keys @ query, k)


def top_k(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and values of the k largest scores, best first. Equal scores are ordered by position."""
    k = min(k, len(scores))
    shortlist = np.flatnonzero(scores >= np.partition(scores, -k)[-k]) if k else np.empty(0, int)
    order = shortlist[np.argsort(-scores[shortlist], kind="stable")][:k]
    return order, scores[order]


@dataclass(frozen=True)
class IVFIndex:
    """An inverted file index of keys with equal norms. A query scans the lists with the nearest centroids.

    The files are memory-mapped. Opening an index is therefore fast, and a query reads only the lists that it scans.
    """

    table_id: str  # id of the table from which the index was built
    row_ids: np.ndarray  # (M,)
    keys: np.ndarray  # (M, S), sorted by list
    centroids: np.ndarray  # (L, S)
    list_ends: np.ndarray  # (L,): end position of each list
    probe_fraction: float  # fraction of the keys that a query scans

    @staticmethod
    def has_equal_norms(keys: np.ndarray) -> bool:
        """Return whether all keys have the same norm, so that centroids predict the largest inner products."""
        norms = np.linalg.norm(keys[:: max(1, len(keys) // 1000)], axis=1)
        return bool(np.ptp(norms) <= 1e-3 * norms.max(initial=0))

    @staticmethod
    def build(
        folder: Path, table_id: str, row_ids: np.ndarray, keys: np.ndarray, queries: np.ndarray
    ) -> IVFIndex | None:
        """Build an index with about 2·√M lists, and replace the previous index.

        The probe fraction is calibrated with the queries. Return None if an index is not faster than an exact scan.
        """
        centroids = _fit_centroids(keys, max(1, round(2 * math.sqrt(len(keys)))))
        assignments = _assign_to_centroids(keys, centroids)
        order = np.argsort(assignments, kind="stable")
        temporary = folder.with_name(f".{folder.name}{TEMP_SUFFIX}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        sorted_keys = np.lib.format.open_memmap(temporary / "keys.npy", "w+", np.float32, keys.shape)
        for first in range(0, len(order), 65_536):
            sorted_keys[first : first + 65_536] = keys[order[first : first + 65_536]]
        sorted_keys.flush()
        list_ends = np.cumsum(np.bincount(assignments, minlength=len(centroids)))
        for name, array in (("row_ids", row_ids[order]), ("centroids", centroids), ("list_ends", list_ends)):
            np.save(temporary / f"{name}.npy", array)
        uncalibrated = IVFIndex(table_id, row_ids[order], sorted_keys, centroids, list_ends, 0.0)
        probe_fraction = _calibrate_probe_fraction(uncalibrated, queries[:NUM_CALIBRATION_QUERIES])
        metadata = {"table_id": table_id, "shape": list(keys.shape), "probe_fraction": probe_fraction}
        write_text(temporary / METADATA_FILE, json.dumps(metadata))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        return IVFIndex.open(folder, table_id)

    @staticmethod
    def open(folder: Path, table_id: str) -> IVFIndex | None:
        """Open the index of a table. Return None if no complete index exists, or if an exact scan is as fast."""
        try:
            metadata = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("row_ids", "keys")}
            small_arrays = {name: np.load(folder / f"{name}.npy") for name in ("centroids", "list_ends")}
        except (OSError, ValueError):
            return None
        probe_fraction = metadata.get("probe_fraction") or 0.0
        index = IVFIndex(metadata.get("table_id", ""), **arrays, **small_arrays, probe_fraction=probe_fraction)
        is_complete = list(index.keys.shape) == metadata.get("shape") and len(index.row_ids) == len(index.keys)
        return index if index.table_id == table_id and is_complete and index.probe_fraction else None

    def search(self, query: np.ndarray, k: int, mask: IVFMask | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and scores of approximately the k best keys among those in the mask, best first."""
        list_starts = np.concatenate([[0], self.list_ends[:-1]])
        counts = self.list_ends - list_starts if mask is None else mask.list_counts
        order = np.argsort(-(self.centroids @ query))
        num_scanned = np.cumsum(counts[order])
        nprobe = int(np.searchsorted(num_scanned, max(self.probe_fraction * len(self.keys), 10 * k))) + 1
        positions, scores, probed = [], [], order[:nprobe]
        for i in probed[counts[probed] > 0]:
            first, last = int(list_starts[i]), int(self.list_ends[i])
            candidates = np.arange(first, last)
            if mask is not None and counts[i] < last - first:
                candidates = candidates[mask.mask[first:last]]
                scores.append(self.keys[candidates] @ query)
            else:
                scores.append(self.keys[first:last] @ query)
            positions.append(candidates)
        if not positions:
            return np.empty(0, int), np.empty(0, np.float32)
        chosen, values = top_k(np.concatenate(scores), k)
        return np.concatenate(positions)[chosen], values


class IVFMask:
    """A selection of the keys of an index, and the number of selected keys in each list."""

    def __init__(self, index: IVFIndex, mask: np.ndarray) -> None:
        self.mask = mask
        num_selected_before = np.concatenate([[0], np.cumsum(mask)])
        self.list_counts = np.diff(num_selected_before[np.concatenate([[0], index.list_ends])])


def _calibrate_probe_fraction(index: IVFIndex, queries: np.ndarray) -> float | None:
    """Return the smallest probe fraction that reaches the target recall; None if the largest does not reach it."""
    exact = [set(search_exact(query, index.keys, CALIBRATION_K)[0].tolist()) for query in queries]
    for fraction in PROBE_FRACTIONS:
        calibrated = replace(index, probe_fraction=fraction)
        approximate = [set(calibrated.search(query, CALIBRATION_K)[0].tolist()) for query in queries]
        num_matches = sum(len(a & b) for a, b in zip(approximate, exact, strict=True))
        if num_matches >= TARGET_RECALL * sum(map(len, exact)):
            return fraction
    return None


def _fit_centroids(keys: np.ndarray, count: int) -> np.ndarray:
    """Fit centroids by k-means to a random sample of the keys, with a fixed seed."""
    rng = np.random.default_rng(0)
    sampled = np.sort(rng.choice(len(keys), min(len(keys), KEYS_PER_CENTROID * count), replace=False))
    sample = torch.from_numpy(np.ascontiguousarray(keys[sampled]))
    centroids = sample[torch.from_numpy(rng.choice(len(sample), count, replace=False))].clone()
    for _ in range(KMEANS_ITERATIONS):
        assignments = torch.from_numpy(_assign_to_centroids(sample.numpy(), centroids.numpy()))
        sums = torch.zeros_like(centroids).index_add_(0, assignments, sample)
        sizes = torch.bincount(assignments, minlength=count).unsqueeze(1)
        # The centroid of an empty list is set to a random key.
        restarts = sample[torch.from_numpy(rng.choice(len(sample), count))]
        centroids = torch.where(sizes > 0, sums / sizes.clamp_min(1), restarts)
        centroids = torch.nn.functional.normalize(centroids, dim=1) * sample[0].norm()
    return centroids.numpy()


def _assign_to_centroids(keys: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Return the number of the nearest centroid of each key: (M,)."""
    assignments, centroids_t = [], torch.from_numpy(centroids).T.contiguous()
    for first in range(0, len(keys), 8192):
        block = torch.from_numpy(np.array(keys[first : first + 8192]))  # a copy: Arrow arrays are read-only
        assignments.append((block @ centroids_t).argmax(dim=1))
    return torch.cat(assignments).numpy() if assignments else np.empty(0, int)


@dataclass(frozen=True)
class GalleryMask:
    """The items of a gallery that a search may return."""

    tail: np.ndarray | slice  # the selected items outside the index
    indexed: IVFMask | None  # the selected items of the index; None selects all


class Gallery:
    """All keys of one modality in one version of the store: keys in the IVF index, and newer keys in memory."""

    def __init__(
        self,
        ivf_index: IVFIndex | None,
        live_mask: np.ndarray | None,  # (M,) bool, true for items of the index that still exist; None if all exist
        tail_row_ids: np.ndarray,  # (T,) int64: row ids of the items outside the index
        tail_keys: np.ndarray,  # (T, S) float32: keys of the items outside the index
    ) -> None:
        self.ivf_index, self.live_mask = ivf_index, live_mask
        self.tail_row_ids, self.tail_keys = tail_row_ids, tail_keys
        self._indexed_row_ids = np.empty(0, np.int64) if ivf_index is None else ivf_index.row_ids

    def __len__(self) -> int:
        num_live = len(self._indexed_row_ids) if self.live_mask is None else int(self.live_mask.sum())
        return len(self.tail_row_ids) + num_live

    @staticmethod
    def load(store: Store, modality: Modality, folder: Path, previous: Gallery | None = None) -> Gallery:
        """Load the keys of the store's current version, reusing keys of the index or of the previous gallery."""
        condition = f"modality = {quote_sql(modality)}"
        total = store.count(condition)
        if previous is not None and len(previous):
            row_ids, keys = _read_keys(store, f"{condition} AND row_id > {previous._max_row_id}")
            if len(previous) + len(row_ids) == total:
                tail = np.concatenate([previous.tail_row_ids, row_ids]), np.concatenate([previous.tail_keys, keys])
                return Gallery(previous.ivf_index, previous.live_mask, *tail) if len(row_ids) else previous
        ivf_index = IVFIndex.open(folder / modality, store.metadata.table_id)
        if ivf_index is None:
            return Gallery(None, None, *_read_keys(store, condition))
        last_indexed = int(ivf_index.row_ids.max())
        row_ids, keys = _read_keys(store, f"{condition} AND row_id > {last_indexed}")
        live_mask = None
        if len(ivf_index.row_ids) + len(row_ids) != total:
            live_rows = store.select_rows(["row_id"], f"{condition} AND row_id <= {last_indexed}")
            live_mask = np.isin(ivf_index.row_ids, live_rows["row_id"].to_numpy())
        return Gallery(ivf_index, live_mask, row_ids, keys)

    @property
    def _max_row_id(self) -> int:
        return int(max(row_ids.max(initial=-1) for row_ids in (self._indexed_row_ids, self.tail_row_ids)))

    def make_mask(self, row_ids: np.ndarray) -> GalleryMask:
        """Return a mask that selects the items with these row ids."""
        tail, ivf_index = np.isin(self.tail_row_ids, row_ids), self.ivf_index
        if ivf_index is None:
            return GalleryMask(tail, None)
        selected = np.isin(ivf_index.row_ids, row_ids)
        return GalleryMask(tail, IVFMask(ivf_index, selected if self.live_mask is None else selected & self.live_mask))

    @cached_property
    def _full_mask(self) -> GalleryMask:
        if self.ivf_index is None or self.live_mask is None:
            return GalleryMask(slice(None), None)
        return GalleryMask(slice(None), IVFMask(self.ivf_index, self.live_mask))

    def search(self, query: np.ndarray, k: int, mask: GalleryMask | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return row ids and keys of the k items in the mask with the largest <query, key>, best first."""
        mask = mask or self._full_mask
        tail_row_ids, tail_keys = self.tail_row_ids[mask.tail], self.tail_keys[mask.tail]
        positions, tail_scores = top_k(tail_keys @ query, k)
        row_ids, keys = tail_row_ids[positions], tail_keys[positions]
        if self.ivf_index is None:
            return row_ids, keys
        ivf_positions, ivf_scores = self.ivf_index.search(query, k, mask.indexed)
        order, _ = top_k(np.concatenate([tail_scores, ivf_scores]), k)
        row_ids = np.concatenate([row_ids, self.ivf_index.row_ids[ivf_positions]])
        keys = np.concatenate([keys, self.ivf_index.keys[ivf_positions]])
        return row_ids[order], keys[order]

    def sample(self, count: int = BACKGROUND_ITEMS) -> tuple[np.ndarray, np.ndarray]:
        """Return row ids and keys of at most `count` random items, with a fixed seed."""
        live_positions = np.arange(len(self._indexed_row_ids))
        live_positions = live_positions if self.live_mask is None else live_positions[self.live_mask]
        chosen = np.arange(len(self))
        if len(self) > count:
            chosen = np.sort(np.random.default_rng(0).choice(len(self), count, replace=False))
        tail = chosen[chosen >= len(live_positions)] - len(live_positions)
        if self.ivf_index is None:
            return self.tail_row_ids[tail], self.tail_keys[tail]
        ivf_positions = live_positions[chosen[chosen < len(live_positions)]]
        row_ids = np.concatenate([self.ivf_index.row_ids[ivf_positions], self.tail_row_ids[tail]])
        return row_ids, np.concatenate([self.ivf_index.keys[ivf_positions], self.tail_keys[tail]])

    @cached_property
    def mean_squared_distance(self) -> float:
        """The mean squared Euclidean distance between the keys of two random items."""
        keys = self.sample()[1].astype(np.float64)
        return 2 * float(((keys - keys.mean(axis=0)) ** 2).sum(axis=1).mean()) if len(keys) else 0.0

    def should_build_index(self) -> bool:
        """Return whether the gallery is large enough for an index, and the index is missing or outdated."""
        num_unindexed = len(self.tail_row_ids) + (0 if self.live_mask is None else int((~self.live_mask).sum()))
        return len(self) >= MIN_INDEXED_KEYS and num_unindexed > MAX_UNINDEXED_FRACTION * len(self)


def build_ivf_index(store: Store, modality: Modality, folder: Path, queries: np.ndarray) -> None:
    """Build an IVF index of all keys of a modality, if there are at least MIN_INDEXED_KEYS with equal norms."""
    row_ids, keys = _read_keys(store, f"modality = {quote_sql(modality)}")
    if len(keys) >= MIN_INDEXED_KEYS and IVFIndex.has_equal_norms(keys):
        IVFIndex.build(folder / modality, store.metadata.table_id, row_ids, keys, queries)


def _read_keys(store: Store, condition: str) -> tuple[np.ndarray, np.ndarray]:
    """Return row ids and keys of the items that satisfy an SQL condition, ordered by row id."""
    rows: pa.Table = store.select_rows(["row_id", "vector"], condition)
    row_ids, column = rows["row_id"].to_numpy(), rows["vector"].combine_chunks()
    keys = np.asarray(column.flatten(), np.float32).reshape(len(rows), column.type.list_size)
    if not np.isfinite(keys).all():
        raise CollectionError(f"{store.uri}: the store is damaged (NaN in vectors); rebuild it: {REBUILD_COMMAND}")
    if (np.diff(row_ids) > 0).all():
        return row_ids, keys
    order = np.argsort(row_ids)
    return row_ids[order], keys[order]
