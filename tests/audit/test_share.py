"""The share of wrong pairs and the doubt about each, where the truth is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.audit.share import doubts, estimate_share, wilson


def made(wrong: float, count: int, seed: int, right_mean: float = 0.01) -> tuple[np.ndarray, np.ndarray]:
    """p-values of pairs of which a share is wrong, and which are."""
    rng = np.random.default_rng(seed)
    is_wrong = rng.random(count) < wrong
    return np.where(is_wrong, rng.random(count), rng.beta(0.5, 0.5 / right_mean, count)), is_wrong


@pytest.mark.parametrize("wrong", [0.0, 0.05, 0.2, 0.4, 0.8])
def test_the_share_is_found_and_its_interval_holds_it(wrong):
    errors, held = [], 0
    for seed in range(60):
        p, is_wrong = made(wrong, 2000, seed)
        share = estimate_share(p)
        assert 0 <= share.low <= share.high <= 1
        assert share.pairs == 2000
        errors.append(share.value - is_wrong.mean())
        held += share.low <= is_wrong.mean() <= share.high
    assert abs(np.mean(errors)) < 0.02  # the least of several estimates is a little low
    assert np.sqrt(np.mean(np.square(errors))) < 0.04
    assert held >= 53  # of 60: what the choice of the cut adds is not in the interval


def test_pairs_that_fit_no_better_than_chance_are_all_wrong():
    assert estimate_share(np.random.default_rng(0).random(5000)).value > 0.95
    assert estimate_share(np.full(50, 0.01)).value == 0.0
    assert estimate_share(np.full(50, 0.01)).high > 0  # fifty good ones prove little
    assert estimate_share(np.zeros(0)).pairs == 0


def test_the_doubt_is_a_probability():
    p, is_wrong = made(0.3, 20_000, 1)
    doubt = doubts(p, -p, 0.3)
    for low in np.arange(0, 1, 0.2):
        bin_ = (doubt >= low) & (doubt <= low + 0.2)
        if bin_.sum() > 300:
            assert abs(is_wrong[bin_].mean() - doubt[bin_].mean()) < 0.06


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.floats(0, 1), st.randoms())
def test_doubt_never_falls_as_the_plan_keeps_less(p, share, random):
    kept = [random.uniform(-20, 0) for _ in p]
    doubt = doubts(np.array(p), np.array(kept), share)
    assert ((doubt >= 0) & (doubt <= 1)).all()
    assert (np.diff(doubt[np.argsort(kept, kind="stable")]) <= 1e-12).all()


def naive_density(p: list[float]) -> list[float]:
    """Slopes of the least concave function above the empirical distribution, by trying every chord."""
    points = [(0.0, 0.0)] + [(x, sum(y <= x for y in p) / len(p)) for x in sorted({*p, 1.0} - {0.0})]
    found = []
    for x in p:
        # By the minimax formula: the slope at x is the least over starts of the greatest over ends.
        starts = [i for i in range(len(points) - 1) if points[i][0] < x or (x == 0 and i == 0)]
        ends = [j for j in range(1, len(points)) if points[j][0] >= x]
        slope = [[(points[j][1] - points[i][1]) / (points[j][0] - points[i][0]) for j in ends if j > i] for i in starts]
        found.append(min(max(row) for row in slope))
    return found


def test_the_density_is_grenanders():
    p = np.random.default_rng(3).beta(0.5, 2, 30).round(3)
    expected = np.minimum(1, 0.4 / np.array(naive_density(p.tolist())))
    assert doubts(p, -p, 0.4) == pytest.approx(expected, abs=1e-9)


def test_wilsons_interval():
    assert wilson(0, 100) == pytest.approx((0.0, 0.0370), abs=1e-4)
    assert wilson(30, 100) == pytest.approx((0.2190, 0.3959), abs=1e-4)
