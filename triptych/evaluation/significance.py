"""Compute confidence intervals of means over queries, with a cluster bootstrap or over several runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from triptych.errors import InputError

NUM_RESAMPLES, CONFIDENCE_LEVEL = 2000, 0.95
MIN_RUNS = 2  # minimum number of runs to estimate the variance over seeds
MAX_ELEMENTS = 4_000_000  # maximum number of elements in the weight matrix of one block of resamples


@dataclass(frozen=True)
class Interval:
    """A confidence interval (95% unless stated otherwise)."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the width of the interval."""
        return (self.high - self.low) / 2

    def contains(self, value: float) -> bool:
        """Return True if a value lies in the interval."""
        return self.low <= value <= self.high


def bootstrap_means(values: NDArray, cluster: NDArray, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> NDArray:
    """Resample clusters of queries with replacement, and return the means (num_resamples, V) of values (Q, V).

    mean*_v = sum_c w_c · sum_(q in c) x_qv / sum_c w_c · n_c,     w ~ multinomial(C; 1/C, …)
    Clusters with equal sums and sizes are drawn together, so the cost depends on the number of distinct clusters, not
    on the number of queries.

    Source: Efron and Tibshirani 1993. Davison and Hinkley 1997, section 3.8, for the resampling of clusters.
    Use when: the queries of a cluster are not independent, such as the five captions of one clip.
    Beware: only queries are resampled; the gallery and the training run are fixed.
    """
    values = np.asarray(values, np.float64).reshape(len(values), -1)
    if len(cluster) != len(values) or not len(values):
        sizes = f"{len(values)} values, {len(cluster)} cluster ids"
        raise InputError(f"{sizes}; need one cluster id per value, and at least one value")
    if num_resamples < 1:
        raise InputError(f"num_resamples = {num_resamples}; need at least 1")
    _, cluster_index = np.unique(cluster, return_inverse=True)
    sums = np.zeros((int(cluster_index.max()) + 1, values.shape[1] + 1))
    np.add.at(sums, cluster_index, np.column_stack([values, np.ones(len(values))]))
    distinct_sums, counts = np.unique(sums, axis=0, return_counts=True)  # (K, V + 1), (K,)
    blocks = [weights @ distinct_sums for weights in _draw_weights(counts, num_resamples, np.random.default_rng(seed))]
    drawn = np.concatenate(blocks)
    return drawn[:, :-1] / drawn[:, -1:]


def _draw_weights(counts: NDArray, num_resamples: int, rng: np.random.Generator) -> Iterator[NDArray]:
    """Yield blocks of resampling weights: the number of times that each of K distinct clusters is drawn."""
    step, total = max(1, MAX_ELEMENTS // len(counts)), counts.sum()
    for first in range(0, num_resamples, step):
        yield rng.multinomial(total, counts / total, size=min(step, num_resamples - first)).astype(np.float64)


def bootstrap_intervals(
    values: NDArray,
    cluster: NDArray,
    bounds: Sequence[tuple[float, float]] | None = None,
    confidence_level: float = CONFIDENCE_LEVEL,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> list[Interval]:
    """Return bootstrap intervals of the mean of each column of values (Q, V). `bounds` are the limits of each column.

    The interval ends are expanded percentiles of the resampled means, which correct for a small number C of clusters:
    tail = Phi(sqrt(C / (C - 1)) · t(C - 1)⁻¹((1 - level) / 2)). If all values of a column are equal
    (for example if no query is a hit), the resampled means have no variance. The interval is then the exact bound for C
    equal trials: a fraction of up to 1 - ((1 - level) / 2)^(1/C) of the trials may differ by as much as the bounds
    allow. Without bounds, the interval is a single point.

    Source: Hesterberg 2015, "What teachers should know about the bootstrap", for expanded percentiles. Clopper and
        Pearson 1934 for the bound.
    """
    values = np.asarray(values, np.float64).reshape(len(values), -1)
    clusters = len(np.unique(cluster))
    tail = (1 - confidence_level) / 2
    drawn = bootstrap_means(values, cluster, num_resamples, seed)
    expanded_tail = ndtr(np.sqrt(clusters / (clusters - 1)) * stdtrit(clusters - 1, tail)) if clusters > 1 else 0.0
    ends = np.quantile(drawn, [expanded_tail, 1 - expanded_tail], axis=0)
    unseen_rate = 1 - tail ** (1 / clusters)
    result = []
    for i, (low, high) in enumerate(ends.T.tolist()):
        first = float(values[0, i])
        if bounds and np.ptp(values[:, i]) == 0:
            low, high = first - unseen_rate * (first - bounds[i][0]), first + unseen_rate * (bounds[i][1] - first)
        result.append(Interval(low, high))
    return result


@dataclass(frozen=True)
class Difference:
    """Two means over the same queries, and the interval of mean_b - mean_a."""

    mean_a: float
    mean_b: float
    interval: Interval

    @property
    def value(self) -> float:
        """mean_b - mean_a."""
        return self.mean_b - self.mean_a

    @property
    def is_significant(self) -> bool:
        """True if the interval excludes zero."""
        return not self.interval.contains(0)

    def verdict(self, higher_is_better: bool = True) -> str:
        """Return "A is better", "B is better" or "not separable"."""
        if not self.is_significant:
            return "not separable"
        return "B is better" if (self.value > 0) == higher_is_better else "A is better"


def compute_run_intervals(
    values: Sequence[NDArray], cluster: NDArray, confidence_level: float = CONFIDENCE_LEVEL
) -> list[Interval]:
    """Return intervals of the mean of values (Q, V) over several runs, which cover the choice of items and of seeds.

    mean ± t(df)⁻¹ · sqrt(I + S),  I = C/(C - 1) · sum_c (sum_(q in c) (x_q - mean))² / Q²  with x the mean over runs,
    S = var of the runs' means / number of runs,  df = (I + S)² / (I² / (C - 1) + S² / (runs - 1)).

    Source: Liang and Zeger 1986 for I; Satterthwaite 1946 for df.
    Use when: there are at least two seeds.
    Beware: intervals are slightly too wide, because the interaction of seeds and items is counted twice.
    """
    return compute_run_difference_intervals([], values, cluster, confidence_level)


def compute_run_difference_intervals(
    a: Sequence[NDArray], b: Sequence[NDArray], cluster: NDArray, confidence_level: float = CONFIDENCE_LEVEL
) -> list[Interval]:
    """Return intervals of the mean over runs `b` minus the mean over runs `a`; see `compute_run_intervals`."""
    if len(b) < MIN_RUNS or len(a) == 1:
        need = f"need at least {MIN_RUNS} runs each, to estimate the variance over seeds"
        raise InputError(f"{len(a)} and {len(b)} runs; {need}")
    sides = [np.stack([np.reshape(run, (len(cluster), -1)).astype(float) for run in side]) for side in (b, a) if side]
    difference = sides[0].mean(axis=0) - (sides[1].mean(axis=0) if a else 0)  # (Q, V)
    centre = difference.mean(axis=0)
    _, cluster_index = np.unique(cluster, return_inverse=True)
    clusters = int(cluster_index.max()) + 1
    cluster_sums = np.zeros((clusters, difference.shape[1]))
    np.add.at(cluster_sums, cluster_index, difference - centre)
    variances = [(clusters / max(1, clusters - 1) * (cluster_sums**2).sum(axis=0) / len(difference) ** 2, clusters - 1)]
    variances += [(side.mean(axis=1).var(axis=0, ddof=1) / len(side), len(side) - 1) for side in sides]
    total = np.sum([part for part, _ in variances], axis=0)
    denominator = np.sum([part**2 / max(1, degrees) for part, degrees in variances], axis=0)
    degrees = np.divide(total**2, denominator, out=np.ones_like(total), where=denominator > 0)
    half = -stdtrit(degrees, (1 - confidence_level) / 2) * np.sqrt(total)
    return [Interval(low, high) for low, high in zip((centre - half).tolist(), (centre + half).tolist(), strict=True)]
