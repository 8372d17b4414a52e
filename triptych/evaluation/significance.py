"""How far a mean would move with other items of the same kind: intervals by resampling whole clusters of queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from triptych.errors import InputError

DRAWS, LEVEL = 2000, 0.95
AT_ONCE = 4_000_000  # numbers held at a time while drawing


@dataclass(frozen=True)
class Interval:
    """Where a number lies at the level that was asked for (95% unless said otherwise)."""

    low: float
    high: float

    @property
    def half(self) -> float:
        """Half its width: the number behind ±."""
        return (self.high - self.low) / 2

    def covers(self, value: float) -> bool:
        """Whether a value lies in it."""
        return self.low <= value <= self.high


def resample(values: NDArray, cluster: NDArray, draws: int = DRAWS, seed: int = 0) -> NDArray:
    """Means of V values (Q, V) over sets of queries drawn by the cluster, with replacement: (draws, V).

    mean*_v = sum_c w_c · sum_(q in c) x_qv / sum_c w_c · n_c,     w ~ multinomial(C; 1/C, …)
    Clusters whose sums and sizes are the same are counted together, so that recalls of a million queries cost no more
    than those of a hundred: the counts are drawn, not the clusters.

    Source: Efron and Tibshirani 1993; resampling whole clusters: Davison and Hinkley 1997, section 3.8.
    Use when: queries come in clusters that share their fate, as five captions of one clip do.
    Beware: what is drawn anew are queries; the gallery, and the training run, stay as they are.
    """
    values = np.asarray(values, np.float64).reshape(len(values), -1)
    if len(cluster) != len(values) or not len(values):
        raise InputError(f"{len(values)} values in {len(cluster)} clusters; need one each, and at least one")
    if draws < 1:
        raise InputError(f"draws = {draws}; need at least 1")
    _, place = np.unique(cluster, return_inverse=True)
    sums = np.zeros((int(place.max()) + 1, values.shape[1] + 1))
    np.add.at(sums, place, np.column_stack([values, np.ones(len(values))]))
    kinds, times = np.unique(sums, axis=0, return_counts=True)  # (K, V + 1), (K,)
    found = [weights @ kinds for weights in _weights(times, draws, np.random.default_rng(seed))]
    drawn = np.concatenate(found)
    return drawn[:, :-1] / drawn[:, -1:]


def _weights(times: NDArray, draws: int, rng: np.random.Generator) -> Iterator[NDArray]:
    """How often each kind of cluster is drawn, in blocks of draws: (at most draws, K)."""
    step = max(1, AT_ONCE // len(times))
    for first in range(0, draws, step):
        yield rng.multinomial(times.sum(), times / times.sum(), size=min(step, draws - first)).astype(np.float64)


def intervals(
    values: NDArray, cluster: NDArray, level: float = LEVEL, draws: int = DRAWS, seed: int = 0
) -> list[Interval]:
    """The interval of the mean of each column of values (Q, V).

    Percentiles of the resampled means, a little further out than the level says, as few clusters ask for:
    tail = Phi(sqrt(C / (C - 1)) · t(C - 1)⁻¹((1 - level) / 2)).  Where every query of a share is a hit, or none is,
    resampling sees no doubt at all; the bound is then that of C trials that all ended alike: 1 - tail^(1/C).

    Source: Hesterberg 2015, "What teachers should know about the bootstrap", expanded percentiles; Clopper and Pearson
        1934 for the bound.
    """
    values = np.asarray(values, np.float64).reshape(len(values), -1)
    clusters = len(np.unique(cluster))
    tail = (1 - level) / 2
    drawn = resample(values, cluster, draws, seed)
    wide = ndtr(np.sqrt(clusters / (clusters - 1)) * stdtrit(clusters - 1, tail)) if clusters > 1 else 0.0
    low, high = np.quantile(drawn, [wide, 1 - wide], axis=0)
    bound = 1 - tail ** (1 / clusters)
    return [
        Interval(*_of_share(column, bound)) if np.isin(column, (0, 1)).all() and np.ptp(column) == 0 else Interval(a, b)
        for column, a, b in zip(values.T, low.tolist(), high.tolist(), strict=True)
    ]


def _of_share(same: NDArray, bound: float) -> tuple[float, float]:
    """Bounds of a share that is 0 or 1 without exception."""
    return (0.0, bound) if same[0] == 0 else (1 - bound, 1.0)
