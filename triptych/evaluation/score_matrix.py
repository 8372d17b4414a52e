"""Compute retrieval metrics, intervals and chance levels of a score matrix of any model, for graded relevance.

    R@k          hit rate: fraction of queries with a relevant item among the first k (recall in cross-modal retrieval)
    IR recall@k  fraction of the relevant items that are among the first k (recall in information retrieval)
    P@k          precision: fraction of the first k items that are relevant
    MRR@k        1 / rank of the best relevant item, or 0 if the rank exceeds k
    mAP@k        1/R · sum of j / rank_j over the relevant items with rank_j <= k, for R relevant items
    nDCG@k       sum of grade / log2(1 + rank) over the first k items, divided by the sum of the ideal ranking
    mean rank, median rank   mean and median over queries of the rank of the best relevant item; 1 is best

R@k equals IR recall@k if each query has one relevant item. Every metric except the median rank is a mean over queries.
Ties count against the query: of items with equal scores, the item with the lowest grade ranks first. Other libraries
order items with equal scores by id or by position. Without ties, other libraries compute the same metrics as triptych.
With ties, the metrics of other libraries are mostly higher.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from triptych.errors import InputError, UsageError, describe_unknown
from triptych.evaluation import retrieval
from triptych.evaluation.chance import compute_chance_mean_rank, compute_cutoff_chance_levels
from triptych.evaluation.judgements import Judgements, Labels, RelevanceLike, make_judgements, to_matrix
from triptych.evaluation.ranked_relevance import APDenominator, RankedRelevance, rank_relevant
from triptych.evaluation.significance import NUM_RESAMPLES, Interval
from triptych.result_tables import import_pandas

METRIC_ORDER = ("R", "IR recall", "P", "MRR", "mAP", "nDCG", retrieval.MEAN_RANK)


@dataclass(frozen=True)
class MetricEstimate:
    """The value of a metric, its 95% interval, and its chance level.

    Args:
        value: The value: a fraction from 0 to 1, or a rank from 1.
        interval: The 95% interval; None for the median rank, or if num_resamples = 0.
        chance_level: The value expected under random ranking; None for the median rank.

    Example:
        >>> from triptych.evaluation import recall
        >>> estimate = recall([[0.9, 0.1], [0.2, 0.8]], k=1)
        >>> estimate.value, estimate.chance_level
        (1.0, 0.5)
    """

    value: float
    interval: Interval | None
    chance_level: float | None

    def __float__(self) -> float:
        """The value."""
        return self.value

    def __str__(self) -> str:
        """Return the value and the interval in the format 0.500 [0.250, 0.750]."""
        interval = f" [{self.interval.low:.3f}, {self.interval.high:.3f}]" if self.interval else ""
        return f"{self.value:.3f}{interval}"


@dataclass(frozen=True, repr=False)
class ScoreEvaluation:
    """The metrics of a score matrix, with 95% intervals and chance levels. `repr` returns a table.

    Example:
        >>> from triptych.evaluation import evaluate_scores
        >>> result = evaluate_scores([[0.9, 0.1], [0.2, 0.8]], ks=[1])
        >>> result.num_queries, result.metrics["R@1"], result.estimate("R@1").chance_level
        (2, 1.0, 0.5)
    """

    num_queries: int  # number of queries with a relevant item
    num_items: int
    num_excluded_queries: int  # number of queries without a relevant item, which are left out
    num_ignored_queries: int  # number of queries of the qrels that are not in query_ids
    num_missing_items: int  # number of relevant items that are not in gallery_ids and count as missed
    metrics: dict[str, float]  # metric name -> a fraction from 0 to 1, or a rank from 1
    chance_levels: dict[str, float]  # metric name -> value expected under random ranking; without the median rank
    intervals: dict[str, Interval]  # 95% intervals; without the median rank; empty if num_resamples = 0
    per_query: retrieval.PerQuery = field(compare=False)

    def estimate(self, metric: str) -> MetricEstimate:
        """Return the value, interval and chance level of one metric, such as "R@10"."""
        if metric not in self.metrics:
            raise UsageError(describe_unknown("metric", metric, self.metrics))
        return MetricEstimate(self.metrics[metric], self.intervals.get(metric), self.chance_levels.get(metric))

    def to_dict(self) -> dict[str, Any]:
        """Return the results as a dict for `json.dumps`, without the values of single queries."""
        counts = {f.name: getattr(self, f.name) for f in fields(self) if f.name.startswith("num_")}
        metrics = {}
        for name, value in self.metrics.items():
            interval = self.intervals.get(name)
            low, high = (interval.low, interval.high) if interval else (None, None)
            metrics[name] = {"value": value, "low": low, "high": high, "chance": self.chance_levels.get(name)}
        return counts | {"metrics": metrics}

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with one row per metric, and the columns value, low, high and chance."""
        frame = import_pandas().DataFrame.from_dict(self.to_dict()["metrics"], orient="index", dtype=float)
        return frame.rename_axis("metric")

    def __repr__(self) -> str:
        """Return a table with one line per metric."""
        width = max(len(name) for name in self.metrics)
        remarks = (
            (self.num_excluded_queries, "queries without a relevant item"),
            (self.num_ignored_queries, "queries of the qrels ignored"),
            (self.num_missing_items, "relevant items not in the gallery"),
        )
        counts = [f"{self.num_queries} queries, {self.num_items} items", *(f"{n} {text}" for n, text in remarks if n)]
        lines = [", ".join(counts), f"{'metric':{width}}     value      95% interval    chance"]
        for name in self.metrics:
            row = self.estimate(name)
            digits = 1 if name in (retrieval.MEAN_RANK, retrieval.MEDIAN_RANK) else 4
            interval = f"{row.interval.low:.{digits}f} … {row.interval.high:.{digits}f}" if row.interval else ""
            chance = "" if row.chance_level is None else f"{row.chance_level:.{digits}f}"
            lines.append(f"{name:{width}}  {row.value:8.{digits}f}  {interval:>16}  {chance:>8}".rstrip())
        return "\n".join(lines)


