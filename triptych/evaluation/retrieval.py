"""Compute retrieval metrics of queries of one modality in a gallery of another modality.

All of triptych uses the following conventions. Each caption is a separate query, and a separate item in a gallery of
text. Any positive (such as one of five captions) is a hit. Ties count against the query, so the metrics of a collapsed
space do not exceed chance. A query without a positive in the gallery is excluded from the metrics.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triptych.evaluation import chance
from triptych.evaluation.significance import NUM_RESAMPLES, Interval, bootstrap_intervals

RECALL_KS = (1, 5, 10)
MAP_KS = (10, 16)
NDCG_K = 10
MAX_POSITIVES = max(MAP_KS)  # maximum number of positives per query whose ranks are computed
QUERY_BLOCK, GALLERY_BLOCK = 256, 8192  # number of queries and of gallery items that are scored at once
MEDIAN_RANK, MEAN_RANK = "median rank", "mean rank"
METRICS = (*(f"R@{k}" for k in RECALL_KS), *(f"mAP@{k}" for k in MAP_KS), f"nDCG@{NDCG_K}", MEAN_RANK)

ScoreFunction = Callable[[Tensor, Tensor], Tensor]  # indices of queries (q,) and items (m,) -> scores (q, m)
Mode = Literal["inductive", "transductive"]  # rank each query by itself, or all queries jointly


@dataclass(frozen=True)
class PositiveRanks:
    """The ranks of the positives of each query."""

    # (Q, K) int, K <= MAX_POSITIVES: rank (from 1) of the k-th best positive, or 0 if there are fewer than k positives
    rank: Tensor
    num_positives: Tensor  # (Q,) int: number of positives in the gallery


@dataclass(frozen=True)
class PerQuery:
    """The results of each query that has a positive."""

    item_index: NDArray[np.int64]  # (Q,) index of the query among the items of its modality
    group: NDArray[np.int64]  # (Q,) group of each query; queries of one group have the same positives
    num_positives: NDArray[np.int64]  # (Q,) number of positives in the gallery
    best_rank: NDArray[np.int64]  # (Q,) rank of the best positive
    values: dict[str, NDArray[np.float64]]  # metric name -> one value per query (Q,); the metric is their mean


@dataclass(frozen=True)
class RetrievalResult:
    """The metrics of one direction: R@1, R@5, R@10, mAP@10, mAP@16, nDCG@10, mean rank, median rank."""

    query: str
    gallery: str
    num_queries: int
    num_items: int
    metrics: dict[str, float]  # metric name -> a fraction from 0 to 1, or a rank from 1
    chance_levels: dict[str, float]  # metric name -> value expected under random ranking; without the median rank
    per_query: PerQuery = field(repr=False, compare=False)
    intervals: dict[str, Interval] = field(default_factory=dict)  # 95% intervals; without the median rank
    mode: Mode = "inductive"

    @property
    def recall(self) -> dict[int, float]:
        """A dict from k to the fraction of queries with a positive among the first k items."""
        return {k: self.metrics[f"R@{k}"] for k in RECALL_KS}

    @property
    def chance_recall(self) -> dict[int, float]:
        """A dict from k to the recall that is expected under random ranking."""
        return {k: self.chance_levels[f"R@{k}"] for k in RECALL_KS}

    @property
    def median_rank(self) -> float:
        """The median over queries of the rank of the best positive."""
        return self.metrics[MEDIAN_RANK]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-compatible data, with metrics as fractions."""
        return {
            "query": self.query,
            "gallery": self.gallery,
            "mode": self.mode,
            "num_queries": self.num_queries,
            "num_items": self.num_items,
            "recall": self.recall,  # the same values as R@k in `metrics`, with k as the key
            "chance_recall": self.chance_recall,
            "metrics": self.metrics,
            "chance_levels": self.chance_levels,
            "intervals": {name: [interval.low, interval.high] for name, interval in self.intervals.items()},
        }

    def to_row(self) -> dict[str, Any]:
        """Return the result as a row of a table: the value, the interval and the chance level of every metric."""
        row: dict[str, Any] = {key: value for key, value in self.to_dict().items() if not isinstance(value, dict)}
        for name, value in self.metrics.items():
            row[name] = value
            if name in self.intervals:
                row |= {f"{name} low": self.intervals[name].low, f"{name} high": self.intervals[name].high}
            if name in self.chance_levels:
                row[f"{name} chance"] = self.chance_levels[name]
        return row


