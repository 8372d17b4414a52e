"""Intervals: against a naive bootstrap, with their nominal coverage in simulations, and honest where nothing varies."""

import numpy as np
import pytest
from scipy import stats

from triptych.errors import InputError
from triptych.evaluation.significance import (
    Difference,
    Interval,
    differences_over_runs,
    intervals,
    over_runs,
    resample,
)

SHARE = [(0.0, 1.0)]


def captions(rng, clips, a=1.0, b=2.0, most=5):
    """Hits of 1 to `most` captions of each clip; captions of one clip share its difficulty. The mean is a / (a + b)."""
    cluster = np.repeat(np.arange(clips), rng.integers(1, most + 1, clips))
    ease = rng.beta(a, b, clips)
    return (rng.random(len(cluster)) < ease[cluster]).astype(float), cluster


def coverage(make, truth, trials, seed=0):
    """The share of simulated test sets whose interval holds the truth."""
    rng = np.random.default_rng(seed)
    return np.mean([make(rng).covers(truth) for _ in range(trials)])


def test_resampling_is_that_of_a_loop_over_clusters():
    rng = np.random.default_rng(3)
    hits, cluster = captions(rng, 30)
    values = np.column_stack([hits, rng.random(len(hits))])
    ours = resample(values, cluster, draws=4000)
    theirs = []
    for _ in range(4000):
        picked = np.concatenate([np.flatnonzero(cluster == c) for c in rng.integers(0, 30, 30)])
        theirs.append(values[picked].mean(axis=0))
    theirs = np.array(theirs)
    assert ours.mean(axis=0) == pytest.approx(theirs.mean(axis=0), abs=0.005)
    assert ours.std(axis=0) == pytest.approx(theirs.std(axis=0), rel=0.06)
    for q in (0.025, 0.5, 0.975):
        assert np.quantile(ours, q, axis=0) == pytest.approx(np.quantile(theirs, q, axis=0), abs=0.02)


def test_the_same_seed_draws_the_same_and_blocks_of_draws_cover_all(monkeypatch):
    hits, cluster = captions(np.random.default_rng(0), 40)
    once = resample(hits, cluster, draws=300)
    assert (once == resample(hits, cluster, draws=300)).all()
    assert (once != resample(hits, cluster, draws=300, seed=1)).any()
    monkeypatch.setattr("triptych.evaluation.significance.AT_ONCE", 7)
    assert (once == resample(hits, cluster, draws=300)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("clips", "trials"), [(15, 1200), (120, 700)])
def test_intervals_have_their_nominal_coverage(clips, trials):
    def make(rng):
        return intervals(*captions(rng, clips), SHARE, draws=400, seed=int(rng.integers(1 << 30)))[0]

    assert 0.93 <= coverage(make, 1 / 3, trials) <= 0.97


@pytest.mark.slow
def test_captions_taken_one_by_one_would_claim_too_much():
    def make(rng):
        hits, _ = captions(rng, 120)
        return intervals(hits, np.arange(len(hits)), SHARE, draws=600)[0]

    assert coverage(make, 1 / 3, 400) < 0.9


@pytest.mark.slow
def test_paired_differences_have_their_nominal_coverage_and_are_narrower_than_unpaired_ones():
    widths = []

    def make(rng):
        cluster = np.repeat(np.arange(80), 5)
        ease = rng.beta(1, 2, 80)[cluster]
        luck = rng.random(len(cluster))
        first, second = luck < ease, luck < 0.9 * ease  # of the same captions
        found = intervals(first.astype(float) - second, cluster, [(-1.0, 1.0)], draws=600)[0]
        widths.append(
            found.half / np.linalg.norm([intervals(x, cluster, SHARE, draws=600)[0].half for x in (first, second)])
        )
        return found

    assert 0.93 <= coverage(make, 1 / 3 - 0.3, 600) <= 0.975
    assert np.mean(widths) < 0.6


def run_values(rng, cluster, ease, drift):
    """Hits of one run: its seed shifts every query alike."""
    return (rng.random(len(cluster)) < np.clip(ease[cluster] + rng.normal(0, drift), 0, 1)).astype(float)


