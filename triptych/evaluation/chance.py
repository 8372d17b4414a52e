"""Expected values of the retrieval metrics under random ranking, for any cutoff and for graded relevance."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RelevanceCounts:
    """The number and the grades of the relevant items of each query."""

    num_items: int  # M, the number of items in the gallery
    num_present: NDArray[np.int64]  # (Q,) number of relevant items in the gallery
    num_relevant: NDArray[np.int64]  # (Q,) number of relevant items, including items that are not in the gallery
    gain: NDArray[np.float64]  # (Q,) sum of the grades of the items in the gallery
    ideal_gains: NDArray[np.float64]  # (Q, K) the K highest grades of the relevant items, in descending order


def discount_ranks(num_ranks: int) -> NDArray[np.float64]:
    """Return the nDCG weights 1 / log2(1 + rank) for the ranks 1 to num_ranks.

    Args:
        num_ranks: Number of ranks.

    Returns:
        Weights (num_ranks,).

    Example:
        >>> discount_ranks(3)
        array([1.        , 0.63092975, 0.5       ])
    """
    return 1 / np.log2(np.arange(2, num_ranks + 2))


def compute_chance_recall(num_items: int, num_positives: int, k: int) -> float:
    """Return the recall@k that is expected under random ranking: 1 - C(items - positives, k) / C(items, k)."""
    if num_positives == 0:
        return 0.0
    if num_items - num_positives < k:
        return 1.0
    offsets = np.arange(k)
    return 1 - float(np.prod((num_items - num_positives - offsets) / (num_items - offsets)))


def compute_cutoff_chance_levels(counts: RelevanceCounts, k: int) -> dict[str, NDArray[np.float64]]:
    """Return the expected value of each metric at cutoff k for each query, if the M gallery items are ranked at random.

    R@k: `compute_chance_recall`      IR recall@k: k/M      P@k: R/M      MRR@k: sum_(r <= k) (R@r - R@(r - 1)) / r
    mAP@k: 1/M · sum_(r <= k) (1 + (r - 1)(R - 1)/(M - 1)) / r      nDCG@k: mean grade · sum of discounts / ideal sum
    R is the number of relevant items of the query. A relevant item that is not in the gallery always counts as missed.

    Args:
        counts: Number of relevant items of each query.
        k: Cutoff.

    Returns:
        A dict from the name of a metric to the expected values (Q,).

    Example:
        >>> one = np.ones(1, int)
        >>> counts = RelevanceCounts(10, one, one, gain=np.ones(1), ideal_gains=np.ones((1, 1)))
        >>> {name: round(float(level.mean()), 3) for name, level in compute_cutoff_chance_levels(counts, k=2).items()}
        {'R@2': 0.2, 'IR recall@2': 0.2, 'P@2': 0.1, 'MRR@2': 0.15, 'mAP@2': 0.15, 'nDCG@2': 0.163}
    """
    num_items, present, relevant = counts.num_items, counts.num_present, counts.num_relevant
    rank = np.arange(1, min(k, num_items) + 1)
    fraction_present = present / relevant
    expected_others = (present[:, None] - 1) * (rank - 1) / max(1, num_items - 1)
    distinct, index = np.unique(present, return_inverse=True)
    hit_by_rank = np.array(
        [[compute_chance_recall(num_items, count, j) for j in range(len(rank) + 1)] for count in distinct.tolist()]
    )
    reciprocal_rank = (np.diff(hit_by_rank, axis=1) / rank).sum(axis=1)
    width = min(k, counts.ideal_gains.shape[1])
    ideal = counts.ideal_gains[:, :width] @ discount_ranks(width)
    levels = {
        "R": hit_by_rank[index, -1],
        "IR recall": fraction_present * len(rank) / num_items,
        "P": present / num_items * len(rank) / k,
        "MRR": reciprocal_rank[index],
        "mAP": fraction_present * ((1 + expected_others) / rank).sum(axis=1) / num_items,
        "nDCG": counts.gain / num_items * discount_ranks(len(rank)).sum() / ideal,
    }
    return {f"{name}@{k}": level for name, level in levels.items()}


def compute_chance_mean_rank(counts: RelevanceCounts) -> NDArray[np.float64]:
    """Return the expected rank of the best of R relevant items if M items are ranked at random: (M + 1) / (R + 1).

    The expected rank is at most M.

    Args:
        counts: Number of relevant items of each query.

    Returns:
        Expected ranks (Q,).

    Example:
        >>> three = np.full(1, 3)
        >>> counts = RelevanceCounts(11, three, three, gain=np.full(1, 3.0), ideal_gains=np.ones((1, 3)))
        >>> compute_chance_mean_rank(counts)
        array([3.])
    """
    return np.minimum((counts.num_items + 1) / (counts.num_present + 1), counts.num_items)
