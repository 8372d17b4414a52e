"""Chance levels against simulated random rankings, and against the levels of `triptych evaluate`."""

import numpy as np
import pytest

from triptych.evaluation.chance import RelevanceCounts, compute_chance_mean_rank
from triptych.evaluation.retrieval import compute_chance_levels
from triptych.evaluation.score_matrix import evaluate_scores


@pytest.mark.parametrize("ap_denominator", ["relevant", "cutoff"])
@pytest.mark.parametrize("grades", [[1], [3, 1], [1] * 5, [2, 1, 1, 3, 1, 1, 2, 1]])
def test_chance_levels_match_random_scores(grades, ap_denominator):
    queries, num_items = 8000, 12
    scores = np.random.default_rng(0).random((queries, num_items))
    relevance = np.tile(np.pad(grades, (0, num_items - len(grades))), (queries, 1))
    result = evaluate_scores(scores, relevance, ks=[1, 4, 20], ap_denominator=ap_denominator, num_resamples=0)
    assert result.chance_levels.keys() == result.metrics.keys() - {"median rank"}
    for name, level in result.chance_levels.items():
        assert result.metrics[name] == pytest.approx(level, rel=0.08), name


def test_chance_levels_with_missing_items_match_random_scores():
    queries, ids = 8000, [str(i) for i in range(8000)]
    scores = np.random.default_rng(1).random((queries, 6))
    qrels = {query: {"a": 2, "b": 1, "absent": 3} for query in ids}
    result = evaluate_scores(scores, qrels, query_ids=ids, gallery_ids=list("abcdef"), ks=[1, 3, 8], num_resamples=0)
    assert result.num_missing_items == queries
    for name, level in result.chance_levels.items():
        assert result.metrics[name] == pytest.approx(level, rel=0.08), name


@pytest.mark.parametrize(("num_items", "num_positives"), [(30, 1), (30, 5), (12, 12), (60, 20)])
def test_chance_levels_equal_those_of_evaluate(num_items, num_positives):
    expected = compute_chance_levels(num_items, np.array([num_positives]))
    relevance = np.arange(num_items)[None] < num_positives
    result = evaluate_scores(np.zeros((1, num_items)), relevance, ks=[1, 5, 10, 16], num_resamples=0)
    assert {name: result.chance_levels[name] for name in expected} == pytest.approx(expected, rel=1e-12)


def test_the_mean_rank_of_a_query_without_present_items_is_the_last():
    zero = np.zeros(1, int)
    counts = RelevanceCounts(7, zero, zero + 1, gain=np.zeros(1), ideal_gains=np.ones((1, 1)))
    assert compute_chance_mean_rank(counts).tolist() == [7]
