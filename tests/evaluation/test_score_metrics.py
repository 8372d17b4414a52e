"""Single metrics equal those of `evaluate_scores`; the examples of docstrings and of the documentation run."""

import doctest
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from triptych.evaluation import score_metrics
from triptych.evaluation.score_matrix import evaluate_scores

PAGE = Path(__file__).parents[2] / "docs" / "evaluation-arrays.md"
MODULES = ["chance", "judgements", "ranked_relevance", "score_matrix", "score_metrics", "trec_files"]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module):
    outcome = doctest.testmod(import_module(f"triptych.evaluation.{module}"))
    assert outcome.attempted
    assert not outcome.failed


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_examples_of_the_documentation(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(example, str(PAGE), "exec"), {})


@pytest.mark.parametrize("k", [7, 10])
def test_single_metrics_equal_those_of_evaluate_scores(k):
    rng = np.random.default_rng(0)
    scores, grades = rng.random((30, 40)), rng.integers(0, 3, (30, 40))
    result = evaluate_scores(scores, grades, ks=[1, 7, 10])
    names = ["recall", "ir_recall", "precision", "mean_reciprocal_rank", "mean_average_precision", "ndcg"]
    for function, metric in zip(names, ["R", "IR recall", "P", "MRR", "mAP", "nDCG"], strict=True):
        assert getattr(score_metrics, function)(scores, grades, k=k) == result.estimate(f"{metric}@{k}")
        assert getattr(score_metrics, function)(scores, grades) == result.estimate(f"{metric}@10")
    assert score_metrics.median_rank(scores, grades) == result.metrics["median rank"]
