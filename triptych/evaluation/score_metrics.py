"""Compute single retrieval metrics of a score matrix. `evaluate_scores` computes all metrics at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, TypeVar, Unpack

from numpy.typing import ArrayLike
from torch import Tensor

from triptych.evaluation.judgements import Labels, RelevanceLike
from triptych.evaluation.ranked_relevance import APDenominator
from triptych.evaluation.retrieval import MEDIAN_RANK
from triptych.evaluation.score_matrix import MetricEstimate, evaluate_scores

Metric = TypeVar("Metric", bound=Callable[..., MetricEstimate])


class ScoreOptions(TypedDict, total=False):
    """The optional arguments of all metric functions. `evaluate_scores` explains the arguments."""

    query_groups: Labels | None
    gallery_groups: Labels | None
    query_ids: Labels | None
    gallery_ids: Labels | None
    clusters: Labels | None
    num_resamples: int


def recall(
    scores: ArrayLike | Tensor, relevance: RelevanceLike | None = None, *, k: int = 10, **options: Unpack[ScoreOptions]
) -> MetricEstimate:
    """Return R@k, the hit rate: the fraction of queries with at least one relevant item among the first k.

    Papers on cross-modal retrieval call R@k recall. `ir_recall` computes the recall of information retrieval.

    Args:
        scores: Score matrix (Q, M); a higher score means more similar.
        relevance: Matrix, qrels or path of a qrels file. The default is the groups in `options`, or else the diagonal.
        k: Cutoff.
        options: Other arguments of `evaluate_scores`, such as query_groups and gallery_groups.

    Returns:
        Value, 95% interval and chance level.

    Example:
        >>> scores = [[0.9, 0.1, 0.2], [0.8, 0.3, 0.7], [0.1, 0.2, 0.3]]
        >>> round(recall(scores, k=1).value, 3)
        0.667
    """
    return evaluate_scores(scores, relevance, ks=[k], **options).estimate(f"R@{k}")


def _describe_arguments(metric: Metric) -> Metric:
    """Insert the arguments and the result of `recall` before the example in the docstring of another metric."""
    shared = (recall.__doc__ or "").partition("    Args:")[2].partition("    Example:")[0]
    metric.__doc__ = (metric.__doc__ or "").replace("    Example:", f"    Args:{shared}    Example:")
    return metric


@_describe_arguments
def ir_recall(
    scores: ArrayLike | Tensor, relevance: RelevanceLike | None = None, *, k: int = 10, **options: Unpack[ScoreOptions]
) -> MetricEstimate:
    """Return the recall of information retrieval: the fraction of a query's relevant items among the first k.

    Example:
        >>> ir_recall([[0.9, 0.1, 0.8]], [[1, 1, 0]], k=2).value
        0.5
    """
    return evaluate_scores(scores, relevance, ks=[k], **options).estimate(f"IR recall@{k}")


@_describe_arguments
def precision(
    scores: ArrayLike | Tensor, relevance: RelevanceLike | None = None, *, k: int = 10, **options: Unpack[ScoreOptions]
) -> MetricEstimate:
    """Return P@k: the fraction of the first k items that are relevant.

    The divisor is k even if the gallery has fewer than k items.

    Example:
        >>> precision([[0.9, 0.1, 0.8]], [[1, 1, 0]], k=2).value
        0.5
    """
    return evaluate_scores(scores, relevance, ks=[k], **options).estimate(f"P@{k}")


@_describe_arguments
def mean_reciprocal_rank(
    scores: ArrayLike | Tensor, relevance: RelevanceLike | None = None, *, k: int = 10, **options: Unpack[ScoreOptions]
) -> MetricEstimate:
    """Return MRR@k: the mean of 1 / rank of the best relevant item, with 0 for a rank above k.

    Example:
        >>> mean_reciprocal_rank([[0.9, 0.1], [0.8, 0.3]]).value
        0.75
    """
    return evaluate_scores(scores, relevance, ks=[k], **options).estimate(f"MRR@{k}")


def mean_average_precision(
    scores: ArrayLike | Tensor,
    relevance: RelevanceLike | None = None,
    *,
    k: int = 10,
    ap_denominator: APDenominator = "relevant",
    **options: Unpack[ScoreOptions],
) -> MetricEstimate:
    """Return mAP@k: the mean of 1/R · sum of j / rank_j over the relevant items with rank_j <= k, for R relevant items.

    Args:
        scores: Score matrix (Q, M); a higher score means more similar.
        relevance: Matrix, qrels or path of a qrels file. The default is the groups in `options`, or else the diagonal.
        k: Cutoff.
        ap_denominator: Divisor of mAP@k: "relevant" is R, as in trec_eval and ranx; "cutoff" is min(R, k), as in
            sentence-transformers.
        options: Other arguments of `evaluate_scores`, such as query_groups and gallery_groups.

    Returns:
        Value, 95% interval and chance level.

    Example:
        >>> mean_average_precision([[0.9, 0.1, 0.8]], [[1, 1, 0]], k=2).value
        0.5
        >>> mean_average_precision([[0.9, 0.1, 0.8]], [[1, 1, 0]], k=1, ap_denominator="cutoff").value
        1.0
    """
    result = evaluate_scores(scores, relevance, ks=[k], ap_denominator=ap_denominator, **options)
    return result.estimate(f"mAP@{k}")


@_describe_arguments
def ndcg(
    scores: ArrayLike | Tensor, relevance: RelevanceLike | None = None, *, k: int = 10, **options: Unpack[ScoreOptions]
) -> MetricEstimate:
    """Return nDCG@k: sum of grade / log2(1 + rank) over the first k items, divided by the sum of the ideal ranking.

    Gains are linear, as in trec_eval and scikit-learn. For exponential gains pass 2 ** grade - 1 as relevance.

    Example:
        >>> round(ndcg([[0.9, 0.1, 0.8]], [[1, 3, 0]]).value, 3)
        0.689
    """
    return evaluate_scores(scores, relevance, ks=[k], **options).estimate(f"nDCG@{k}")


def median_rank(
    scores: ArrayLike | Tensor, relevance: RelevanceLike | None = None, **options: Unpack[ScoreOptions]
) -> float:
    """Return the median over queries of the rank of the best relevant item; 1 is best.

    Args:
        scores: Score matrix (Q, M); a higher score means more similar.
        relevance: Matrix, qrels or path of a qrels file. The default is the groups in `options`, or else the diagonal.
        options: Other arguments of `evaluate_scores`, such as query_groups and gallery_groups.

    Returns:
        The median rank, without an interval.

    Example:
        >>> median_rank([[0.9, 0.1], [0.8, 0.3]])
        1.5
    """
    options["num_resamples"] = 0
    return evaluate_scores(scores, relevance, ks=[1], **options).metrics[MEDIAN_RANK]
