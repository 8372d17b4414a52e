"""Compare the metrics of two spaces on the same queries, over all queries and over slices of the queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from triptych import checkpoint
from triptych.data.cache import Cache
from triptych.data.tables_in_memory import DataLike
from triptych.errors import MediaError, UsageError
from triptych.evaluation import significance
from triptych.evaluation.evaluate import Evaluation, evaluate, select_evaluation_rows
from triptych.evaluation.items import EvalItem, EvalItems
from triptych.evaluation.retrieval import MEAN_RANK, RetrievalResult, metric_bounds
from triptych.evaluation.significance import NUM_RESAMPLES, Difference
from triptych.interfaces import Modality, Source
from triptych.media import audio
from triptych.result_tables import format_table, rows_to_arrow, rows_to_pandas
from triptych.space import Space

if TYPE_CHECKING:
    import pyarrow

COLUMNS = ("query", "gallery", "num_queries", "metric", "mean_a", "mean_b", "difference", "low", "high", "verdict")
SUMMARY_METRICS = ("R@1", "R@10", "mAP@10")
FLIP_K = 10  # a query has flipped if only one of A and B has a positive among the first 10 hits
NUM_LENGTH_BINS = 3  # number of bins of caption lengths, and of audio durations


@dataclass(frozen=True)
class Flip:
    """A query for which only one of the spaces A and B has a positive among the first FLIP_K hits."""

    item: EvalItem
    rank_a: float  # rank of the best positive with A; the median rank if A has several runs
    rank_b: float


@dataclass(frozen=True)
class Slice:
    """The difference in R@10 between two spaces on a subset of the queries."""

    attribute: str  # the attribute that defines the slice: "words", "seconds" or "label"
    value: str
    num_queries: int
    difference: Difference


@dataclass(frozen=True)
class Comparison:
    """The comparison of the spaces A and B in one retrieval direction."""

    query: str
    gallery: str
    num_queries: int
    differences: dict[str, Difference]  # the difference of each metric, by the name of the metric
    losses: list[Flip]  # queries with a positive among the first FLIP_K hits for A only; largest rank difference first
    wins: list[Flip]  # queries with a positive among the first FLIP_K hits for B only; largest rank difference first
    slices: list[Slice]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-compatible data, with metrics as fractions and differences as B - A."""
        return {
            "query": self.query,
            "gallery": self.gallery,
            "num_queries": self.num_queries,
            "differences": {name: _difference_to_dict(diff, name) for name, diff in self.differences.items()},
            "losses": [_flip_to_dict(flip) for flip in self.losses],
            "wins": [_flip_to_dict(flip) for flip in self.wins],
            "slices": [
                {"attribute": s.attribute, "value": s.value, "num_queries": s.num_queries}
                | {f"R@{FLIP_K}": _difference_to_dict(s.difference, f"R@{FLIP_K}")}
                for s in self.slices
            ],
        }


class Comparisons(list[Comparison]):
    """The comparisons of two spaces in all retrieval directions. `repr` returns a table of the differences."""

    def to_dict(self) -> dict[str, Any]:
        """Return all comparisons as JSON-compatible data."""
        return {"directions": [comparison.to_dict() for comparison in self]}

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row per direction and metric, with the columns COLUMNS."""
        rows = []
        for c in self:
            for metric, difference in c.differences.items():
                values = _difference_to_dict(difference, metric)
                low, high = values.pop("interval")
                direction = {"query": c.query, "gallery": c.gallery, "num_queries": c.num_queries, "metric": metric}
                rows.append({**direction, **values, "low": low, "high": high})
        return rows

    def to_arrow(self) -> pyarrow.Table:
        """Return a pyarrow.Table with one row per direction and metric; differences are B - A."""
        return rows_to_arrow(self.to_rows(), COLUMNS)

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with one row per direction and metric; differences are B - A."""
        return rows_to_pandas(self.to_rows(), COLUMNS)

    def __repr__(self) -> str:
        """Return a table of R@1, R@10 and mAP@10 in %, with the difference B - A and its 95% interval."""
        rows = []
        for row in self.to_rows():
            if row["metric"] in SUMMARY_METRICS:
                name = f"{row['query']} → {row['gallery']} {row['metric']}"
                numbers = [
                    f"{100 * row['mean_a']:.1f}",
                    f"{100 * row['mean_b']:.1f}",
                    f"{100 * row['difference']:+.1f}",
                ]
                rows.append([name, *numbers, f"{100 * row['low']:+.1f} … {100 * row['high']:+.1f}", row["verdict"]])
        return format_table(["in %", "A", "B", "B − A", "95% interval", "verdict"], rows)


