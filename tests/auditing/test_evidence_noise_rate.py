"""The estimated noise rate and the probability that each pair is wrong, on simulated p-values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.auditing.evidence import CUTOFFS, estimate_noise_rate_from_p_values, estimate_p_wrong


def simulate_p_values(
    noise_rate: float, count: int, seed: int, right_mean: float = 0.01
) -> tuple[np.ndarray, np.ndarray]:
    """Return the p-values of pairs of which a fraction is wrong, and which are wrong."""
    rng = np.random.default_rng(seed)
    is_wrong = rng.random(count) < noise_rate
    return np.where(is_wrong, rng.random(count), rng.beta(0.5, 0.5 / right_mean, count)), is_wrong


@pytest.mark.parametrize("noise_rate", [0.0, 0.05, 0.2, 0.4, 0.8])
def test_the_noise_rate_estimate_and_its_interval(noise_rate):
    errors, num_covered = [], 0
    for seed in range(60):
        p, is_wrong = simulate_p_values(noise_rate, 2000, seed)
        estimate = estimate_noise_rate_from_p_values(p)
        assert 0 <= estimate.low <= estimate.high <= 1
        assert estimate.num_pairs == 2000
        errors.append(estimate.value - is_wrong.mean())
        num_covered += estimate.low <= is_wrong.mean() <= estimate.high
    assert abs(np.mean(errors)) < 0.02  # the lowest of several estimates is slightly biased
    assert np.sqrt(np.mean(np.square(errors))) < 0.04
    assert num_covered >= 53  # of 60: the interval does not cover the choice of the cut-off


def test_pairs_at_chance_are_all_wrong():
    assert estimate_noise_rate_from_p_values(np.random.default_rng(0).random(5000)).value > 0.95
    assert estimate_noise_rate_from_p_values(np.full(50, 0.01)).value == 0.0
    assert estimate_noise_rate_from_p_values(np.full(50, 0.01)).high > 0  # fifty right pairs do not prove a rate of 0
    assert estimate_noise_rate_from_p_values(np.zeros(0)).num_pairs == 0


def test_p_wrong_is_calibrated():
    p, is_wrong = simulate_p_values(0.3, 20_000, 1)
    p_wrong = estimate_p_wrong(p, -p, 0.3)
    for low in np.arange(0, 1, 0.2):
        bin_ = (p_wrong >= low) & (p_wrong <= low + 0.2)
        if bin_.sum() > 300:
            assert abs(is_wrong[bin_].mean() - p_wrong[bin_].mean()) < 0.06


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.floats(0, 1), st.randoms())
def test_p_wrong_is_monotone_in_the_fit_score(p, noise_rate, random):
    fit_scores = [random.uniform(-20, 0) for _ in p]
    p_wrong = estimate_p_wrong(np.array(p), np.array(fit_scores), noise_rate)
    assert ((p_wrong >= 0) & (p_wrong <= 1)).all()
    assert (np.diff(p_wrong[np.argsort(fit_scores, kind="stable")]) <= 1e-12).all()


def naive_density(p: list[float]) -> list[float]:
    """Slopes of the least concave majorant of the empirical distribution, by trying every chord."""
    points = [(0.0, 0.0)] + [(x, sum(y <= x for y in p) / len(p)) for x in sorted({*p, 1.0} - {0.0})]
    slopes = []
    for x in p:
        # By the minimax formula: the slope at x is the least over starts of the greatest over ends.
        starts = [i for i in range(len(points) - 1) if points[i][0] < x or (x == 0 and i == 0)]
        ends = [j for j in range(1, len(points)) if points[j][0] >= x]
        slope = [[(points[j][1] - points[i][1]) / (points[j][0] - points[i][0]) for j in ends if j > i] for i in starts]
        slopes.append(min(max(row) for row in slope))
    return slopes


def test_density_matches_the_grenander_estimator():
    p = np.random.default_rng(3).beta(0.5, 2, 30).round(3)
    expected = np.minimum(1, 0.4 / np.array(naive_density(p.tolist())))
    assert estimate_p_wrong(p, -p, 0.4) == pytest.approx(expected, abs=1e-9)


def test_the_interval_is_wilsons():
    estimate = estimate_noise_rate_from_p_values(np.full(100, 0.01))
    assert (estimate.low, estimate.high) == pytest.approx((0.0, 0.0370 / (1 - CUTOFFS[0])), abs=1e-4)
    estimate = estimate_noise_rate_from_p_values(np.concatenate([np.full(70, 0.01), np.full(30, 0.99)]))
    above_cutoff = 0.3 / estimate.value  # 1 - cut-off: value = 30 / (100 · (1 - cut-off))
    assert estimate.low * above_cutoff == pytest.approx(0.2190, abs=1e-4)
    assert estimate.high * above_cutoff == pytest.approx(0.3959, abs=1e-4)