@torch.inference_mode()
def rank_positives(
    scores: ScoreFunction,
    query_group: Tensor,
    gallery_group: Tensor,
    query_block: int = QUERY_BLOCK,
    gallery_block: int = GALLERY_BLOCK,
) -> PositiveRanks:
    """Return the ranks of the MAX_POSITIVES best positives of each query, best first, and the number of positives.

    rank_k = k + #{ negatives j : s_j >= s of the k-th best positive }
    Scores are not sorted, and at most query_block × gallery_block scores are in memory. The first pass scores the
    positives, in the few blocks that contain positives. The second pass counts the negatives that rank above positives.
    """
    order = query_group.argsort(stable=True), gallery_group.argsort(stable=True)  # sorting makes positives adjacent
    query_sorted, gallery_sorted = query_group[order[0]], gallery_group[order[1]]
    begin, end = (torch.searchsorted(gallery_sorted, query_sorted, right=side) for side in (False, True))
    count = end - begin  # (Q,)
    max_positives = min(MAX_POSITIVES, int(count.max())) if len(count) else 0
    rank = torch.zeros(len(query_sorted), max_positives, dtype=torch.long)
    for first in range(0, len(query_sorted), query_block):
        block = slice(first, first + query_block)
        queries = _QueryBlock(scores, order[0][block], query_sorted[block], order[1], gallery_sorted, gallery_block)
        width = min(max_positives, int(count[block].max()))
        ranks = queries.compute_ranks(int(begin[block][0]), int(end[block][-1]), width)  # (q, K)
        k = torch.arange(1, ranks.shape[1] + 1)
        rank[block, : len(k)] = ranks.where(k <= count[block, None], 0)
    inverse_order = order[0].argsort()
    return PositiveRanks(rank[inverse_order], count[inverse_order])


@dataclass(frozen=True)
class _QueryBlock:
    """A block of queries that is scored, tile by tile, against a gallery sorted by group."""

    scores: ScoreFunction
    rows: Tensor
    group: Tensor
    columns: Tensor
    gallery_group: Tensor
    gallery_block: int

    def compute_ranks(self, begin: int, end: int, max_positives: int) -> Tensor:
        """Return the ranks (q, max_positives) of the positives, which lie between begin and end in the gallery."""
        step = self.gallery_block
        positive_tiles = range(begin - begin % step, end, step) if max_positives else range(0)
        is_single_tile = len(positive_tiles) == 1 and len(self.columns) <= step
        tile = self.score_tile(positive_tiles[0]) if is_single_tile else None  # a small gallery is scored once
        best = torch.empty(len(self.rows), 0)
        for first in positive_tiles:
            scores = self.score_tile(first) if tile is None else tile
            positive_scores = scores.masked_fill(~self.mask_positives(first, scores), -torch.inf)
            best = torch.cat([best.to(positive_scores), positive_scores], dim=1)
            best = best.topk(min(max_positives, best.shape[1]), dim=1).values
        num_above = torch.zeros(best.shape, dtype=torch.long)
        for first in range(0, len(self.columns), step) if max_positives else ():
            scores = self.score_tile(first) if tile is None else tile
            if first in positive_tiles:
                scores = scores.masked_fill(self.mask_positives(first, scores), -torch.inf)
            for k in range(best.shape[1]):
                # Count the lower scores, not the higher scores, so that NaN scores rank above every positive.
                below = (scores < best[:, k, None]).sum(dim=1, dtype=torch.int32)  # int32 is twice as fast as int64
                num_above[:, k] += scores.shape[1] - below.cpu()
        return (torch.arange(1, best.shape[1] + 1) + num_above).clamp(max=len(self.columns))

    def score_tile(self, first: int) -> Tensor:
        return self.scores(self.rows, self.columns[first : first + self.gallery_block])  # (q, m)

    def mask_positives(self, first: int, scores: Tensor) -> Tensor:
        return (self.group[:, None] == self.gallery_group[first : first + self.gallery_block]).to(scores.device)


