"""Every direction of every pair of modalities, measured on the rows of a manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations

from torch import Tensor

from triptych.contracts import Modality, Source
from triptych.data.cache import Cache, cache_of
from triptych.data.manifest import Row
from triptych.errors import ManifestError
from triptych.evaluation.items import Items, embed_items
from triptych.evaluation.retrieval import Retrieval, measure, places
from triptych.evaluation.significance import DRAWS
from triptych.evaluation.transduction import transduce
from triptych.space import Space


@dataclass(frozen=True)
class Evaluation:
    """The directions that could be measured, what was measured, and the files that could not be read."""

    directions: list[Retrieval]
    failures: dict[Source, str]
    items: dict[Modality, Items]
    transductive: list[Retrieval] = field(default_factory=list)  # beside directions, where it was asked for


def evaluate(
    space: Space,
    rows: Sequence[Row],
    show: bool = True,
    cache: Cache | str = "",
    draws: int = DRAWS,
    transductive: bool = False,
    epsilon: float | None = None,
) -> Evaluation:
    """Recalls, ranks, mAP and nDCG in every direction, with 95% intervals (draws = 0: without).

    Every caption is a query of its own; any right answer among the first k is a hit; ties count against us. With
    transductive, all queries are ranked together by a transport plan, too; see `transduce` for epsilon.

    Features of frozen encoders are read from the user's own cache and added to it; `cache` names another folder, or
    "off" for none.
    """
    items, failures = embed_items(space, rows, show, cache_of(cache))
    directions = retrieve(space, items, draws)
    if not directions:
        raise ManifestError(
            f"nothing to measure: no two of {', '.join(space.modalities)} occur together in these {len(rows)} rows"
            + (f", and {len(failures)} files could not be read" if failures else "")
        )
    together = transduce(space, items, epsilon, draws, show) if transductive else []
    return Evaluation(directions, failures, items, together)


def retrieve(space: Space, items: Mapping[Modality, Items], draws: int = DRAWS) -> list[Retrieval]:
    """Every direction in which at least one query has an answer."""
    directions = []
    for a, b in permutations(items.values(), 2):
        found = places(partial(_score, space, a, b), a.group, b.group)
        if (found.right > 0).any():
            directions.append(measure(a.modality, b.modality, found, a.group, len(b), draws))
    return directions


def _score(space: Space, a: Items, b: Items, rows: Tensor, columns: Tensor) -> Tensor:
    return space.scores(a.take(rows), a.modality, b.take(columns), b.modality)
