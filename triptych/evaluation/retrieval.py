"""How well queries of one modality find what belongs to them in a gallery of another.

Conventions, everywhere in triptych: each caption is a query of its own, and an item of its own where captions are
found; any right answer counts (of five captions, each); ties count against us, so that a space in which everything is
alike scores chance or less, never 100%; a query without a right answer in the gallery is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triptych.evaluation.significance import DRAWS, Interval, intervals

CUTS = (1, 5, 10)  # of recall
PRECISION_CUTS = (10, 16)  # of mAP
GAIN_CUT = 10  # of nDCG
KEPT = max(PRECISION_CUTS)  # of a query's right answers, so many have their rank known
QUERIES, ITEMS = 256, 8192  # scored at a time
MEDIAN, MEAN = "median rank", "mean rank"

Scores = Callable[[Tensor, Tensor], Tensor]  # rows (q,) of the queries, rows (m,) of the gallery -> scores (q, m)
Mode = Literal["inductive", "transductive"]  # each query alone, or all queries of the test set at once


@dataclass(frozen=True)
class Places:
    """Where each query's right answers stand."""

    rank: Tensor  # (Q, K) int: of the k-th best right answer, 1 = first; 0 where there are fewer; K <= KEPT
    right: Tensor  # (Q,) int: how many right answers are in the gallery


@dataclass(frozen=True)
class Queries:
    """What became of each query that has a right answer."""

    item: NDArray[np.int64]  # (Q,) its number among the items of its modality
    group: NDArray[np.int64]  # (Q,) its cluster: queries of one group share their right answers
    right: NDArray[np.int64]  # (Q,) how many right answers the gallery has
    rank: NDArray[np.int64]  # (Q,) of the best of them
    values: dict[str, NDArray[np.float64]]  # (Q,) by metric; the metric is their mean


@dataclass(frozen=True)
class Retrieval:
    """How one direction went. By name: R@1, R@5, R@10, mAP@10, mAP@16, nDCG@10, mean rank, median rank."""

    query: str
    gallery: str
    queries: int
    items: int
    metrics: dict[str, float]  # shares from 0 to 1, and ranks from 1
    guessed: dict[str, float]  # what a random order gives, but for the median rank
    each: Queries = field(repr=False, compare=False)
    interval: dict[str, Interval] = field(default_factory=dict)  # 95%, but for the median rank
    mode: Mode = "inductive"

    @property
    def recall(self) -> dict[int, float]:
        """The share of queries with a right answer among the first k."""
        return {k: self.metrics[f"R@{k}"] for k in CUTS}

    @property
    def chance(self) -> dict[int, float]:
        """Recall of a random order."""
        return {k: self.guessed[f"R@{k}"] for k in CUTS}

    @property
    def median_rank(self) -> float:
        """Half of the queries have a right answer at this rank or before."""
        return self.metrics[MEDIAN]


@torch.inference_mode()
def places(
    scores: Scores,
    query_group: Tensor,
    gallery_group: Tensor,
    queries: int = QUERIES,
    items: int = ITEMS,
) -> Places:
    """Ranks of each query's right answers, best first, at most KEPT of them, and how many there are.

    rank_k = k + #{ wrong j : s_j >= s of the k-th best right answer }
    No list is ever sorted, and no more than `queries` × `items` scores exist at a time: right answers are looked up
    first, in the few blocks where they are, and then the wrong ones above them are counted, block by block.
    """
    by_group = query_group.argsort(stable=True), gallery_group.argsort(stable=True)  # so that right ones lie together
    ours, theirs = query_group[by_group[0]], gallery_group[by_group[1]]
    begin, end = (torch.searchsorted(theirs, ours, right=side) for side in (False, True))
    count = end - begin  # (Q,)
    kept = min(KEPT, int(count.max())) if len(count) else 0
    rank = torch.zeros(len(ours), kept, dtype=torch.long)
    for first in range(0, len(ours), queries):
        block = slice(first, first + queries)
        mine = _Block(scores, by_group[0][block], ours[block], by_group[1], theirs, items)
        found = mine.ranks(int(begin[block][0]), int(end[block][-1]), min(kept, int(count[block].max())))
        rank[block, : found.shape[1]] = found.where(torch.arange(1, found.shape[1] + 1) <= count[block, None], 0)
    back = by_group[0].argsort()
    return Places(rank[back], count[back])


@dataclass(frozen=True)
class _Block:
    """Some queries of neighbouring groups against a gallery ordered by group, tile by tile."""

    scores: Scores
    rows: Tensor
    group: Tensor
    columns: Tensor
    gallery_group: Tensor
    items: int

    def ranks(self, begin: int, end: int, kept: int) -> Tensor:
        """Ranks (q, kept); the right answers of all these queries lie between begin and end of the gallery."""
        near = range(begin - begin % self.items, end, self.items) if kept else range(0)
        alone = len(near) == 1 and len(self.columns) <= self.items
        tile = self.tile(near[0]) if alone else None  # a small gallery is scored once
        best = torch.empty(len(self.rows), 0)
        for first in near:
            scores = self.tile(first) if tile is None else tile
            here = scores.masked_fill(~self.match(first, scores), -torch.inf)
            best = torch.cat([best.to(here), here], dim=1)
            best = best.topk(min(kept, best.shape[1]), dim=1).values
        above = torch.zeros(best.shape, dtype=torch.long)
        for first in range(0, len(self.columns), self.items) if kept else ():
            scores = self.tile(first) if tile is None else tile
            if first in near:
                scores = scores.masked_fill(self.match(first, scores), -torch.inf)
            for k in range(best.shape[1]):
                # All but those below: a score that is no number stands before every right answer, too.
                below = (scores < best[:, k, None]).sum(dim=1, dtype=torch.int32)  # twice as fast as int64
                above[:, k] += scores.shape[1] - below.cpu()
        return (torch.arange(1, best.shape[1] + 1) + above).clamp(max=len(self.columns))

    def tile(self, first: int) -> Tensor:
        return self.scores(self.rows, self.columns[first : first + self.items])  # (q, m)

    def match(self, first: int, scores: Tensor) -> Tensor:
        same = self.group[:, None] == self.gallery_group[first : first + self.items]
        return same.to(scores.device)