def compare(
    a: Space | str | Path,
    b: Space | str | Path,
    data: DataLike,
    show_progress: bool = True,
    cache: Cache | str = "",
    num_resamples: int = NUM_RESAMPLES,
    split: str | None = None,
    allow_outside: bool = False,
) -> Comparisons:
    """Compare two spaces on the same rows in every retrieval direction that both spaces support.

    Args:
        a: The first space, as `triptych.load` returns it, or anything that `triptych.load` accepts.
        b: The second space. A difference is positive if b has the higher value.
        data: The data, in any form that `evaluate` accepts.
        show_progress: Whether to show progress.
        cache: The folder of cached features; see `evaluate`.
        num_resamples: The number of bootstrap resamples of the intervals.
        split: The split; see `evaluate`. If the data has no splits, the training data of `a` decides.
        allow_outside: Whether a manifest may list files outside its folder.

    Returns:
        A list with one comparison per direction. `repr` returns a table; `to_pandas`, `to_arrow` and `to_dict` convert
        the list.

    Raises:
        ManifestError: The data is invalid, has no such split, or has no pair of modalities.
        UsageError: The two spaces have no common direction.

    Example:
        >>> import triptych
        >>> a = triptych.train("trimodal", data="pairs.csv", epochs=1)
        >>> b = triptych.train("trimodal", "runs/other", data="pairs.csv", epochs=1, seed=1)
        >>> triptych.compare(a, b, "pairs.csv").to_pandas()["metric"].unique().tolist()
        ['R@1', 'R@5', 'R@10', 'mAP@10', 'mAP@16', 'nDCG@10', 'mean rank']
    """
    spaces = [space if isinstance(space, Space) else checkpoint.load(space) for space in (a, b)]
    rows = select_evaluation_rows(spaces[0], data, split, allow_outside, cache, show_progress)
    first, second = (evaluate(space, rows, show_progress, cache, num_resamples=0) for space in spaces)
    return compare_evaluations([first], [second], num_resamples)


def compare_evaluations(
    a: Sequence[Evaluation], b: Sequence[Evaluation], num_resamples: int = NUM_RESAMPLES
) -> Comparisons:
    """Compare A with B on the same rows. Pass one evaluation of each, or evaluations of several seeds of each.

    With one evaluation of each, the intervals cover the choice of items. With several seeds of each, the intervals
    cover the choice of items and the choice of seeds.
    """
    if not a or not b or (len(a) > 1) != (len(b) > 1):
        raise UsageError(f"{len(a)} and {len(b)} runs for A and B; give one run of each, or at least two runs of each")
    sides = [[{(d.query, d.gallery): d for d in run.directions} for run in side] for side in (a, b)]
    common = [direction for direction in sides[0][0] if all(direction in run for side in sides for run in side)]
    if not common:
        raise UsageError("nothing to compare: no retrieval direction was measured in all runs")
    comparisons = Comparisons()
    for direction in common:
        for modality in direction:
            _check_same_items([run.items[cast(Modality, modality)] for side in (a, b) for run in side])
        results = ([run[direction] for run in side] for side in sides)
        comparisons.append(_compare_direction(a[0].items, *results, num_resamples=num_resamples))
    return comparisons


def _check_same_items(item_sets: Sequence[EvalItems]) -> None:
    """Raise UsageError if the runs were measured on different items, because their ranks are not comparable."""
    first = [(item.source, item.group) for item in item_sets[0].entries]
    for other in item_sets[1:]:
        other_keys = [(item.source, item.group) for item in other.entries]
        if other_keys != first:
            unshared = set(first) ^ set(other_keys)
            name = f"; only one run has {min(str(source) for source, _ in unshared)}" if unshared else ""
            raise UsageError(
                f"the runs were measured on different items: {len(first)} and {len(other_keys)} "
                f"{item_sets[0].modality} items{name}. Measure all runs on the same rows, and exclude unreadable files"
            )


