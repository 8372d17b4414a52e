"""Collect the items of an evaluation, and embed each file and each caption of the rows once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.data.cache import Cache
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.embedding import EmbedResult
from triptych.interfaces import Features, Modality, Source
from triptych.progress import track_progress
from triptych.space import Space


@dataclass(frozen=True)
class EvalItem:
    """One query or gallery item."""

    source: Source
    group: str  # items of one group are positives of each other
    row: str  # id of the first row that contains the item
    label: str | None


@dataclass(frozen=True)
class EvalItems:
    """The readable items of one modality with their features."""

    modality: Modality
    entries: list[EvalItem]
    features: Features  # features of the N items
    group_ids: Tensor  # (N,) int: group of each item; a group has the same number in all modalities

    def __len__(self) -> int:
        return len(self.entries)

    def take(self, rows: Tensor) -> Features:
        """Return the features of the items with the indices `rows`."""
        return self.features.take(rows)

    def make_score_function(self, space: Space, gallery: EvalItems) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a function that maps indices of queries (q,) and of gallery items (m,) to scores (q, m)."""
        return lambda rows, columns: space.scores(self.take(rows), gallery.take(columns))


def embed_sources(
    space: Space,
    sources: Sequence[Source],
    modality: Modality,
    show_progress: bool,
    cache: Cache | None = None,
    with_parts: bool | None = None,
) -> EmbedResult:
    """Embed sources with a progress bar. By default, parts are computed only if the similarity reads parts."""
    with track_progress(f"embedding {modality}", len(sources), show_progress and bool(sources)) as progress:
        with_parts = space.similarity.reads_parts if with_parts is None else with_parts
        return space.embed(sources, modality, progress=progress, with_parts=with_parts, cache=cache)


def embed_items(
    space: Space, rows: Sequence[Row], show_progress: bool = True, cache: Cache | None = None
) -> tuple[dict[Modality, EvalItems], dict[Source, str]]:
    """Embed the items of every modality. Return the embedded items and the error messages of unreadable files."""
    id_of_group: dict[str, int] = {}
    by_modality, failures = dict[Modality, EvalItems](), dict[Source, str]()
    for modality in space.modalities:
        # A file or caption that several rows of one group share is one item.
        items: dict[tuple[Source, str], EvalItem] = {}
        for row in rows:
            for source in sources_of(row, modality) if modality in row.modalities else ():
                items.setdefault((source, row.group), EvalItem(source, row.group, row.id, row.label))
        unique_items = list(items.values())
        embedded = embed_sources(space, [item.source for item in unique_items], modality, show_progress, cache)
        failures |= embedded.failures
        if embedded.indices:
            read = [unique_items[i] for i in embedded.indices]
            group_ids = torch.tensor([id_of_group.setdefault(item.group, len(id_of_group)) for item in read])
            by_modality[modality] = EvalItems(modality, read, embedded.features, group_ids)
    return by_modality, failures