def average_precision(found: Places, cut: int) -> Tensor:
    """Average precision of each query among its first `cut` answers, (Q,); its mean is mAP@cut.

    AP = 1/R · sum_k k / rank_k over the right answers with rank_k <= cut, best first; R of them are in the gallery, so
    that a query with more than `cut` cannot reach 1. Some divide by the smaller of R and cut, or by those found.
    """
    k = torch.arange(1, found.rank.shape[1] + 1, dtype=torch.double)
    inside = (found.rank >= 1) & (found.rank <= cut)
    return torch.where(inside, k / found.rank.clamp(min=1), 0.0).sum(dim=1) / found.right.clamp(min=1)


def gain(found: Places, cut: int) -> Tensor:
    """Discounted gain of each query among its first `cut` answers, as a share of the best there is: (Q,).

    nDCG = sum_k 1 / log2(1 + rank_k) over the right answers with rank_k <= cut, by the same with rank_k = k, k <= R.
    """
    inside = (found.rank >= 1) & (found.rank <= cut)
    each = torch.where(inside, 1 / (1 + found.rank.double()).log2(), 0.0).sum(dim=1)
    best = torch.cat([torch.zeros(1).double(), _discounts(cut).cumsum(0)])
    return each / best[found.right.clamp(min=1, max=cut)]


def _discounts(cut: int) -> Tensor:
    return 1 / torch.arange(2, cut + 2).double().log2()


def measure(
    query: str,
    gallery: str,
    found: Places,
    group: Tensor,
    items: int,
    draws: int = DRAWS,
    mode: Mode = "inductive",
) -> Retrieval:
    """Every metric of one direction, beside what guessing gives, with intervals by `draws` draws (none for 0)."""
    answered = found.right > 0  # a query without any right answer in the gallery says nothing
    item = answered.nonzero()[:, 0]
    found = Places(found.rank[answered], found.right[answered])
    rank, right = found.rank[:, 0].numpy(), found.right.numpy()
    values = {
        **{f"R@{k}": (rank <= k).astype(np.float64) for k in CUTS},
        **{f"mAP@{k}": average_precision(found, k).numpy() for k in PRECISION_CUTS},
        f"nDCG@{GAIN_CUT}": gain(found, GAIN_CUT).numpy(),
        MEAN: rank.astype(np.float64),
    }
    each = Queries(item.numpy(), group[answered].numpy(), right, rank, values)
    return Retrieval(
        query=query,
        gallery=gallery,
        queries=len(rank),
        items=items,
        metrics={name: float(column.mean()) for name, column in values.items()} | {MEDIAN: float(np.median(rank))},
        guessed=guessed(items, right),
        interval=_intervals(values, each.group, items, draws) if draws else {},
        mode=mode,
        each=each,
    )


def limits(name: str, items: int) -> tuple[float, float]:
    """The lowest and the highest a metric can be in a gallery of so many items."""
    return (1, items) if name == MEAN else (0, 1)


def _intervals(values: dict[str, NDArray], cluster: NDArray, items: int, draws: int) -> dict[str, Interval]:
    table = np.column_stack(list(values.values()))
    found = intervals(table, cluster, [limits(name, items) for name in values], draws=draws)
    return dict(zip(values, found, strict=True))


def guessed(items: int, right: NDArray) -> dict[str, float]:
    """What a random order of the gallery gives on the average, for queries with `right` (Q,) right answers each.

    mAP@k: 1/M · sum_(r <= k) (1 + (r - 1)(R - 1)/(M - 1)) / r      mean rank: (M + 1) / (R + 1)
    """
    kinds, times = np.unique(right, return_counts=True)
    share = kinds / items
    found = {f"R@{k}": np.array([chance(items, int(r), k) for r in kinds]) for k in CUTS}
    for cut in PRECISION_CUTS:
        place = np.arange(1, min(cut, items) + 1)
        others = (kinds[:, None] - 1) * (place - 1) / max(1, items - 1)
        found[f"mAP@{cut}"] = ((1 + others) / place).sum(axis=1) / items
    discounts = _discounts(GAIN_CUT).numpy()
    best = discounts.cumsum()[np.minimum(kinds, GAIN_CUT) - 1]
    found[f"nDCG@{GAIN_CUT}"] = share * discounts[:items].sum() / best
    found[MEAN] = (items + 1) / (kinds + 1)
    return {name: float(np.average(each, weights=times)) for name, each in found.items()}


def chance(items: int, right: int, k: int) -> float:
    """Recall@k of a random order: 1 - C(items - right, k) / C(items, k)."""
    if right == 0:
        return 0.0
    if items - right < k:
        return 1.0
    place = np.arange(k)
    return 1 - float(np.prod((items - right - place) / (items - place)))
