"""From numbers to plain sentences: spreads over seeds, and which differences can be told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from triptych.evaluation.significance import intervals


def mean_and_spread(values: Sequence[float]) -> str:
    """A mean with the smallest and largest of several seeds."""
    mean = f"{np.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.1f}–{max(values):.1f})"


def against_best(hits: Mapping[str, Sequence[Sequence[float]]], what: str) -> list[str]:
    """Each contender against the best: the paired difference over the same items, with its interval.

    hits: of each contender, for each seed, the share of hits of every item. Items are drawn anew, seeds are averaged.
    """
    shares = {name: np.mean(np.array(seeds), axis=0) for name, seeds in hits.items()}
    order = sorted(shares, key=lambda name: -float(shares[name].mean()))
    best = order[0]
    said = [f"Best in {what}: **{best}**, {100 * shares[best].mean():.1f}%."]
    for name in order[1:]:
        difference = 100 * (shares[name] - shares[best])
        found = intervals(difference[:, None], np.arange(len(difference)), [(-100.0, 100.0)])[0]
        verdict = " — not separable" if found.covers(0.0) else ""
        said.append(
            f"{name}: {difference.mean():+.1f} points against it (95%: {found.low:+.1f} to {found.high:+.1f}){verdict}."
        )
    return said
