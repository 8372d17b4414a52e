"""How many pairs are wrong, and how likely each one: from where its score lies among those of mismatched pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CUTOFFS = np.arange(0.5, 0.951, 0.05)  # where the p-values of right pairs have run out, perhaps
LOW_PERCENTILE = 10  # % of the estimates that count as the least
Z_95 = 1.96  # spreads to either side that hold 95%


@dataclass(frozen=True)
class NoiseRateEstimate:
    """The estimated share of wrong pairs, with an interval of 95%."""

    value: float
    low: float
    high: float
    num_pairs: int

    def __str__(self) -> str:
        return f"{100 * self.value:.1f}% (95% interval {100 * self.low:.1f}–{100 * self.high:.1f})"


def estimate_noise_rate(p_values: np.ndarray) -> NoiseRateEstimate:
    """The share of wrong pairs from the pairs' p-values (N,), with Wilson's interval of the count behind it.

    p_i = share of mismatched pairs that fit at least as well as pair i: evenly spread over [0, 1] where pair i is
    wrong, near 0 where it is right. Above a cut c nearly all are wrong, so share = #(p > c) / (N · (1 - c)).
    A low c counts the worst right pairs as well, a high c counts few: it is chosen by the least expected squared error,
    variance of the count + square of what lies above the 10% point of all cuts' estimates.

    Source: Storey 2002; the choice of c: Storey, Taylor & Siegmund 2004, in the closed form of Robinson.
    Beware: assumes that wrong pairs fit no better than chance. Where they were swapped within a kind, it is too low.
    """
    if not len(p_values):
        return NoiseRateEstimate(0.0, 0.0, 0.0, 0)
    value, cutoff = _estimate_rate(p_values)
    low, high = wilson_interval(int((p_values > cutoff).sum()), len(p_values))
    return NoiseRateEstimate(value, min(1.0, low / (1 - cutoff)), min(1.0, high / (1 - cutoff)), len(p_values))


def wilson_interval(count: int, total: int, z: float = Z_95) -> tuple[float, float]:
    """The interval of a share of which `count` of `total` were seen; it stays inside [0, 1], and is never empty.

    Source: Wilson 1927.
    """
    fraction, spread = count / total, z**2 / total
    centre = (fraction + spread / 2) / (1 + spread)
    half = z / (1 + spread) * (fraction * (1 - fraction) / total + spread / (4 * total)) ** 0.5
    return max(0.0, centre - half) if count else 0.0, min(1.0, centre + half) if count < total else 1.0


def _estimate_rate(p_values: np.ndarray) -> tuple[float, float]:
    counts = np.array([(p_values > cut).sum() for cut in CUTOFFS])
    rates = counts / (len(p_values) * (1 - CUTOFFS))
    lowest_rate = np.percentile(rates, LOW_PERCENTILE)
    variance = (
        (counts + 1) / (len(p_values) * (1 - CUTOFFS)) ** 2 * (1 - counts / len(p_values))
    )  # + 1: to have seen none is no proof
    best = int(np.argmin(variance + (rates - lowest_rate) ** 2))
    return float(min(1.0, rates[best])), float(CUTOFFS[best])


def estimate_p_wrong(p_values: np.ndarray, fit_scores: np.ndarray, noise_rate: float) -> np.ndarray:
    """How likely each pair is wrong (N,), never less for a pair that fits less.

    P(wrong | p) = share / density(p), with the density of all p-values, which falls, by Grenander's estimator; then
    brought into the order of `fit`, the best we know to tell pairs apart by, with isotonic regression.

    Source: Efron 2008 (local false discovery rate); Strimmer 2008 (with Grenander's density).
    """
    if not len(p_values):
        return np.zeros(0)
    p_wrong = np.minimum(1.0, noise_rate / np.maximum(grenander_density(p_values), 1e-12))
    _, level, counts = np.unique(fit_scores, return_inverse=True, return_counts=True)
    return pool_adjacent_violators(np.bincount(level, p_wrong), counts)[level]


def grenander_density(p_values: np.ndarray) -> np.ndarray:
    """At each p the slope of the least concave function above the share of p-values below it.

    Source: Grenander 1956.
    """
    values, counts = np.unique(np.concatenate([p_values, [0.0, 1.0]]), return_counts=True)
    counts[[0, -1]] -= 1  # the two that were added
    counts[1] += counts[0]
    slopes = pool_adjacent_violators(counts[1:] / len(p_values), np.diff(values))
    return slopes[np.maximum(np.searchsorted(values, p_values) - 1, 0)]


def pool_adjacent_violators(heights: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Heights over widths, neighbours pooled until none is greater than the one before it (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # height, width, members
    for height, width in zip(heights.tolist(), widths.tolist(), strict=True):
        block = (height, width, 1)
        while blocks and blocks[-1][0] * block[1] <= block[0] * blocks[-1][1]:
            previous = blocks.pop()
            block = (previous[0] + block[0], previous[1] + block[1], previous[2] + block[2])
        blocks.append(block)
    return np.repeat([h / w for h, w, _ in blocks], [members for *_, members in blocks])