def evaluate_scores(
    scores: ArrayLike | Tensor,
    relevance: RelevanceLike | None = None,
    *,
    query_groups: Labels | None = None,
    gallery_groups: Labels | None = None,
    query_ids: Labels | None = None,
    gallery_ids: Labels | None = None,
    clusters: Labels | None = None,
    ks: Sequence[int] = retrieval.RECALL_KS,
    ap_denominator: APDenominator = "relevant",
    num_resamples: int = NUM_RESAMPLES,
) -> ScoreEvaluation:
    """Compute the retrieval metrics of a score matrix. The docstring of the module defines the metrics.

    Pass the relevance as groups (the items of a query's group are relevant), as a matrix, or as qrels. Without these
    arguments, the diagonal of a square score matrix is relevant. An item is relevant if its grade is above 0. Queries
    without a relevant item are left out, and `num_excluded_queries` counts these queries.

    Args:
        scores: Score matrix (Q, M); a higher score means more similar. An item with a score of -inf is not retrieved
            and therefore never a hit. NaN raises InputError.
        relevance: A bool matrix (Q, M), a matrix (Q, M) of grades, a dict of qrels, or a path of a TREC qrels file. The
            dict maps each query id to a dict from item id to grade, or to the set of the ids of the relevant items. As
            in trec_eval, a relevant item of the qrels counts as missed if the item is not in gallery_ids. A query of
            the qrels is ignored if the query is not in query_ids. nDCG uses the grades as gains. For exponential gains,
            pass 2 ** grade - 1.
        query_groups: Group of each query (Q,).
        gallery_groups: Group of each gallery item (M,).
        query_ids: Id of each query (Q,), required with qrels. Ids are compared as strings.
        gallery_ids: Id of each gallery item (M,), required with qrels.
        clusters: Cluster of each query (Q,), such as the clip of a caption. Queries of one cluster are not independent,
            so the bootstrap resamples whole clusters. By default, the clusters are query_groups. Without query_groups,
            each query is a cluster.
        ks: Cutoffs.
        ap_denominator: The divisor of mAP@k. With "relevant", mAP@k divides by R, as in trec_eval and ranx. With
            "cutoff", mAP@k divides by min(R, k), as in sentence-transformers.
        num_resamples: Number of bootstrap resamples for the intervals. With 0, no intervals are computed.

    Returns:
        Metrics, intervals, chance levels, and the values of each query.

    Example:
        >>> result = evaluate_scores([[0.9, 0.1], [0.8, 0.3]], ks=[1])
        >>> result.metrics["R@1"], result.metrics["median rank"]
        (0.5, 1.5)
    """
    matrix, cutoffs = to_matrix("scores", scores), _check_cutoffs(ks)
    if ap_denominator not in ("relevant", "cutoff"):
        raise UsageError(f'ap_denominator = {ap_denominator!r}; need "relevant" or "cutoff"')
    shape = matrix.shape[0], matrix.shape[1]
    judgements = make_judgements(
        shape, relevance, query_groups, gallery_groups, query_ids, gallery_ids, clusters=clusters
    )
    return _evaluate_judgements(matrix, judgements, cutoffs, ap_denominator, num_resamples)


