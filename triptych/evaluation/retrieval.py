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

from triptych.evaluation.significance import NUM_RESAMPLES, Interval, bootstrap_intervals

RECALL_KS = (1, 5, 10)  # of recall
MAP_KS = (10, 16)  # of mAP
NDCG_K = 10  # of nDCG
MAX_POSITIVES = max(MAP_KS)  # of a query's right answers, so many have their rank known
QUERY_BLOCK, GALLERY_BLOCK = 256, 8192  # scored at a time
MEDIAN_RANK, MEAN_RANK = "median rank", "mean rank"

ScoreFunction = Callable[
    [Tensor, Tensor], Tensor
]  # rows (q,) of the queries, rows (m,) of the gallery -> scores (q, m)
Mode = Literal["inductive", "transductive"]  # each query alone, or all queries of the test set at once


@dataclass(frozen=True)
class PositiveRanks:
    """Where each query's right answers stand."""

    rank: Tensor  # (Q, K) int: of the k-th best right answer, 1 = first; 0 where there are fewer; K <= KEPT
    num_positives: Tensor  # (Q,) int: how many right answers are in the gallery


@dataclass(frozen=True)
class PerQuery:
    """What became of each query that has a right answer."""

    item_index: NDArray[np.int64]  # (Q,) its number among the items of its modality
    group: NDArray[np.int64]  # (Q,) its cluster: queries of one group share their right answers
    num_positives: NDArray[np.int64]  # (Q,) how many right answers the gallery has
    best_rank: NDArray[np.int64]  # (Q,) of the best of them
    values: dict[str, NDArray[np.float64]]  # (Q,) by metric; the metric is their mean


@dataclass(frozen=True)
class RetrievalResult:
    """How one direction went. By name: R@1, R@5, R@10, mAP@10, mAP@16, nDCG@10, mean rank, median rank."""

    query: str
    gallery: str
    num_queries: int
    num_items: int
    metrics: dict[str, float]  # shares from 0 to 1, and ranks from 1
    chance_levels: dict[str, float]  # what a random order gives, but for the median rank
    per_query: PerQuery = field(repr=False, compare=False)
    intervals: dict[str, Interval] = field(default_factory=dict)  # 95%, but for the median rank
    mode: Mode = "inductive"

    @property
    def recall(self) -> dict[int, float]:
        """The share of queries with a right answer among the first k."""
        return {k: self.metrics[f"R@{k}"] for k in RECALL_KS}

    @property
    def chance_recall(self) -> dict[int, float]:
        """Recall of a random order."""
        return {k: self.chance_levels[f"R@{k}"] for k in RECALL_KS}

    @property
    def median_rank(self) -> float:
        """Half of the queries have a right answer at this rank or before."""
        return self.metrics[MEDIAN_RANK]


@torch.inference_mode()
def rank_positives(
    scores: ScoreFunction,
    query_group: Tensor,
    gallery_group: Tensor,
    query_block: int = QUERY_BLOCK,
    gallery_block: int = GALLERY_BLOCK,
) -> PositiveRanks:
    """Ranks of each query's right answers, best first, at most KEPT of them, and how many there are.

    rank_k = k + #{ wrong j : s_j >= s of the k-th best right answer }
    No list is ever sorted, and no more than `queries` × `items` scores exist at a time: right answers are looked up
    first, in the few blocks where they are, and then the wrong ones above them are counted, block by block.
    """
    order = query_group.argsort(stable=True), gallery_group.argsort(stable=True)  # so that right ones lie together
    query_sorted, gallery_sorted = query_group[order[0]], gallery_group[order[1]]
    begin, end = (torch.searchsorted(gallery_sorted, query_sorted, right=side) for side in (False, True))
    count = end - begin  # (Q,)
    max_positives = min(MAX_POSITIVES, int(count.max())) if len(count) else 0
    rank = torch.zeros(len(query_sorted), max_positives, dtype=torch.long)
    for first in range(0, len(query_sorted), query_block):
        block = slice(first, first + query_block)
        query_rows = _QueryBlock(scores, order[0][block], query_sorted[block], order[1], gallery_sorted, gallery_block)
        block_ranks = query_rows.compute_ranks(
            int(begin[block][0]), int(end[block][-1]), min(max_positives, int(count[block].max()))
        )
        rank[block, : block_ranks.shape[1]] = block_ranks.where(
            torch.arange(1, block_ranks.shape[1] + 1) <= count[block, None], 0
        )
    inverse_order = order[0].argsort()
    return PositiveRanks(rank[inverse_order], count[inverse_order])


