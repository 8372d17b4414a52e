"""The nearest keys to a query: by exact scan, or among the lists of like keys that lie nearest to it."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from triptych.files import PART, write_text

SHARES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)  # of all keys, how many are looked at for one query
GOAL, TRIED, AMONG = 0.97, 200, 10  # this share of the true 10 nearest must be found, on average over 200 queries
ROUNDS, PER_LIST = 8, 64  # of k-means, and keys a list it learns from
NOTE = "lists.json"


def nearest(query: np.ndarray, keys: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and scores of the k keys (M, S) with the largest <query, key>, best first; ties by position."""
    return best(keys @ query, k)


def best(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and values of the k largest scores, best first; ties by position."""
    k = min(k, len(scores))
    shortlist = np.flatnonzero(scores >= np.partition(scores, -k)[-k]) if k else np.empty(0, int)
    order = shortlist[np.argsort(-scores[shortlist], kind="stable")][:k]
    return order, scores[order]


@dataclass(frozen=True)
class Lists:
    """Keys of one length, sorted into lists of like ones; a query looks into the lists whose centres are nearest.

    Everything is read by memory map, so opening it costs nothing and a query reads only what it looks at.
    """

    owner: str  # which table it was made of
    numbers: np.ndarray  # (M,)
    keys: np.ndarray  # (M, S), list after list
    centres: np.ndarray  # (L, S)
    ends: np.ndarray  # (L,): where each list ends
    share: float  # of the keys that a query looks at

    @staticmethod
    def fits(keys: np.ndarray) -> bool:
        """Whether all keys have one length: only then a centre tells which of its keys give large products."""
        lengths = np.linalg.norm(keys[:: max(1, len(keys) // 1000)], axis=1)
        return bool(np.ptp(lengths) <= 1e-3 * lengths.max(initial=0))

    @staticmethod
    def build(folder: Path, owner: str, numbers: np.ndarray, keys: np.ndarray, queries: np.ndarray) -> Lists | None:
        """Sort keys into about 2·√M lists, and put the result where it replaces what was there.

        How many keys a query must look at is measured with some queries; None where it would be too many to pay.
        """
        centres = _centres(keys, max(1, round(2 * math.sqrt(len(keys)))))
        home = _assigned(keys, centres)
        order = np.argsort(home, kind="stable")
        temporary = folder.with_name(f".{folder.name}{PART}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        sorted_keys = np.lib.format.open_memmap(temporary / "keys.npy", "w+", np.float32, keys.shape)
        for first in range(0, len(order), 65_536):
            sorted_keys[first : first + 65_536] = keys[order[first : first + 65_536]]
        sorted_keys.flush()
        np.save(temporary / "numbers.npy", numbers[order])
        np.save(temporary / "centres.npy", centres)
        ends = np.cumsum(np.bincount(home, minlength=len(centres)))
        np.save(temporary / "ends.npy", ends)
        written = Lists(owner, numbers[order], sorted_keys, centres, ends, 0.0)
        share = _least_share(written, queries[:TRIED])
        write_text(temporary / NOTE, json.dumps({"owner": owner, "keys": list(keys.shape), "share": share}))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        return Lists.open(folder, owner)

    @staticmethod
    def open(folder: Path, owner: str) -> Lists | None:
        """What was built of this table; None where there is nothing of it, or nothing whole."""
        try:
            note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("numbers", "keys")}
            small = {name: np.load(folder / f"{name}.npy") for name in ("centres", "ends")}
        except (OSError, ValueError):
            return None
        found = Lists(note.get("owner", ""), **arrays, **small, share=note.get("share") or 0.0)
        is_whole = list(found.keys.shape) == note.get("keys") and len(found.numbers) == len(found.keys)
        return found if found.owner == owner and is_whole and found.share else None

    def nearest(self, query: np.ndarray, k: int, allowed: Mask | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Positions and scores of about the k best keys, best first; allowed says which may be found."""
        starts = np.concatenate([[0], self.ends[:-1]])
        counts = self.ends - starts if allowed is None else allowed.counts
        order = np.argsort(-(self.centres @ query))
        seen = np.cumsum(counts[order])
        enough = int(np.searchsorted(seen, max(self.share * len(self.keys), 10 * k))) + 1
        places, scores = [], []
        for i in order[:enough]:
            first, last = int(starts[i]), int(self.ends[i])
            if first == last or not counts[i]:
                continue
            here = np.arange(first, last)
            if allowed is not None and counts[i] < last - first:
                here = here[allowed.mask[first:last]]
                scores.append(self.keys[here] @ query)
            else:
                scores.append(self.keys[first:last] @ query)
            places.append(here)
        if not places:
            return np.empty(0, int), np.empty(0, np.float32)
        chosen, values = best(np.concatenate(scores), k)
        return np.concatenate(places)[chosen], values


class Mask:
    """Which keys of the lists may be found, and how many of each list."""

    def __init__(self, lists: Lists, mask: np.ndarray) -> None:
        self.mask = mask
        until = np.concatenate([[0], np.cumsum(mask)])
        self.counts = until[lists.ends] - until[np.concatenate([[0], lists.ends[:-1]])]


def _least_share(lists: Lists, queries: np.ndarray) -> float | None:
    """The smallest share of keys to look at with which the queries find what an exact scan finds; None if none does."""
    exact = [set(nearest(query, lists.keys, AMONG)[0].tolist()) for query in queries]
    for share in SHARES:
        tried = replace(lists, share=share)
        found = [set(tried.nearest(query, AMONG)[0].tolist()) for query in queries]
        right = sum(len(a & b) for a, b in zip(found, exact, strict=True))
        if right >= GOAL * sum(map(len, exact)):
            return share
    return None


def _centres(keys: np.ndarray, count: int) -> np.ndarray:
    """Centres of a number of lists, by k-means on a part of the keys; always the same for the same keys."""
    rng = np.random.default_rng(0)
    some = np.sort(rng.choice(len(keys), min(len(keys), PER_LIST * count), replace=False))
    sample = torch.from_numpy(np.ascontiguousarray(keys[some]))
    centres = sample[torch.from_numpy(rng.choice(len(sample), count, replace=False))].clone()
    for _ in range(ROUNDS):
        home = torch.from_numpy(_assigned(sample.numpy(), centres.numpy()))
        sums = torch.zeros_like(centres).index_add_(0, home, sample)
        sizes = torch.bincount(home, minlength=count).unsqueeze(1)
        # An empty list begins anew at some key.
        anew = sample[torch.from_numpy(rng.choice(len(sample), count))]
        centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), anew)
        centres = torch.nn.functional.normalize(centres, dim=1) * sample[0].norm()
    return centres.numpy()


def _assigned(keys: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The nearest centre of each key: (M,)."""
    found = []
    against = torch.from_numpy(centres).T.contiguous()
    for first in range(0, len(keys), 8192):
        block = torch.from_numpy(np.array(keys[first : first + 8192]))  # copied: what Arrow holds cannot be written
        found.append((block @ against).argmax(dim=1))
    return torch.cat(found).numpy() if found else np.empty(0, int)
