import numpy as np
import pytest
from scipy.stats import t

from triptych.studies.verdicts import against


def naive(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """The difference of means of runs (S, Q), and its interval over items and seeds, by loops."""
    items, runs = a.shape[1], len(a)
    each = [sum(b[s][q] for s in range(runs)) / runs - sum(a[s][q] for s in range(runs)) / runs for q in range(items)]
    mean = sum(each) / items
    parts = [(sum((x - mean) ** 2 for x in each) / (items - 1) / items, items - 1)]
    for side in (a, b):
        means = [sum(run) / items for run in side]
        parts.append((sum((m - sum(means) / runs) ** 2 for m in means) / (runs - 1) / runs, runs - 1))
    total = sum(part for part, _ in parts)
    half = t.ppf(0.975, total**2 / sum(part**2 / df for part, df in parts)) * total**0.5
    return mean, mean - half, mean + half


def test_differences_are_those_of_items_and_seeds():
    rng = np.random.default_rng(0)
    a, b = rng.random((3, 40)), rng.random((3, 40)) + 0.3
    difference, low, high = (100 * x for x in naive(a, b))
    said = against("a", {"b": b.tolist(), "a": a.tolist()}, "R@10")
    assert said == [
        f"R@10 of **a**: {100 * a.mean():.1f}%.",
        f"b: {difference:+.1f} points against it (95%: {low:+.1f} to {high:+.1f}).",
    ]


def test_what_lies_within_the_scatter_of_seeds_is_not_separable():
    """Items alone would tell these two apart by far; another seed may turn them round."""
    rng = np.random.default_rng(0)
    item = rng.random(2000)
    hits = {
        name: [(item + shift + 0.01 * rng.standard_normal(2000)).tolist() for shift in shifts]
        for name, shifts in {"one": (0.00, 0.05, -0.05), "other": (0.02, 0.08, -0.04)}.items()
    }
    assert against("one", hits, "R@10")[1].endswith("— not separable.")


@pytest.mark.parametrize("reference", ["low", "high"])
def test_the_reference_is_the_one_that_was_named(reference):
    hits = {"low": [[0.1, 0.2, 0.1], [0.1, 0.1, 0.2]], "high": [[0.8, 0.9, 0.8], [0.9, 0.8, 0.9]]}
    said = against(reference, hits, "R@10")
    assert f"**{reference}**" in said[0]
    assert ("+" in said[1]) == (reference == "low")
