"""Conclusions from results: means over seeds, and differences with confidence intervals."""

from collections.abc import Mapping, Sequence

import numpy as np

from triptych.evaluation.significance import Difference, compute_run_difference_intervals


def format_mean_and_range(values: Sequence[float]) -> str:
    """Format a mean, with minimum and maximum if there are several seeds."""
    mean = f"{np.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.1f}–{max(values):.1f})"


def compare_to_reference(reference: str, hits: Mapping[str, Sequence[Sequence[float]]], metric: str) -> list[str]:
    """Return the differences of all methods to a reference method, with 95% intervals.

    The reference must be chosen without these numbers. `hits` has, for each method and at least two seeds, the hit rate
    of each item. The intervals cover the variation over items and over seeds.
    """
    runs = {name: [100 * np.array(seed) for seed in seeds] for name, seeds in hits.items()}
    means = {name: float(np.mean(seeds)) for name, seeds in runs.items()}
    conclusions = [f"{metric} of the reference **{reference}**: {means[reference]:.1f}%."]
    for name in sorted(means.keys() - {reference}, key=lambda name: -means[name]):
        items = np.arange(len(runs[name][0]))
        interval = compute_run_difference_intervals(runs[reference], runs[name], items)[0]
        difference = Difference(means[reference], means[name], interval)
        conclusions.append(
            f"{name}: {_format_points(difference.value)} points relative to the reference (95% interval: "
            f"{_format_points(interval.low)} to {_format_points(interval.high)})"
            f"{'' if difference.is_significant else ' — not significant'}."
        )
    return conclusions


def _format_points(value: float) -> str:
    """Format a difference in points with its sign; without a sign if it rounds to zero."""
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text
