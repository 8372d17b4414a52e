"""Intervals: against a naive bootstrap, their coverage in simulations, and their bounds without variance."""

import numpy as np
import pytest
from scipy import stats

from triptych.errors import InputError
from triptych.evaluation.significance import (
    Difference,
    Interval,
    bootstrap_intervals,
    bootstrap_means,
    compute_run_difference_intervals,
    compute_run_intervals,
)

UNIT_BOUNDS = [(0.0, 1.0)]


def simulate_captions(rng, clips, a=1.0, b=2.0, max_captions=5):
    """Hits of 1 to max_captions captions per clip with a common difficulty; the mean is a / (a + b)."""
    cluster = np.repeat(np.arange(clips), rng.integers(1, max_captions + 1, clips))
    ease = rng.beta(a, b, clips)
    return (rng.random(len(cluster)) < ease[cluster]).astype(float), cluster


def simulate_coverage(make, truth, trials, seed=0):
    """The fraction of simulated test sets whose interval contains the truth."""
    rng = np.random.default_rng(seed)
    return np.mean([make(rng).contains(truth) for _ in range(trials)])


def test_bootstrap_means_match_a_loop_over_clusters():
    rng = np.random.default_rng(3)
    hits, cluster = simulate_captions(rng, 30)
    values = np.column_stack([hits, rng.random(len(hits))])
    ours = bootstrap_means(values, cluster, num_resamples=4000)
    theirs = []
    for _ in range(4000):
        picked = np.concatenate([np.flatnonzero(cluster == c) for c in rng.integers(0, 30, 30)])
        theirs.append(values[picked].mean(axis=0))
    theirs = np.array(theirs)
    assert ours.mean(axis=0) == pytest.approx(theirs.mean(axis=0), abs=0.005)
    assert ours.std(axis=0) == pytest.approx(theirs.std(axis=0), rel=0.06)
    for q in (0.025, 0.5, 0.975):
        assert np.quantile(ours, q, axis=0) == pytest.approx(np.quantile(theirs, q, axis=0), abs=0.02)


def test_bootstrap_is_deterministic_for_any_block_size(monkeypatch):
    hits, cluster = simulate_captions(np.random.default_rng(0), 40)
    once = bootstrap_means(hits, cluster, num_resamples=300)
    assert (once == bootstrap_means(hits, cluster, num_resamples=300)).all()
    assert (once != bootstrap_means(hits, cluster, num_resamples=300, seed=1)).any()
    monkeypatch.setattr("triptych.evaluation.significance.MAX_ELEMENTS", 7)
    assert (once == bootstrap_means(hits, cluster, num_resamples=300)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("clips", "trials"), [(15, 1200), (120, 700)])
def test_intervals_have_their_nominal_coverage(clips, trials):
    def make(rng):
        return bootstrap_intervals(
            *simulate_captions(rng, clips), UNIT_BOUNDS, num_resamples=400, seed=int(rng.integers(1 << 30))
        )[0]

    assert 0.93 <= simulate_coverage(make, 1 / 3, trials) <= 0.97


@pytest.mark.slow
def test_ignoring_clusters_gives_too_narrow_intervals():
    def make(rng):
        hits, _ = simulate_captions(rng, 120)
        return bootstrap_intervals(hits, np.arange(len(hits)), UNIT_BOUNDS, num_resamples=600)[0]

    assert simulate_coverage(make, 1 / 3, 400) < 0.9


@pytest.mark.slow
def test_paired_differences_have_their_nominal_coverage_and_are_narrower_than_unpaired_ones():
    widths = []

    def make(rng):
        cluster = np.repeat(np.arange(80), 5)
        ease = rng.beta(1, 2, 80)[cluster]
        luck = rng.random(len(cluster))
        first, second = luck < ease, luck < 0.9 * ease  # on the same captions
        paired = bootstrap_intervals(first.astype(float) - second, cluster, [(-1.0, 1.0)], num_resamples=600)[0]
        widths.append(
            paired.half_width
            / np.linalg.norm(
                [bootstrap_intervals(x, cluster, UNIT_BOUNDS, num_resamples=600)[0].half_width for x in (first, second)]
            )
        )
        return paired

    assert 0.93 <= simulate_coverage(make, 1 / 3 - 0.3, 600) <= 0.975
    assert np.mean(widths) < 0.6


def simulate_run(rng, cluster, ease, drift):
    """Hits of one run, whose seed shifts all queries equally."""
    return (rng.random(len(cluster)) < np.clip(ease[cluster] + rng.normal(0, drift), 0, 1)).astype(float)


@pytest.mark.parametrize("drift", [0.0, 0.05])
def test_run_intervals_cover_items_and_seeds(drift):
    def make(rng):
        cluster = np.repeat(np.arange(60), 5)
        ease = rng.uniform(0.2, 0.6, 60)
        return compute_run_intervals([simulate_run(rng, cluster, ease, drift) for _ in range(4)], cluster)[0]

    assert 0.93 <= simulate_coverage(make, 0.4, 1000) <= 0.99