def average_precision(ranks: PositiveRanks, cutoff: int) -> Tensor:
    """Return the average precision (Q,) of each query at `cutoff`. The mean over queries is mAP@cutoff.

    AP = 1/R · sum_k k / rank_k over the positives with rank_k <= cutoff, for R positives in the gallery. If R > cutoff,
    AP is always below 1. Other definitions divide by min(R, cutoff), or by the number of retrieved positives.
    """
    k = torch.arange(1, ranks.rank.shape[1] + 1, dtype=torch.double)
    inside = (ranks.rank >= 1) & (ranks.rank <= cutoff)
    return torch.where(inside, k / ranks.rank.clamp(min=1), 0.0).sum(dim=1) / ranks.num_positives.clamp(min=1)


def ndcg(ranks: PositiveRanks, cutoff: int) -> Tensor:
    """Return the normalised discounted cumulative gain at `cutoff` of each query: (Q,).

    nDCG = sum_k 1 / log2(1 + rank_k) over the positives with rank_k <= cutoff, divided by the sum for rank_k = k.
    """
    inside = (ranks.rank >= 1) & (ranks.rank <= cutoff)
    gains = torch.where(inside, 1 / (1 + ranks.rank.double()).log2(), 0.0).sum(dim=1)
    ideal = torch.from_numpy(chance.discount_ranks(cutoff).cumsum())
    return gains / ideal[ranks.num_positives.clamp(min=1, max=cutoff) - 1]


def compute_retrieval_metrics(
    query: str,
    gallery: str,
    ranks: PositiveRanks,
    group: Tensor,
    num_items: int,
    num_resamples: int = NUM_RESAMPLES,
    mode: Mode = "inductive",
) -> RetrievalResult:
    """Compute every metric of one direction with chance levels and, unless num_resamples is 0, with intervals."""
    has_positive = ranks.num_positives > 0
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
    metrics = {name: float(column.mean()) for name, column in values.items()}
    return RetrievalResult(
        query=query,
        gallery=gallery,
        num_queries=len(best_rank),
        num_items=num_items,
        metrics=metrics | {MEDIAN_RANK: float(np.median(best_rank))},
        chance_levels=compute_chance_levels(num_items, num_positives),
        intervals=compute_metric_intervals(values, per_query.group, num_items, num_resamples) if num_resamples else {},
        mode=mode,
        per_query=per_query,
    )


def metric_bounds(metric: str, num_items: int) -> tuple[float, float]:
    """Return the lowest and highest value of a metric in a gallery of num_items."""
    return (1, num_items) if metric == MEAN_RANK else (0, 1)


def compute_metric_intervals(
    values: dict[str, NDArray], cluster: NDArray, num_items: int, num_resamples: int
) -> dict[str, Interval]:
    """Return the intervals of metrics, given the values (Q,) of each metric. All metrics are resampled together."""
    table, bounds = np.column_stack(list(values.values())), [metric_bounds(name, num_items) for name in values]
    return dict(zip(values, bootstrap_intervals(table, cluster, bounds, num_resamples=num_resamples), strict=True))


def compute_chance_levels(num_items: int, num_positives: NDArray) -> dict[str, float]:
    """Return the metrics that are expected if the items are ranked at random, for queries with num_positives (Q,)."""
    counts, frequencies = np.unique(num_positives, return_counts=True)
    gains = (np.arange(NDCG_K) < counts[:, None]).astype(np.float64)
    relevance = chance.RelevanceCounts(num_items, counts, counts, counts.astype(np.float64), ideal_gains=gains)
    levels = {MEAN_RANK: chance.compute_chance_mean_rank(relevance)}
    for k in (*RECALL_KS, *MAP_KS):
        levels |= chance.compute_cutoff_chance_levels(relevance, k)
    return {name: float(np.average(levels[name], weights=frequencies)) for name in METRICS}