def _compare_direction(
    items: dict[Modality, EvalItems], a: Sequence[RetrievalResult], b: Sequence[RetrievalResult], num_resamples: int
) -> Comparison:
    reference = a[0]
    differences_over = partial(_compute_differences, a, b, num_resamples)
    rank_a, rank_b = (np.median([run.per_query.best_rank for run in side], axis=0) for side in (a, b))
    query, gallery = (items[cast(Modality, name)] for name in (reference.query, reference.gallery))
    query_items = [query.entries[i] for i in reference.per_query.item_index]

    def find_flips(hit_rank: NDArray, miss_rank: NDArray) -> list[Flip]:
        flipped = np.flatnonzero((hit_rank <= FLIP_K) & (miss_rank > FLIP_K))
        ordered = flipped[np.argsort(-(miss_rank - hit_rank)[flipped], kind="stable")]
        return [Flip(query_items[i], float(rank_a[i]), float(rank_b[i])) for i in ordered]

    slices = []
    for attribute, value, mask in _slice_queries(query_items, gallery):
        if len(np.unique(reference.per_query.group[mask])) > 1:
            slices.append(Slice(attribute, value, int(mask.sum()), differences_over(mask)[f"R@{FLIP_K}"]))
    differences = differences_over(np.ones(len(query_items), bool))
    losses, wins = find_flips(rank_a, rank_b), find_flips(rank_b, rank_a)
    return Comparison(reference.query, reference.gallery, reference.num_queries, differences, losses, wins, slices)


def _compute_differences(
    a: Sequence[RetrievalResult], b: Sequence[RetrievalResult], num_resamples: int, mask: NDArray
) -> dict[str, Difference]:
    """Return the difference between A and B in every metric, over the queries that `mask` selects."""
    metrics, cluster = list(a[0].per_query.values), a[0].per_query.group[mask]
    first, second = (
        [np.column_stack([run.per_query.values[name][mask] for name in metrics]) for run in side] for side in (a, b)
    )
    if len(first) > 1:
        intervals = significance.compute_run_difference_intervals(first, second, cluster)
    else:
        metric_ranges = [metric_bounds(name, a[0].num_items) for name in metrics]
        bounds = [(low - high, high - low) for low, high in metric_ranges]
        differences = second[0] - first[0]
        intervals = significance.bootstrap_intervals(differences, cluster, bounds, num_resamples=num_resamples)
    mean_a, mean_b = (np.mean([table.mean(axis=0) for table in side], axis=0).tolist() for side in (first, second))
    columns = zip(metrics, mean_a, mean_b, intervals, strict=True)
    return {name: Difference(x, y, interval) for name, x, y, interval in columns}


def _slice_queries(query_items: Sequence[EvalItem], gallery: EvalItems) -> list[tuple[str, str, NDArray]]:
    """Slice the queries by caption length in words, by audio duration in seconds, and by label."""
    slices = []
    for attribute, modality in (("words", "text"), ("seconds", "audio")):
        lengths = _query_lengths(query_items, gallery, modality)
        has_length = np.isfinite(lengths)
        if not has_length.any():
            continue
        edges = np.unique(np.quantile(lengths[has_length], np.arange(1, NUM_LENGTH_BINS) / NUM_LENGTH_BINS))
        bin_index = np.where(has_length, np.searchsorted(edges, lengths), -1)
        masks = [mask for i in range(len(edges) + 1) if (mask := bin_index == i).any()]
        if len(masks) > 1:
            slices += [(attribute, f"{lengths[m].min():.3g}–{lengths[m].max():.3g}", m) for m in masks]
    labels = np.array([item.label or "" for item in query_items])
    if len(set(labels)) > 1:
        slices += [("label", str(label), labels == label) for label in np.unique(labels) if label]
    return slices


def _query_lengths(query_items: Sequence[EvalItem], gallery: EvalItems, modality: str) -> NDArray:
    """Return the length of each query, or the mean length of its positives if the query has another modality.

    The length is NaN if neither the query nor the positives have the modality.
    """
    if query_items[0].source.modality == modality:
        return np.array([_measure_length(item.source) for item in query_items])
    by_group: dict[str, list[float]] = defaultdict(list)
    if gallery.modality == modality:
        for item in gallery.entries:
            by_group[item.group].append(_measure_length(item.source))
    return np.array([np.mean(by_group[item.group]) if item.group in by_group else np.nan for item in query_items])


@lru_cache(maxsize=1 << 16)  # cached, because several directions need the duration of the same file
def _measure_length(source: Source) -> float:
    """Return the number of words of a text, or the duration of audio in seconds."""
    if source.modality == "text":
        return float(len(str(source.content).split()))
    try:
        end = audio.read_duration(source.path) if source.end is None else source.end
    except MediaError:
        return np.nan
    return end - (source.start or 0.0)


def _flip_to_dict(flip: Flip) -> dict[str, Any]:
    return {"item": str(flip.item.source), "row": flip.item.row, "rank_a": flip.rank_a, "rank_b": flip.rank_b}


def _difference_to_dict(difference: Difference, metric: str) -> dict[str, Any]:
    return {
        "mean_a": difference.mean_a,
        "mean_b": difference.mean_b,
        "difference": difference.value,
        "interval": [difference.interval.low, difference.interval.high],
        "verdict": difference.verdict(higher_is_better=metric != MEAN_RANK),
    }
