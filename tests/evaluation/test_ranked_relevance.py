"""Ranks and metrics of graded, many-to-many relevance against a naive loop over the definitions, with ties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych.evaluation.judgements import Judgements, make_judgements
from triptych.evaluation.ranked_relevance import rank_relevant
from triptych.evaluation.retrieval import rank_positives
from triptych.evaluation.score_matrix import evaluate_scores


def naive_metrics(scores, grades, k, missing=(), ap_denominator="relevant"):
    """All metrics of one query, by sorting: of equal scores, the item with the lowest grade comes first."""
    ranking = sorted(zip(scores, grades, strict=True), key=lambda pair: (-pair[0], pair[1]))
    ranked = [grade if score > -math.inf else 0 for score, grade in ranking]
    relevant = [grade for grade in [*grades, *missing] if grade > 0]
    hits = [rank for rank, grade in enumerate(ranked, start=1) if grade > 0]
    top = [rank for rank in hits if rank <= k]
    precision_sum = sum(sum(rank <= r for rank in hits) / r for r in top)
    dcg = sum(grade / math.log2(1 + rank) for rank, grade in enumerate(ranked[:k], start=1))
    ideal = sum(g / math.log2(1 + r) for r, g in enumerate(sorted(relevant, reverse=True)[:k], start=1))
    return {
        f"R@{k}": float(len(top) > 0),
        f"IR recall@{k}": len(top) / len(relevant),
        f"P@{k}": len(top) / k,
        f"MRR@{k}": 1 / hits[0] if top else 0.0,
        f"mAP@{k}": precision_sum / (min(k, len(relevant)) if ap_denominator == "cutoff" else len(relevant)),
        f"nDCG@{k}": dcg / ideal,
        "mean rank": hits[0] if hits else len(scores),
    }


@st.composite
def graded_tasks(draw):
    """Scores with ties and items that are not retrieved, and grades 0 to 3; some queries have no relevant item."""
    shape = draw(st.integers(1, 5)), draw(st.integers(1, 24))
    rng = np.random.default_rng(draw(st.integers(0, 9999)))
    scores = rng.integers(0, draw(st.sampled_from([2, 5, 1000])), shape).astype(np.float64)
    scores[rng.random(shape) < draw(st.sampled_from([0.0, 0.2]))] = -np.inf
    grades = rng.integers(1, draw(st.sampled_from([2, 4])), shape) * (rng.random(shape) < draw(st.floats(0.05, 1)))
    grades[0, 0] = 1
    return scores, grades


@given(graded_tasks(), st.integers(1, 25), st.sampled_from(["relevant", "cutoff"]))
def test_metrics_match_a_naive_loop(task, k, ap_denominator):
    scores, grades = task
    result = evaluate_scores(scores, grades, ks=[k], num_resamples=0, ap_denominator=ap_denominator)
    rows = [i for i in range(len(scores)) if grades[i].any()]
    assert result.per_query.item_index.tolist() == rows
    assert result.num_excluded_queries == len(scores) - len(rows)
    expected = [naive_metrics(scores[i].tolist(), grades[i].tolist(), k, (), ap_denominator) for i in rows]
    for name in expected[0]:
        column = [values[name] for values in expected]
        assert result.per_query.values[name].tolist() == pytest.approx(column, abs=1e-12), name
        assert result.metrics[name] == pytest.approx(np.mean(column), abs=1e-12)
    assert result.metrics["median rank"] == np.median([values["mean rank"] for values in expected])


@given(graded_tasks(), st.integers(0, 999))
def test_metrics_do_not_depend_on_the_order_of_queries_and_items(task, seed):
    scores, grades = task
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(len(scores)), rng.permutation(scores.shape[1])
    original = evaluate_scores(scores, grades, ks=[3, 8], num_resamples=50)
    permuted = evaluate_scores(scores[rows][:, columns], grades[rows][:, columns], ks=[3, 8], num_resamples=50)
    assert permuted.metrics == pytest.approx(original.metrics, abs=1e-12)
    assert permuted.chance_levels == pytest.approx(original.chance_levels, abs=1e-12)
    for name, interval in original.intervals.items():
        ends = permuted.intervals[name].low, permuted.intervals[name].high
        assert ends == pytest.approx((interval.low, interval.high), abs=1e-12)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.lists(st.integers(0, 2), min_size=1, max_size=50))
def test_ranks_match_those_of_groups_for_any_block_size(query_group, gallery_group):
    groups = torch.tensor(query_group), torch.tensor(gallery_group)
    scores = torch.randint(0, 6, (len(query_group), len(gallery_group)), generator=torch.Generator().manual_seed(1))
    expected = rank_positives(lambda rows, columns: scores[rows][:, columns].double(), *groups)
    judgements = make_judgements((len(scores), scores.shape[1]), query_groups=groups[0], gallery_groups=groups[1])
    for block in (1, 4, 99):
        ranked = rank_relevant(scores.double(), judgements, depth=16, query_block=block)
        width = expected.rank.shape[1]
        assert torch.equal(ranked.ranks.rank[:, :width], expected.rank)
        assert not ranked.ranks.rank[:, width:].any()
        assert torch.equal(ranked.ranks.num_positives, expected.num_positives)


def test_relevant_items_that_are_not_in_the_gallery_count_as_missed():
    grades = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]).double()
    judgements = Judgements(lambda rows: grades[rows], np.arange(2), missing_grades={0: [3.0, 1.0], 1: [1.0]})
    ranked = rank_relevant(torch.tensor([[0.9, 0.8, 0.7], [0.9, 0.8, 0.7]]), judgements, depth=16)
    measured = ranked.measure(2)
    for row, missing in enumerate([[3, 1], [1]]):
        expected = naive_metrics([0.9, 0.8, 0.7], grades[row].tolist(), 2, missing)
        for name, column in measured.items():
            assert column[row] == pytest.approx(expected[name]), name
    assert ranked.best_rank.tolist() == [2, 3]


def test_a_lower_grade_ranks_first_among_equal_scores():
    ranked = rank_relevant(torch.zeros(1, 3), make_judgements((1, 3), [[3, 0, 1]]), depth=3)
    assert ranked.ranks.rank.tolist() == [[2, 3, 0]]
    assert ranked.gains.tolist() == [[1, 3, 0]]