@dataclass(frozen=True)
class _QueryBlock:
    """Some queries of neighbouring groups against a gallery ordered by group, tile by tile."""

    scores: ScoreFunction
    rows: Tensor
    group: Tensor
    columns: Tensor
    gallery_group: Tensor
    gallery_block: int

    def compute_ranks(self, begin: int, end: int, max_positives: int) -> Tensor:
        """Ranks (q, kept); the right answers of all these queries lie between begin and end of the gallery."""
        positive_tiles = (
            range(begin - begin % self.gallery_block, end, self.gallery_block) if max_positives else range(0)
        )
        is_single_tile = len(positive_tiles) == 1 and len(self.columns) <= self.gallery_block
        tile = self.score_tile(positive_tiles[0]) if is_single_tile else None  # a small gallery is scored once
        best = torch.empty(len(self.rows), 0)
        for first in positive_tiles:
            scores = self.score_tile(first) if tile is None else tile
            positive_scores = scores.masked_fill(~self.mask_positives(first, scores), -torch.inf)
            best = torch.cat([best.to(positive_scores), positive_scores], dim=1)
            best = best.topk(min(max_positives, best.shape[1]), dim=1).values
        num_above = torch.zeros(best.shape, dtype=torch.long)
        for first in range(0, len(self.columns), self.gallery_block) if max_positives else ():
            scores = self.score_tile(first) if tile is None else tile
            if first in positive_tiles:
                scores = scores.masked_fill(self.mask_positives(first, scores), -torch.inf)
            for k in range(best.shape[1]):
                # All but those below: a score that is no number stands before every right answer, too.
                below = (scores < best[:, k, None]).sum(dim=1, dtype=torch.int32)  # twice as fast as int64
                num_above[:, k] += scores.shape[1] - below.cpu()
        return (torch.arange(1, best.shape[1] + 1) + num_above).clamp(max=len(self.columns))

    def score_tile(self, first: int) -> Tensor:
        return self.scores(self.rows, self.columns[first : first + self.gallery_block])  # (q, m)

    def mask_positives(self, first: int, scores: Tensor) -> Tensor:
        same = self.group[:, None] == self.gallery_group[first : first + self.gallery_block]
        return same.to(scores.device)


def average_precision(ranks: PositiveRanks, cutoff: int) -> Tensor:
    """Average precision of each query among its first `cut` answers, (Q,); its mean is mAP@cut.

    AP = 1/R · sum_k k / rank_k over the right answers with rank_k <= cut, best first; R of them are in the gallery, so
    that a query with more than `cut` cannot reach 1. Some divide by the smaller of R and cut, or by those found.
    """
    k = torch.arange(1, ranks.rank.shape[1] + 1, dtype=torch.double)
    inside = (ranks.rank >= 1) & (ranks.rank <= cutoff)
    return torch.where(inside, k / ranks.rank.clamp(min=1), 0.0).sum(dim=1) / ranks.num_positives.clamp(min=1)


def ndcg(ranks: PositiveRanks, cutoff: int) -> Tensor:
    """Discounted gain of each query among its first `cut` answers, as a share of the best there is: (Q,).

    nDCG = sum_k 1 / log2(1 + rank_k) over the right answers with rank_k <= cut, by the same with rank_k = k, k <= R.
    """
    inside = (ranks.rank >= 1) & (ranks.rank <= cutoff)
    gains = torch.where(inside, 1 / (1 + ranks.rank.double()).log2(), 0.0).sum(dim=1)
    ideal = torch.cat([torch.zeros(1).double(), _discounts(cutoff).cumsum(0)])
    return gains / ideal[ranks.num_positives.clamp(min=1, max=cutoff)]


def _discounts(cutoff: int) -> Tensor:
    return 1 / torch.arange(2, cutoff + 2).double().log2()


