"""Differences with confidence intervals, against a naive computation."""

import numpy as np
import pytest
from scipy.stats import t

from triptych.studies.conclusions import compare_to_reference


def compute_difference_naively(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """Compute the difference of means of runs (S, Q) and its interval over items and seeds by loops."""
    items, runs = a.shape[1], len(a)
    item_differences = [
        sum(b[s][q] for s in range(runs)) / runs - sum(a[s][q] for s in range(runs)) / runs for q in range(items)
    ]
    mean = sum(item_differences) / items
    variances = [(sum((x - mean) ** 2 for x in item_differences) / (items - 1) / items, items - 1)]
    for side in (a, b):
        means = [sum(run) / items for run in side]
        variances.append((sum((m - sum(means) / runs) ** 2 for m in means) / (runs - 1) / runs, runs - 1))
    total = sum(part for part, _ in variances)
    half_width = t.ppf(0.975, total**2 / sum(part**2 / df for part, df in variances)) * total**0.5
    return mean, mean - half_width, mean + half_width


def test_intervals_cover_items_and_seeds():
    rng = np.random.default_rng(0)
    a, b = rng.random((3, 40)), rng.random((3, 40)) + 0.3
    difference, low, high = (100 * x for x in compute_difference_naively(a, b))
    conclusions = compare_to_reference("a", {"b": b.tolist(), "a": a.tolist()}, "R@10")
    assert conclusions == [
        f"R@10 of the reference **a**: {100 * a.mean():.1f}%.",
        f"b: {difference:+.1f} points relative to the reference (95% interval: {low:+.1f} to {high:+.1f}).",
    ]


def test_differences_within_seed_variance_are_not_separable():
    """Over items alone the difference is significant; another seed may reverse it."""
    rng = np.random.default_rng(0)
    item_scores = rng.random(2000)
    hits = {
        name: [(item_scores + shift + 0.01 * rng.standard_normal(2000)).tolist() for shift in shifts]
        for name, shifts in {"one": (0.00, 0.05, -0.05), "other": (0.02, 0.08, -0.04)}.items()
    }
    assert compare_to_reference("one", hits, "R@10")[1].endswith("— not significant.")


@pytest.mark.parametrize("reference", ["low", "high"])
def test_the_reference_is_the_given_one(reference):
    hits = {"low": [[0.1, 0.2, 0.1], [0.1, 0.1, 0.2]], "high": [[0.8, 0.9, 0.8], [0.9, 0.8, 0.9]]}
    conclusions = compare_to_reference(reference, hits, "R@10")
    assert f"**{reference}**" in conclusions[0]
    assert ("+" in conclusions[1]) == (reference == "low")
