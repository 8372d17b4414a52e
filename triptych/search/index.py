"""The nearest keys to a query: by exact scan, or among the lists of like keys that lie nearest to it."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from triptych.files import TEMP_SUFFIX, write_text

PROBE_FRACTIONS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)  # of all keys, how many are looked at for one query
TARGET_RECALL, NUM_CALIBRATION_QUERIES, CALIBRATION_K = (
    0.97,
    200,
    10,
)  # this share of the true 10 nearest must be found, on average over 200 queries
KMEANS_ITERATIONS, KEYS_PER_CENTROID = 8, 64  # of k-means, and keys a list it learns from
METADATA_FILE = "ivf.json"


def search_exact(query: np.ndarray, keys: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and scores of the k keys (M, S) with the largest <query, key>, best first; ties by position."""
    return top_k(keys @ query, k)


def top_k(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and values of the k largest scores, best first; ties by position."""
    k = min(k, len(scores))
    shortlist = np.flatnonzero(scores >= np.partition(scores, -k)[-k]) if k else np.empty(0, int)
    order = shortlist[np.argsort(-scores[shortlist], kind="stable")][:k]
    return order, scores[order]


@dataclass(frozen=True)
class IVFIndex:
    """Keys of one length, sorted into lists of like ones; a query looks into the lists whose centres are nearest.

    Everything is read by memory map, so opening it costs nothing and a query reads only what it looks at.
    """

    table_id: str  # which table it was made of
    row_ids: np.ndarray  # (M,)
    keys: np.ndarray  # (M, S), list after list
    centroids: np.ndarray  # (L, S)
    list_ends: np.ndarray  # (L,): where each list ends
    probe_fraction: float  # of the keys that a query looks at

    @staticmethod
    def has_equal_norms(keys: np.ndarray) -> bool:
        """Whether all keys have one length: only then a centre tells which of its keys give large products."""
        norms = np.linalg.norm(keys[:: max(1, len(keys) // 1000)], axis=1)
        return bool(np.ptp(norms) <= 1e-3 * norms.max(initial=0))

    @staticmethod
    def build(
        folder: Path, table_id: str, row_ids: np.ndarray, keys: np.ndarray, queries: np.ndarray
    ) -> IVFIndex | None:
        """Sort keys into about 2·√M lists, and put the result where it replaces what was there.

        How many keys a query must look at is measured with some queries; None where it would be too many to pay.
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
        np.save(temporary / "row_ids.npy", row_ids[order])
        np.save(temporary / "centroids.npy", centroids)
        list_ends = np.cumsum(np.bincount(assignments, minlength=len(centroids)))
        np.save(temporary / "list_ends.npy", list_ends)
        uncalibrated = IVFIndex(table_id, row_ids[order], sorted_keys, centroids, list_ends, 0.0)
        probe_fraction = _calibrate_probe_fraction(uncalibrated, queries[:NUM_CALIBRATION_QUERIES])
        write_text(
            temporary / METADATA_FILE,
            json.dumps({"table_id": table_id, "shape": list(keys.shape), "probe_fraction": probe_fraction}),
        )
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        return IVFIndex.open(folder, table_id)

    @staticmethod
    def open(folder: Path, table_id: str) -> IVFIndex | None:
        """What was built of this table; None where there is nothing of it, or nothing whole."""
        try:
            metadata = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("row_ids", "keys")}
            small_arrays = {name: np.load(folder / f"{name}.npy") for name in ("centroids", "list_ends")}
        except (OSError, ValueError):
            return None
        index = IVFIndex(
            metadata.get("table_id", ""), **arrays, **small_arrays, probe_fraction=metadata.get("probe_fraction") or 0.0
        )
        is_whole = list(index.keys.shape) == metadata.get("shape") and len(index.row_ids) == len(index.keys)
        return index if index.table_id == table_id and is_whole and index.probe_fraction else None

    def search(self, query: np.ndarray, k: int, mask: IVFMask | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Positions and scores of about the k best keys, best first; allowed says which may be found."""
        list_starts = np.concatenate([[0], self.list_ends[:-1]])
        counts = self.list_ends - list_starts if mask is None else mask.list_counts
        order = np.argsort(-(self.centroids @ query))
        num_scanned = np.cumsum(counts[order])
        nprobe = int(np.searchsorted(num_scanned, max(self.probe_fraction * len(self.keys), 10 * k))) + 1
        positions, scores = [], []
        for i in order[:nprobe]:
            first, last = int(list_starts[i]), int(self.list_ends[i])
            if first == last or not counts[i]:
                continue
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
    """Which keys of the lists may be found, and how many of each list."""

    def __init__(self, index: IVFIndex, mask: np.ndarray) -> None:
        self.mask = mask
        num_allowed_before = np.concatenate([[0], np.cumsum(mask)])
        self.list_counts = (
            num_allowed_before[index.list_ends] - num_allowed_before[np.concatenate([[0], index.list_ends[:-1]])]
        )


def _calibrate_probe_fraction(index: IVFIndex, queries: np.ndarray) -> float | None:
    """The smallest share of keys to look at with which the queries find what an exact scan finds; None if none does."""
    exact = [set(search_exact(query, index.keys, CALIBRATION_K)[0].tolist()) for query in queries]
    for fraction in PROBE_FRACTIONS:
        candidate = replace(index, probe_fraction=fraction)
        approximate = [set(candidate.search(query, CALIBRATION_K)[0].tolist()) for query in queries]
        num_matches = sum(len(a & b) for a, b in zip(approximate, exact, strict=True))
        if num_matches >= TARGET_RECALL * sum(map(len, exact)):
            return fraction
    return None


def _fit_centroids(keys: np.ndarray, count: int) -> np.ndarray:
    """Centres of a number of lists, by k-means on a part of the keys; always the same for the same keys."""
    rng = np.random.default_rng(0)
    sampled = np.sort(rng.choice(len(keys), min(len(keys), KEYS_PER_CENTROID * count), replace=False))
    sample = torch.from_numpy(np.ascontiguousarray(keys[sampled]))
    centroids = sample[torch.from_numpy(rng.choice(len(sample), count, replace=False))].clone()
    for _ in range(KMEANS_ITERATIONS):
        assignments = torch.from_numpy(_assign_to_centroids(sample.numpy(), centroids.numpy()))
        sums = torch.zeros_like(centroids).index_add_(0, assignments, sample)
        sizes = torch.bincount(assignments, minlength=count).unsqueeze(1)
        # An empty list begins anew at some key.
        restarts = sample[torch.from_numpy(rng.choice(len(sample), count))]
        centroids = torch.where(sizes > 0, sums / sizes.clamp_min(1), restarts)
        centroids = torch.nn.functional.normalize(centroids, dim=1) * sample[0].norm()
    return centroids.numpy()


def _assign_to_centroids(keys: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """The nearest centre of each key: (M,)."""
    assignments = []
    centroids_t = torch.from_numpy(centroids).T.contiguous()
    for first in range(0, len(keys), 8192):
        block = torch.from_numpy(np.array(keys[first : first + 8192]))  # copied: what Arrow holds cannot be written
        assignments.append((block @ centroids_t).argmax(dim=1))
    return torch.cat(assignments).numpy() if assignments else np.empty(0, int)