@pytest.mark.slow
def test_run_difference_intervals_cover_where_single_run_intervals_do_not():
    single_run = []

    def make(rng):
        cluster = np.repeat(np.arange(60), 5)
        ease = rng.uniform(0.3, 0.6, 60)
        a, b = ([simulate_run(rng, cluster, ease - d, 0.05) for _ in range(3)] for d in (0.0, 0.1))
        single_run.append(bootstrap_intervals(a[0] - b[0], cluster, [(-1.0, 1.0)], num_resamples=400)[0].contains(0.1))
        return compute_run_difference_intervals(b, a, cluster)[0]

    assert 0.93 <= simulate_coverage(make, 0.1, 600) <= 0.99
    assert np.mean(single_run) < 0.85


def test_constant_values_give_the_clopper_pearson_bound():
    cluster = np.repeat(np.arange(100), 5)
    zeros, ones = np.zeros(500), np.ones(500)
    bound = 1 - 0.025 ** (1 / 100)  # Clopper and Pearson for 100 trials without a hit
    result = bootstrap_intervals(
        np.column_stack([zeros, ones, zeros, ones]), cluster, [*UNIT_BOUNDS, *UNIT_BOUNDS, (-1, 1), (1, 50)]
    )
    expected = [(0, bound), (1 - bound, 1), (-bound, bound), (1, 1 + 49 * bound)]
    for interval, ends in zip(result, expected, strict=True):
        assert (interval.low, interval.high) == pytest.approx(ends)


def test_a_difference_is_significant_only_if_its_interval_excludes_zero():
    assert Difference(0.45, 0.5, Interval(-0.01, 0.11)).verdict() == "not separable"
    assert Difference(0.45, 0.5, Interval(0.01, 0.09)).verdict() == "B is better"
    assert Difference(0.45, 0.4, Interval(-0.09, -0.01)).verdict() == "A is better"
    assert Difference(4.0, 6.0, Interval(1.0, 3.0)).verdict(higher_is_better=False) == "A is better"
    assert Difference(0.45, 0.5, Interval(0.0, 0.1)).value == pytest.approx(0.05)


def test_invalid_arguments_raise():
    with pytest.raises(InputError, match="3 values, 2 cluster ids"):
        bootstrap_means(np.zeros(3), np.zeros(2))
    with pytest.raises(InputError, match="num_resamples = 0"):
        bootstrap_means(np.zeros(3), np.zeros(3), num_resamples=0)
    with pytest.raises(InputError, match="1 and 2 runs; need at least 2 runs each"):
        compute_run_difference_intervals([np.zeros(3)], [np.zeros(3)] * 2, np.zeros(3))
    with pytest.raises(InputError, match="2 and 1 runs; need at least 2 runs each"):
        compute_run_difference_intervals([np.zeros(3)] * 2, [np.zeros(3)], np.zeros(3))
    with pytest.raises(InputError, match="0 and 1 runs"):
        compute_run_intervals([np.zeros(3)], np.zeros(3))


@pytest.mark.parametrize("clusters", [6, 8, 12, 20])
def test_intervals_of_few_clusters_match_student_t(clusters):
    """Plain percentiles are too narrow for few clusters, by a quarter for 8 clusters."""
    values = stats.norm.ppf((np.arange(clusters) + 0.5) / clusters)
    student = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    interval = bootstrap_intervals(values, np.arange(clusters), num_resamples=20_000)[0]
    assert (interval.low, interval.high) == pytest.approx((student.low, student.high), rel=0.05)


@pytest.mark.parametrize("clusters", [3, 6, 30])
@pytest.mark.parametrize("confidence_level", [0.8, 0.95])
def test_intervals_are_expanded_percentiles_of_the_resampled_means(clusters, confidence_level):
    values, cluster = np.random.default_rng(0).normal(size=2 * clusters), np.arange(2 * clusters) // 2
    student = stats.t(clusters - 1).ppf((1 - confidence_level) / 2)
    tail = stats.norm.cdf(student * (clusters / (clusters - 1)) ** 0.5)
    ends = np.quantile(bootstrap_means(values, cluster), [tail, 1 - tail])
    interval = bootstrap_intervals(values, cluster, confidence_level=confidence_level)[0]
    assert (interval.low, interval.high) == pytest.approx(tuple(ends))


def test_one_cluster_gives_a_single_point():
    """The variance over clusters is unknown."""
    interval = bootstrap_intervals(np.array([1.0, 2.0, 6.0]), np.zeros(3))[0]
    assert (interval.low, interval.high) == (3.0, 3.0)


@pytest.mark.parametrize("confidence_level", [0.8, 0.95])
def test_identical_runs_give_the_student_t_interval(confidence_level):
    values = np.random.default_rng(0).normal(size=7)
    student = stats.ttest_1samp(values, 0).confidence_interval(confidence_level)
    interval = compute_run_intervals([values, values], np.arange(7), confidence_level)[0]
    assert (interval.low, interval.high) == pytest.approx((student.low, student.high), rel=1e-9)


def test_identical_items_give_the_welch_interval():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=3), rng.normal(scale=2, size=5)
    welch = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    interval = compute_run_difference_intervals([np.full(4, x) for x in a], [np.full(4, x) for x in b], np.arange(4))[0]
    assert (interval.low, interval.high) == pytest.approx((welch.low, welch.high), rel=1e-9)
