"""Metrics of a score matrix: equal to `compute_retrieval_metrics`, sentence-transformers and ranx; tables, errors."""

import json
import sys

import numpy as np
import pytest
import torch

from tests.evaluation.test_retrieval import measure_scores, random_task, tied_scores
from triptych.errors import InputError, UsageError
from triptych.evaluation.score_matrix import evaluate_scores

KS = [1, 5, 10, 16]


def random_qrels(num_grades):
    """Scores without ties, and many-to-many grades with more than 10 relevant items for some queries."""
    rng = np.random.default_rng(5)
    scores = rng.random((40, 60))
    grades = rng.integers(1, num_grades + 1, scores.shape) * (rng.random(scores.shape) < rng.random((40, 1)) * 0.5)
    grades[:, 0] = 1
    queries, items = [f"q{i}" for i in range(40)], [f"d{i:02}" for i in range(60)]
    rows = zip(queries, grades.tolist(), strict=True)
    qrels = {query: {item: g for item, g in zip(items, row, strict=True) if g} for query, row in rows}
    return scores, qrels, queries, items


@pytest.mark.parametrize("has_ties", [False, True])
def test_groups_give_the_numbers_of_compute_retrieval_metrics(has_ties):
    scores, query_group, gallery_group = random_task()
    scores = tied_scores(*scores.shape, seed=1) if has_ties else scores
    expected = measure_scores(scores, query_group, gallery_group)
    results = [
        evaluate_scores(scores, ks=KS, query_groups=query_group, gallery_groups=gallery_group),
        evaluate_scores(scores, query_group[:, None] == gallery_group, ks=KS, clusters=query_group),
    ]
    for result in results:
        for name, value in expected.metrics.items():
            assert result.metrics[name] == value, name
        for name, interval in expected.intervals.items():
            assert result.intervals[name] == interval, name
            assert result.chance_levels[name] == pytest.approx(expected.chance_levels[name], rel=1e-12)


@pytest.mark.slow
def test_metrics_match_sentence_transformers():
    evaluation = pytest.importorskip(
        "sentence_transformers.sentence_transformer.evaluation", reason="needs sentence-transformers"
    )
    scores, qrels, queries, items = random_qrels(1)
    ours = evaluate_scores(scores, qrels, query_ids=queries, gallery_ids=items, ks=KS, ap_denominator="cutoff")
    evaluator = evaluation.InformationRetrievalEvaluator(
        dict(zip(queries, queries, strict=True)),
        dict(zip(items, items, strict=True)),
        {query: set(documents) for query, documents in qrels.items()},
        **{f"{name}_at_k": KS for name in ("mrr", "ndcg", "accuracy", "precision_recall", "map")},
    )
    ranked = [
        [{"corpus_id": item, "score": score} for item, score in zip(items, row, strict=True)] for row in scores.tolist()
    ]
    theirs = evaluator.compute_metrics(ranked)
    names = {"R": "accuracy", "IR recall": "recall", "P": "precision", "MRR": "mrr", "mAP": "map", "nDCG": "ndcg"}
    for ours_name, their_name in names.items():
        for k in KS:
            assert ours.metrics[f"{ours_name}@{k}"] == pytest.approx(theirs[f"{their_name}@k"][k], abs=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_grades", [1, 3])
def test_metrics_match_ranx(num_grades):
    ranx = pytest.importorskip("ranx", reason="needs ranx")
    scores, qrels, queries, items = random_qrels(num_grades)
    ours = evaluate_scores(scores, qrels, query_ids=queries, gallery_ids=items, ks=KS, num_resamples=0)
    run = {query: dict(zip(items, row, strict=True)) for query, row in zip(queries, scores.tolist(), strict=True)}
    names = {"R": "hit_rate", "IR recall": "recall", "P": "precision", "MRR": "mrr", "mAP": "map", "nDCG": "ndcg"}
    theirs = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), [f"{name}@{k}" for name in names.values() for k in KS])
    for ours_name, their_name in names.items():
        for k in KS:
            assert ours.metrics[f"{ours_name}@{k}"] == pytest.approx(theirs[f"{their_name}@{k}"], abs=1e-9)


def test_table_dict_and_data_frame(monkeypatch):
    result = evaluate_scores([[0.9, 0.1, 0.3], [0.8, 0.3, 0.1]], [[1, 0, 0], [0, 0, 0]], ks=[1, 2])
    assert (result.num_queries, result.num_excluded_queries) == (1, 1)
    lines = str(result).splitlines()
    assert lines[0] == "1 queries, 3 items, 1 queries without a relevant item"
    assert lines[2].split()[:2] == ["R@1", "1.0000"]
    assert len(lines) == 2 + 2 * 6 + 2
    data = json.loads(json.dumps(result.to_dict()))
    assert data["metrics"]["median rank"] == {"value": 1.0, "low": None, "high": None, "chance": None}
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    frame = result.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.loc["R@1", "value"] == 1
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        result.to_pandas()


def test_estimates():
    result = evaluate_scores(torch.eye(4), ks=[1], num_resamples=0)
    estimate = result.estimate("R@1")
    assert (float(estimate), str(estimate), estimate.interval, estimate.chance_level) == (1, "1.000", None, 0.25)
    with pytest.raises(UsageError, match="metric 'R@2' is unknown"):
        result.estimate("R@2")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ks": []}, InputError, "one or more integers from 1"),
        ({"ks": [0]}, InputError, "one or more integers from 1"),
        ({"ks": [1.5]}, InputError, "need integers"),
        ({"relevance": np.zeros((2, 2))}, InputError, "no query has a relevant item"),
        ({"num_resamples": -1}, InputError, "num_resamples = -1"),
        ({"ap_denominator": "R"}, UsageError, "ap_denominator = 'R'"),
    ],
)
def test_invalid_arguments_raise(options, error, message):
    with pytest.raises(error, match=message):
        evaluate_scores(np.eye(2), **options)