def compute_retrieval_metrics(
    query: str,
    gallery: str,
    ranks: PositiveRanks,
    group: Tensor,
    num_items: int,
    num_resamples: int = NUM_RESAMPLES,
    mode: Mode = "inductive",
) -> RetrievalResult:
    """Every metric of one direction, beside what guessing gives, with intervals by `draws` draws (none for 0)."""
    has_positive = ranks.num_positives > 0  # a query without any right answer in the gallery says nothing
    item_index = has_positive.nonzero()[:, 0]
    ranks = PositiveRanks(ranks.rank[has_positive], ranks.num_positives[has_positive])
    best_rank, num_positives = ranks.rank[:, 0].numpy(), ranks.num_positives.numpy()
    values = {
        **{f"R@{k}": (best_rank <= k).astype(np.float64) for k in RECALL_KS},
        **{f"mAP@{k}": average_precision(ranks, k).numpy() for k in MAP_KS},
        f"nDCG@{NDCG_K}": ndcg(ranks, NDCG_K).numpy(),
        MEAN_RANK: best_rank.astype(np.float64),
    }
    per_query = PerQuery(item_index.numpy(), group[has_positive].numpy(), num_positives, best_rank, values)
    return RetrievalResult(
        query=query,
        gallery=gallery,
        num_queries=len(best_rank),
        num_items=num_items,
        metrics={name: float(column.mean()) for name, column in values.items()}
        | {MEDIAN_RANK: float(np.median(best_rank))},
        chance_levels=compute_chance_levels(num_items, num_positives),
        intervals=_metric_intervals(values, per_query.group, num_items, num_resamples) if num_resamples else {},
        mode=mode,
        per_query=per_query,
    )


def metric_bounds(metric: str, num_items: int) -> tuple[float, float]:
    """The lowest and the highest a metric can be in a gallery of so many items."""
    return (1, num_items) if metric == MEAN_RANK else (0, 1)


def _metric_intervals(
    values: dict[str, NDArray], cluster: NDArray, num_items: int, num_resamples: int
) -> dict[str, Interval]:
    table = np.column_stack(list(values.values()))
    metric_intervals = bootstrap_intervals(
        table, cluster, [metric_bounds(name, num_items) for name in values], num_resamples=num_resamples
    )
    return dict(zip(values, metric_intervals, strict=True))


def compute_chance_levels(num_items: int, num_positives: NDArray) -> dict[str, float]:
    """What a random order of the gallery gives on the average, for queries with `right` (Q,) right answers each.

    mAP@k: 1/M · sum_(r <= k) (1 + (r - 1)(R - 1)/(M - 1)) / r      mean rank: (M + 1) / (R + 1)
    """
    distinct_counts, frequencies = np.unique(num_positives, return_counts=True)
    positive_fraction = distinct_counts / num_items
    levels = {
        f"R@{k}": np.array([compute_chance_recall(num_items, int(r), k) for r in distinct_counts]) for k in RECALL_KS
    }
    for cutoff in MAP_KS:
        rank = np.arange(1, min(cutoff, num_items) + 1)
        expected_others = (distinct_counts[:, None] - 1) * (rank - 1) / max(1, num_items - 1)
        levels[f"mAP@{cutoff}"] = ((1 + expected_others) / rank).sum(axis=1) / num_items
    discounts = _discounts(NDCG_K).numpy()
    ideal = discounts.cumsum()[np.minimum(distinct_counts, NDCG_K) - 1]
    levels[f"nDCG@{NDCG_K}"] = positive_fraction * discounts[:num_items].sum() / ideal
    levels[MEAN_RANK] = (num_items + 1) / (distinct_counts + 1)
    return {name: float(np.average(each, weights=frequencies)) for name, each in levels.items()}


def compute_chance_recall(num_items: int, num_positives: int, k: int) -> float:
    """Recall@k of a random order: 1 - C(items - right, k) / C(items, k)."""
    if num_positives == 0:
        return 0.0
    if num_items - num_positives < k:
        return 1.0
    offsets = np.arange(k)
    return 1 - float(np.prod((num_items - num_positives - offsets) / (num_items - offsets)))
