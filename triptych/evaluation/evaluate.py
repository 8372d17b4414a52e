"""Measure retrieval in every direction between the modalities of a manifest's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations

from torch import Tensor

from triptych.data.cache import Cache, resolve_cache
from triptych.data.manifest import Row
from triptych.errors import ManifestError
from triptych.evaluation.items import EvalItems, embed_items
from triptych.evaluation.retrieval import RetrievalResult, compute_retrieval_metrics, rank_positives
from triptych.evaluation.significance import NUM_RESAMPLES
from triptych.evaluation.transduction import measure_transductive
from triptych.interfaces import Modality, Source
from triptych.space import Space


@dataclass(frozen=True)
class Evaluation:
    """The results of all directions, the items they were measured on, and the files that could not be read."""

    directions: list[RetrievalResult]
    failures: dict[Source, str]
    items: dict[Modality, EvalItems]
    transductive: list[RetrievalResult] = field(default_factory=list)  # empty unless requested


def evaluate(
    space: Space,
    rows: Sequence[Row],
    show_progress: bool = True,
    cache: Cache | str = "",
    num_resamples: int = NUM_RESAMPLES,
    transductive: bool = False,
    epsilon: float | None = None,
) -> Evaluation:
    """Measure recall, ranks, mAP and nDCG in every direction, with 95% intervals (num_resamples = 0: none).

    Each caption is a separate query. A query is a hit at k if any positive is among the first k items. Ties count
    against the query.
    If `transductive`, all queries are also ranked jointly by a transport plan; for epsilon see `measure_transductive`.

    Features of frozen encoders are read from and added to the folder `cache` (default: the user's cache; "off": none).
    """
    items, failures = embed_items(space, rows, show_progress, resolve_cache(cache))
    directions = measure_directions(space, items, num_resamples)
    if not directions:
        raise ManifestError(
            f"nothing to measure: no two of {', '.join(space.modalities)} occur together in these {len(rows)} rows"
            + (f", and {len(failures)} files could not be read" if failures else "")
        )
    transductive_results = (
        measure_transductive(space, items, epsilon, num_resamples, show_progress) if transductive else []
    )
    return Evaluation(directions, failures, items, transductive_results)


def measure_directions(
    space: Space, items: Mapping[Modality, EvalItems], num_resamples: int = NUM_RESAMPLES
) -> list[RetrievalResult]:
    """Measure every direction in which at least one query has a positive."""
    directions = []
    for a, b in permutations(items.values(), 2):
        ranks = rank_positives(partial(_score_items, space, a, b), a.group_ids, b.group_ids)
        if (ranks.num_positives > 0).any():
            directions.append(
                compute_retrieval_metrics(a.modality, b.modality, ranks, a.group_ids, len(b), num_resamples)
            )
    return directions


def _score_items(space: Space, a: EvalItems, b: EvalItems, rows: Tensor, columns: Tensor) -> Tensor:
    return space.scores(a.take(rows), b.take(columns))
