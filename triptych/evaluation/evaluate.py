"""Every direction of every pair of modalities, measured on the rows of a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from torch import Tensor

from triptych.contracts import Features, Modality, Source
from triptych.data.loader import source_of
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


def evaluate(space: Space, rows: Sequence[Row], show: bool = True) -> Evaluation:
    """Recall in every direction. Every caption is a query of its own; any right answer among the first k is a hit."""
    known: dict[str, int] = {}
    features: dict[Modality, Features] = {}
    group: dict[Modality, Tensor] = {}
    failures: dict[Source, str] = {}
    for modality in space.modalities:
        items = [(s, row.group) for row in rows if modality in row.modalities for s in sources_of(row, modality)]
        if not items:
            continue
        with progress(f"embedding {modality}", len(items), show) as bar:
            embedded = space.embed((source for source, _ in items), modality, bar=bar)
        failures |= embedded.failures
        features[modality] = embedded.features
        group[modality] = groups([items[i][1] for i in embedded.read], known)
    directions = []
    for a, b in permutations(features, 2):
        rank, right = ranks(space.similarity, features[a], features[b], group[a], group[b])
        answered = right > 0  # a query without any right answer in the gallery says nothing
        if answered.any():
            directions.append(measure(a, b, rank[answered], right[answered], len(features[b].embedding)))
    if not directions:
        raise ManifestError(
            f"nothing to measure: no two of {', '.join(space.modalities)} occur together in these {len(rows)} rows"
        )
    return Evaluation(directions, failures)


def sources_of(row: Row, modality: Modality) -> list[Source]:
    """Everything a row has of a modality: one file, or all its captions."""
    if modality == "text":
        return [source_of(row, "text", i) for i in range(len(row.texts))]
    return [source_of(row, modality)]
