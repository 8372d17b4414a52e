"""Measure retrieval in every direction between the modalities of the rows of a manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

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
    """The results of all retrieval directions, the evaluated items, and the files that could not be read."""

    directions: list[RetrievalResult]
    failures: dict[Source, str]
    items: dict[Modality, EvalItems]
    transductive: list[RetrievalResult] = field(default_factory=list)  # empty unless requested with `transductive=True`


def evaluate(
    space: Space,
    rows: Sequence[Row],
    show_progress: bool = True,
    cache: Cache | str = "",
    num_resamples: int = NUM_RESAMPLES,
    transductive: bool = False,
    epsilon: float | None = None,
) -> Evaluation:
    """Measure recall, ranks, mAP and nDCG in every retrieval direction, with 95% intervals.

    Each caption is a separate query. At cutoff k, a query is a hit if any of its positives is among the first k items.
    Ties count against the query: a negative with the same score as a positive ranks above the positive. If
    num_resamples is 0, no intervals are computed.

    If `transductive` is True, all queries are also ranked jointly by a transport plan. `measure_transductive` explains
    epsilon.

    Features of frozen encoders are read from the folder `cache`, and new features are added to the folder. By default,
    the folder is the user's cache. With "off", no features are cached.
    """
    items, failures = embed_items(space, rows, show_progress, resolve_cache(cache))
    directions = measure_directions(space, items, num_resamples)
    if not directions:
        raise ManifestError(
            f"nothing to measure: no two of {', '.join(space.modalities)} occur together in any of the {len(rows)} rows"
            + (f", and {len(failures)} files could not be read" if failures else "")
        )
    joint = measure_transductive(space, items, epsilon, num_resamples, show_progress) if transductive else []
    return Evaluation(directions, failures, items, joint)


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