def _evaluate_judgements(
    scores: Tensor, judgements: Judgements, cutoffs: list[int], ap_denominator: APDenominator, num_resamples: int
) -> ScoreEvaluation:
    ranked = rank_relevant(scores, judgements, depth=max(retrieval.MAX_POSITIVES, *cutoffs))
    has_relevant = (ranked.ranks.num_positives > 0).numpy()
    if not has_relevant.any():
        raise InputError("no query has a relevant item; check the relevance judgements")
    ranked, cluster = ranked.select(has_relevant), judgements.cluster[has_relevant]
    values, chance_values = {}, {}
    for k in cutoffs:
        values |= ranked.measure(k, ap_denominator)
        chance_values |= compute_cutoff_chance_levels(ranked.counts, k)
        if ap_denominator == "cutoff":
            chance_values[f"mAP@{k}"] = ranked.divide_by_cutoff(chance_values[f"mAP@{k}"], k)
    values[retrieval.MEAN_RANK] = ranked.best_rank.astype(np.float64)
    chance_values[retrieval.MEAN_RANK] = compute_chance_mean_rank(ranked.counts)
    # Sort the metrics by kind: R@1, R@5, R@10, then IR recall@1, …
    names = sorted(values, key=lambda name: METRIC_ORDER.index(name.split("@")[0]))
    values = {name: values[name] for name in names}
    return ScoreEvaluation(
        num_queries=len(cluster),
        num_items=scores.shape[1],
        num_excluded_queries=len(scores) - len(cluster),
        num_ignored_queries=judgements.num_ignored_queries,
        num_missing_items=sum(len(grades) for grades in judgements.missing_grades.values()),
        metrics={name: float(values[name].mean()) for name in names}
        | {retrieval.MEDIAN_RANK: float(np.median(ranked.best_rank))},
        chance_levels={name: float(chance_values[name].mean()) for name in names},
        intervals=_compute_intervals(values, ranked, cluster, num_resamples) if num_resamples else {},
        per_query=retrieval.PerQuery(
            has_relevant.nonzero()[0], cluster, ranked.ranks.num_positives.numpy(), ranked.best_rank, values
        ),
    )


def _check_cutoffs(ks: Sequence[int]) -> list[int]:
    """Return the distinct cutoffs in ascending order."""
    try:
        cutoffs = sorted({operator.index(k) for k in ks})
    except TypeError as error:
        raise InputError(f"ks = {ks!r}; need integers") from error
    if not cutoffs or cutoffs[0] < 1:
        raise InputError(f"ks = {ks!r}; need one or more integers from 1")
    return cutoffs


def _compute_intervals(
    values: dict[str, NDArray[np.float64]], ranked: RankedRelevance, cluster: NDArray, num_resamples: int
) -> dict[str, Interval]:
    """Return the interval of each metric. An interval does not depend on the other metrics in `values`.

    The resamples of a table depend on all columns of the table. The metrics that `triptych evaluate` also computes are
    therefore resampled as the same table as in `triptych evaluate`, so that the intervals of both are identical. Every
    other metric is resampled as a table with one column.
    """
    standard, num_items = ranked.measure_standard(), ranked.counts.num_items
    intervals = retrieval.compute_metric_intervals(standard, cluster, num_items, num_resamples)
    for name, column in values.items():
        if name not in standard or not np.array_equal(column, standard[name]):
            intervals |= retrieval.compute_metric_intervals({name: column}, cluster, num_items, num_resamples)
    return {name: intervals[name] for name in values}
