"""Rank the relevant items of each query of a score matrix, and compute metrics from graded, many-to-many relevance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triptych.evaluation import retrieval
from triptych.evaluation.chance import RelevanceCounts, discount_ranks
from triptych.evaluation.judgements import Judgements

APDenominator = Literal["relevant", "cutoff"]


@dataclass(frozen=True)
class RankedRelevance:
    """The ranks and grades of the best K relevant items of each query."""

    # rank (Q, K) is 0 for an item that is not retrieved. num_positives (Q,) includes items that are not in the gallery.
    ranks: retrieval.PositiveRanks
    gains: NDArray[np.float64]  # (Q, K) grades of the ranked items
    counts: RelevanceCounts

    @property
    def best_rank(self) -> NDArray[np.int64]:
        """The rank of the best relevant item of each query, or the last rank if no relevant item is retrieved."""
        first = self.ranks.rank[:, 0].numpy()
        return np.where(first > 0, first, self.counts.num_items)

    def select(self, mask: NDArray[np.bool_]) -> RankedRelevance:
        """Return the ranks, grades and counts of the queries that a mask (Q,) selects."""
        counts, rows = self.counts, torch.from_numpy(mask)
        arrays: list[NDArray[Any]] = [counts.num_present, counts.num_relevant, counts.gain, counts.ideal_gains]
        return RankedRelevance(
            retrieval.PositiveRanks(self.ranks.rank[rows], self.ranks.num_positives[rows]),
            self.gains[mask],
            RelevanceCounts(counts.num_items, *(array[mask] for array in arrays)),
        )

    def measure(self, k: int, ap_denominator: APDenominator = "relevant") -> dict[str, NDArray[np.float64]]:
        """Return the values (Q,) of every metric with cutoff k <= K. Every query must have a relevant item."""
        num_hits: NDArray[np.int64] = self.mask_hits(k).sum(axis=1)
        precision = retrieval.average_precision(self.ranks, k).numpy()
        return {
            f"R@{k}": (num_hits > 0).astype(np.float64),
            f"IR recall@{k}": num_hits / self.counts.num_relevant,
            f"P@{k}": num_hits / k,
            f"MRR@{k}": (num_hits > 0) / self.best_rank,
            f"mAP@{k}": precision if ap_denominator == "relevant" else self.divide_by_cutoff(precision, k),
            f"nDCG@{k}": self.compute_ndcg(k),
        }

    def measure_standard(self) -> dict[str, NDArray[np.float64]]:
        """Return the metrics of `compute_retrieval_metrics`, in the same order."""
        return {
            **{f"R@{k}": self.measure(k)[f"R@{k}"] for k in retrieval.RECALL_KS},
            **{f"mAP@{k}": retrieval.average_precision(self.ranks, k).numpy() for k in retrieval.MAP_KS},
            f"nDCG@{retrieval.NDCG_K}": self.compute_ndcg(retrieval.NDCG_K),
            retrieval.MEAN_RANK: self.best_rank.astype(np.float64),
        }

    def mask_hits(self, k: int) -> NDArray[np.bool_]:
        """Return a mask (Q, K) of the relevant items that are among the first k items."""
        return ((self.ranks.rank >= 1) & (self.ranks.rank <= k)).numpy()

    def divide_by_cutoff(self, values: NDArray[np.float64], k: int) -> NDArray[np.float64]:
        """Change the divisor of average precisions from R to min(R, k), with R the number of relevant items."""
        return values * self.counts.num_relevant / np.minimum(self.counts.num_relevant, k)

    def compute_ndcg(self, k: int) -> NDArray[np.float64]:
        """Return nDCG@k of each query, with grades as gains."""
        ideal_gains = self.counts.ideal_gains[:, :k]
        if np.isin(self.gains, (0, 1)).all() and np.isin(ideal_gains, (0, 1)).all():
            return retrieval.ndcg(self.ranks, k).numpy()
        gains = np.where(self.mask_hits(k), self.gains / np.log2(1.0 + self.ranks.rank.clamp(min=1).numpy()), 0.0)
        return gains.sum(axis=1) / (ideal_gains @ discount_ranks(ideal_gains.shape[1]))


@torch.inference_mode()
def rank_relevant(
    scores: Tensor, judgements: Judgements, depth: int, query_block: int = retrieval.QUERY_BLOCK
) -> RankedRelevance:
    """Return the ranks of the best `depth` relevant items of each query.

    rank_j = j + #{ items i that are not relevant : s_i >= s of the j-th best relevant item }
    `rank_positives` uses the same definition, but only supports relevance that groups can express. If relevant items
    have equal scores, the item with the lowest grade ranks first.

    Args:
        scores: Scores (Q, M). An item with a score of -inf is not retrieved.
        judgements: The relevance of all items to all queries.
        depth: Number K of relevant items per query whose ranks are computed.
        query_block: Number of queries that are ranked at once.

    Returns:
        Ranks (Q, K) and grades (Q, K) of the relevant items.

    Example:
        >>> from triptych.evaluation.judgements import make_judgements
        >>> judgements = make_judgements((1, 4), [[0, 1, 0, 2]])
        >>> rank_relevant(torch.tensor([[0.4, 0.3, 0.2, 0.1]]), judgements, depth=3).ranks.rank
        tensor([[2, 4, 0]])
    """
    blocks = []
    for first in range(0, len(scores), query_block):
        block = slice(first, first + query_block)
        grades = judgements.grades(block)  # (q, M)
        missing = [judgements.missing_grades.get(row, []) for row in range(first, first + len(grades))]
        num_present = (grades > 0).sum(dim=1).numpy()
        num_relevant = num_present + np.array([len(row) for row in missing])
        ideal_gains = _sort_ideal_gains(grades, missing, depth)
        counts = num_present, num_relevant, grades.sum(dim=1).numpy(), ideal_gains
        blocks.append((*_rank_block(scores[block], grades, depth), *counts))
    ranks, *arrays = zip(*blocks, strict=True)
    gains, *counts = map(np.concatenate, arrays)
    relevance_counts = RelevanceCounts(scores.shape[1], *counts)
    positive_ranks = retrieval.PositiveRanks(torch.cat(ranks), torch.from_numpy(relevance_counts.num_relevant))
    return RankedRelevance(positive_ranks, gains, relevance_counts)


def _rank_block(scores: Tensor, grades: Tensor, depth: int) -> tuple[Tensor, NDArray[np.float64]]:
    """Return the ranks (q, depth) and the grades (q, depth) of the best relevant items."""
    is_relevant = grades > 0
    row, column = (x.numpy() for x in is_relevant.nonzero(as_tuple=True))
    score, grade = scores[row, column].numpy(), grades[row, column].numpy()
    order = np.lexsort((grade, -score, row))  # sort by row, then by descending score, then by ascending grade
    row, score, grade = row[order], score[order], grade[order]
    count = np.bincount(row, minlength=len(scores))
    position = np.arange(len(row)) - (count.cumsum() - count)[row]
    inside = position < depth
    best = torch.full((len(scores), depth), -torch.inf, dtype=scores.dtype)
    best[row[inside], position[inside]] = torch.from_numpy(score[inside])
    gains = np.zeros((len(scores), depth))
    gains[row[inside], position[inside]] = grade[inside]
    others = scores.masked_fill(is_relevant, -torch.inf)
    ranks = torch.zeros(best.shape, dtype=torch.long)
    for k in range(min(depth, int(count.max()))):
        num_above = (others >= best[:, k, None]).sum(dim=1, dtype=torch.int32)  # int32 is twice as fast as int64
        ranks[:, k] = torch.where(best[:, k] > -torch.inf, k + 1 + num_above, 0)
    return ranks, gains


def _sort_ideal_gains(grades: Tensor, missing: list[list[float]], depth: int) -> NDArray[np.float64]:
    """Return the highest grades (q, depth) of each query, including grades of items that are not in the gallery."""
    width = max(depth, max(len(row) for row in missing))
    best = np.zeros((len(grades), 2 * width))
    top = grades.topk(min(depth, grades.shape[1]), dim=1).values.numpy()
    best[:, : top.shape[1]] = top
    for i, row in enumerate(missing):
        best[i, width : width + len(row)] = row
    return -np.sort(-best, axis=1)[:, :depth]
