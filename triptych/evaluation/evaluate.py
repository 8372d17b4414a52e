"""Every direction of every pair of modalities, measured on the rows of a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations

from torch import Tensor

from triptych.contracts import Features, Modality, Source
from triptych.data.cache import Cache
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.errors import ManifestError
from triptych.evaluation.retrieval import Retrieval, groups, measure, ranks
from triptych.progress import progress
from triptych.space import Space


@dataclass(frozen=True)
class Evaluation:
    """The directions that could be measured, and the files that could not be read."""

    directions: list[Retrieval]
    failures: dict[Source, str]


def evaluate(space: Space, rows: Sequence[Row], show: bool = True, cache: Cache | None = None) -> Evaluation:
    """Recall in every direction. Every caption is a query of its own; any right answer among the first k is a hit."""
    known: dict[str, int] = {}
    features: dict[Modality, Features] = {}
    group: dict[Modality, Tensor] = {}
    failures: dict[Source, str] = {}
    for modality in space.modalities:
        # A file or caption that several rows of one group share is one item, not several.
        found = [(s, row.group) for row in rows if modality in row.modalities for s in sources_of(row, modality)]
        items = list(dict.fromkeys(found))
        with progress(f"embedding {modality}", len(items), show and bool(items)) as bar:
            embedded = space.embed(
                [source for source, _ in items], modality, bar=bar, parts=space.similarity.reads_parts, cache=cache
            )
        failures |= embedded.failures
        if not embedded.read:
            continue
        features[modality] = embedded.features
        group[modality] = groups([items[i][1] for i in embedded.read], known)
    directions = []
    for a, b in permutations(features, 2):
        score = partial(_score, space, a, b)
        rank, right = ranks(score, features[a], features[b], group[a], group[b])
        answered = right > 0  # a query without any right answer in the gallery says nothing
        if answered.any():
            directions.append(measure(a, b, rank[answered], right[answered], len(features[b].embedding)))
    if not directions:
        raise ManifestError(
            f"nothing to measure: no two of {', '.join(space.modalities)} occur together in these {len(rows)} rows"
            + (f", and {len(failures)} files could not be read" if failures else "")
        )
    return Evaluation(directions, failures)


def _score(space: Space, a: Modality, b: Modality, query: Features, gallery: Features) -> Tensor:
    return space.scores(query, a, gallery, b)