@pytest.mark.parametrize("drift", [0.0, 0.05])
def test_intervals_over_runs_cover_other_items_and_other_seeds(drift):
    def make(rng):
        cluster = np.repeat(np.arange(60), 5)
        ease = rng.uniform(0.2, 0.6, 60)
        return over_runs([run_values(rng, cluster, ease, drift) for _ in range(4)], cluster)[0]

    assert 0.93 <= coverage(make, 0.4, 1000) <= 0.99


@pytest.mark.slow
def test_differences_over_runs_cover_the_truth_where_one_run_each_would_not():
    alone = []

    def make(rng):
        cluster = np.repeat(np.arange(60), 5)
        ease = rng.uniform(0.3, 0.6, 60)
        a, b = ([run_values(rng, cluster, ease - d, 0.05) for _ in range(3)] for d in (0.0, 0.1))
        alone.append(intervals(a[0] - b[0], cluster, [(-1.0, 1.0)], draws=400)[0].covers(0.1))
        return differences_over_runs(b, a, cluster)[0]

    assert 0.93 <= coverage(make, 0.1, 600) <= 0.99
    assert np.mean(alone) < 0.85


def test_where_nothing_varies_the_doubt_is_that_of_so_many_clusters():
    cluster = np.repeat(np.arange(100), 5)
    none, every = np.zeros(500), np.ones(500)
    least = 1 - 0.025 ** (1 / 100)  # what 100 trials without a hit leave open: Clopper and Pearson
    found = intervals(np.column_stack([none, every, none, every]), cluster, [*SHARE, *SHARE, (-1, 1), (1, 50)])
    expected = [(0, least), (1 - least, 1), (-least, least), (1, 1 + 49 * least)]
    for interval, ends in zip(found, expected, strict=True):
        assert (interval.low, interval.high) == pytest.approx(ends)


def test_a_difference_is_separable_only_if_its_interval_leaves_out_zero():
    assert Difference(0.45, 0.5, Interval(-0.01, 0.11)).verdict() == "not separable"
    assert Difference(0.45, 0.5, Interval(0.01, 0.09)).verdict() == "B is better"
    assert Difference(0.45, 0.4, Interval(-0.09, -0.01)).verdict() == "A is better"
    assert Difference(4.0, 6.0, Interval(1.0, 3.0)).verdict(higher_is_better=False) == "A is better"
    assert Difference(0.45, 0.5, Interval(0.0, 0.1)).value == pytest.approx(0.05)


def test_wrong_arguments_are_named():
    with pytest.raises(InputError, match="3 values in 2 clusters"):
        resample(np.zeros(3), np.zeros(2))
    with pytest.raises(InputError, match="draws = 0"):
        resample(np.zeros(3), np.zeros(3), draws=0)
    with pytest.raises(InputError, match="1 and 2 runs; need at least 2 each"):
        differences_over_runs([np.zeros(3)], [np.zeros(3)] * 2, np.zeros(3))
    with pytest.raises(InputError, match="2 and 1 runs; need at least 2 each"):
        differences_over_runs([np.zeros(3)] * 2, [np.zeros(3)], np.zeros(3))
    with pytest.raises(InputError, match="0 and 1 runs"):
        over_runs([np.zeros(3)], np.zeros(3))


@pytest.mark.parametrize("clusters", [6, 8, 12, 20])
def test_intervals_of_few_clusters_are_as_wide_as_students(clusters):
    """Plain percentiles are too narrow for few clusters: by a quarter for 8 of them."""
    values = stats.norm.ppf((np.arange(clusters) + 0.5) / clusters)
    student = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = intervals(values, np.arange(clusters), draws=20_000)[0]
    assert (found.low, found.high) == pytest.approx((student.low, student.high), rel=0.05)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_runs_without_a_difference_between_seeds_give_students_interval(level):
    values = np.random.default_rng(0).normal(size=7)
    student = stats.ttest_1samp(values, 0).confidence_interval(level)
    found = over_runs([values, values], np.arange(7), level)[0]
    assert (found.low, found.high) == pytest.approx((student.low, student.high), rel=1e-9)


def test_runs_without_a_difference_between_items_give_welchs_interval():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=3), rng.normal(scale=2, size=5)
    welch = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    found = differences_over_runs([np.full(4, x) for x in a], [np.full(4, x) for x in b], np.arange(4))[0]
    assert (found.low, found.high) == pytest.approx((welch.low, welch.high), rel=1e-9)
