"""Measure a space: retrieval, classification, geometry, localisation, and comparisons with intervals.

The functions imported here evaluate a score matrix of any model; docs/evaluation-arrays.md has examples.
"""

from triptych.evaluation.score_matrix import MetricEstimate, ScoreEvaluation, evaluate_scores
from triptych.evaluation.score_metrics import (
    ir_recall,
    mean_average_precision,
    mean_reciprocal_rank,
    median_rank,
    ndcg,
    precision,
    recall,
)
from triptych.evaluation.trec_files import make_run_scores, read_qrels, read_run, write_qrels, write_run

__all__ = [
    "MetricEstimate",
    "ScoreEvaluation",
    "evaluate_scores",
    "ir_recall",
    "make_run_scores",
    "mean_average_precision",
    "mean_reciprocal_rank",
    "median_rank",
    "ndcg",
    "precision",
    "read_qrels",
    "read_run",
    "recall",
    "write_qrels",
    "write_run",
]
