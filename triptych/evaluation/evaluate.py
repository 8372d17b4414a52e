"""Measure retrieval in every direction between the modalities of a manifest or of Python data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych import checkpoint
from triptych.data.cache import Cache, resolve_cache
from triptych.data.manifest import Row
from triptych.data.select_rows import select_rows
from triptych.data.tables_in_memory import DataLike
from triptych.errors import ManifestError
from triptych.evaluation.items import EvalItems, embed_items
from triptych.evaluation.retrieval import RECALL_KS, RetrievalResult, compute_retrieval_metrics, rank_positives
from triptych.evaluation.significance import NUM_RESAMPLES
from triptych.evaluation.transduction import measure_transductive
from triptych.interfaces import Modality, Source
from triptych.result_tables import format_table, rows_to_arrow, rows_to_pandas
from triptych.space import Space

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The results of all retrieval directions, the evaluated items, and the files that could not be read."""

    directions: list[RetrievalResult]
    failures: dict[Source, str]
    items: dict[Modality, EvalItems]
    transductive: list[RetrievalResult] = field(default_factory=list)  # empty unless requested with `transductive=True`

    def to_dict(self) -> dict[str, Any]:
        """Return the results of all directions, and the unreadable files with reasons, as JSON-compatible data."""
        return {
            "directions": [direction.to_dict() for direction in (*self.directions, *self.transductive)],
            "failures": {str(source): reason for source, reason in self.failures.items()},
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row per direction, with the value, the interval and the chance level of every metric."""
        return [direction.to_row() for direction in (*self.directions, *self.transductive)]

    @property
    def columns(self) -> list[str]:
        """The columns of the table."""
        return list(dict.fromkeys(name for row in self.to_rows() for name in row))

    def to_arrow(self) -> pyarrow.Table:
        """Return a pyarrow.Table with one row per direction; metrics are fractions from 0 to 1."""
        return rows_to_arrow(self.to_rows(), self.columns)

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with one row per direction; metrics are fractions from 0 to 1."""
        return rows_to_pandas(self.to_rows(), self.columns)

    def __repr__(self) -> str:
        """Return a table of recall in %, with half of the width of the 95% intervals."""
        rows = [
            [f"{d.query} → {d.gallery}{' (transductive)' if d.mode == 'transductive' else ''}"]
            + [_format_recall(d, k) for k in RECALL_KS]
            + [
                f"{100 * d.chance_recall[RECALL_KS[-1]]:.1f}",
                f"{d.median_rank:g}",
                f"{d.num_queries}",
                f"{d.num_items}",
            ]
            for d in (*self.directions, *self.transductive)
        ]
        header = ["recall in %", *(f"R@{k}" for k in RECALL_KS), "chance", "median rank", "queries", "items"]
        table = format_table(header, rows)
        return f"{table}\n{len(self.failures)} files could not be read" if self.failures else table


def _format_recall(direction: RetrievalResult, k: int) -> str:
    interval = direction.intervals.get(f"R@{k}")
    return f"{100 * direction.recall[k]:.1f}" + (f" ±{100 * interval.half_width:.1f}" if interval else "")


def evaluate(
    space: Space | str | Path,
    data: DataLike,
    show_progress: bool = True,
    cache: Cache | str = "",
    num_resamples: int = NUM_RESAMPLES,
    transductive: bool = False,
    epsilon: float | None = None,
    split: str | None = None,
    allow_outside: bool = False,
) -> Evaluation:
    """Measure recall, ranks, mAP and nDCG in every retrieval direction, with 95% intervals.

    Each caption is a separate query. At cutoff k, a query is a hit if any of its positives is among the first k items.
    Ties count against the query: a negative with the same score as a positive ranks above the positive.

    Args:
        space: The space, as `triptych.load` returns it, or anything that `triptych.load` accepts.
        data: The path of a manifest; a table of pandas, polars or Arrow; a Hugging Face dataset; an iterable of
            dictionaries with the columns of a manifest; a dictionary of splits; or rows of a manifest.
        show_progress: Whether to show progress.
        cache: The folder of cached features of frozen encoders, to which new features are added. By default, the
            user's cache. With "off", no features are cached.
        num_resamples: The number of bootstrap resamples of the intervals; 0 computes no intervals.
        transductive: Whether to rank all queries also jointly, by a transport plan.
        epsilon: The regularisation of the transport plan; see `measure_transductive`.
        split: The split to evaluate; "all" for every row. Default: the recipe's test split. If the data has no splits,
            every row; but if the data is the table on which the space was trained, the rows that training held out.
        allow_outside: Whether a manifest may list files outside its folder.

    Returns:
        The results of all directions. `repr` returns a table; `to_pandas`, `to_arrow` and `to_dict` convert them.

    Raises:
        ManifestError: The data is invalid, has no such split, or has no pair of modalities.
        UsageError: The data has an unsupported type.

    Example:
        >>> import triptych
        >>> space = triptych.train("trimodal", data="pairs.csv", epochs=1)
        >>> triptych.evaluate(space, "pairs.csv").to_pandas()["query"].tolist()
        ['image', 'image', 'audio', 'audio', 'text', 'text']
    """
    space = space if isinstance(space, Space) else checkpoint.load(space)
    rows = select_evaluation_rows(space, data, split, allow_outside, cache, show_progress)
    items, failures = embed_items(space, rows, show_progress, resolve_cache(cache))
    directions = measure_directions(space, items, num_resamples)
    if not directions:
        raise ManifestError(
            f"nothing to measure: no two of {', '.join(space.modalities)} occur together in any of the {len(rows)} rows"
            + (f", and {len(failures)} files could not be read" if failures else "")
        )
    joint = measure_transductive(space, items, epsilon, num_resamples, show_progress) if transductive else []
    return Evaluation(directions, failures, items, joint)


def select_evaluation_rows(
    space: Space, data: DataLike, split: str | None, allow_outside: bool, cache: Cache | str, show_progress: bool
) -> Sequence[Row]:
    """Return the rows on which a space is evaluated; `evaluate` explains the arguments."""
    return select_rows(
        data,
        split,
        space.recipe.data.test_split,
        training_hashes=space.history.get("data", {}).values(),
        allow_outside=allow_outside,
        cache=resolve_cache(cache),
        show_progress=show_progress,
    )


def measure_directions(
    space: Space, items: Mapping[Modality, EvalItems], num_resamples: int = NUM_RESAMPLES
) -> list[RetrievalResult]:
    """Measure every direction in which at least one query has a positive."""
    directions = []
    for a, b in permutations(items.values(), 2):
        ranks = rank_positives(a.make_score_function(space, b), a.group_ids, b.group_ids)
        if (ranks.num_positives > 0).any():
            result = compute_retrieval_metrics(a.modality, b.modality, ranks, a.group_ids, len(b), num_resamples)
            directions.append(result)
    return directions
