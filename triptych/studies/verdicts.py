"""From numbers to plain sentences: spreads over seeds, and which differences can be told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from triptych.evaluation.significance import Difference, differences_over_runs


def mean_and_spread(values: Sequence[float]) -> str:
    """A mean with the smallest and largest of several seeds."""
    mean = f"{np.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.1f}–{max(values):.1f})"


def against(reference: str, hits: Mapping[str, Sequence[Sequence[float]]], what: str) -> list[str]:
    """Each contender against one that was named without looking at these numbers: differences with their intervals.

    hits: of each contender, for each of at least two seeds, the share of hits of every item. The intervals say how the
    difference moves with other items and with other seeds.
    """
    runs = {name: [100 * np.array(seed) for seed in seeds] for name, seeds in hits.items()}
    mean = {name: float(np.mean(seeds)) for name, seeds in runs.items()}
    said = [f"{what} of **{reference}**: {mean[reference]:.1f}%."]
    for name in sorted(mean.keys() - {reference}, key=lambda name: -mean[name]):
        items = np.arange(len(runs[name][0]))
        interval = differences_over_runs(runs[reference], runs[name], items)[0]
        found = Difference(mean[reference], mean[name], interval)
        said.append(
            f"{name}: {found.value:+.1f} points against it (95%: {interval.low:+.1f} to {interval.high:+.1f})"
            f"{'' if found.separable else ' — not separable'}."
        )
    return said
