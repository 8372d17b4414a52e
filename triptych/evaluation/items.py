"""What is measured: every file and caption of some rows once, embedded, with who belongs with whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.contracts import Features, Modality, Source
from triptych.data.cache import Cache
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.progress import progress
from triptych.space import Space


@dataclass(frozen=True)
class Item:
    """One thing to find or to ask with."""

    source: Source
    group: str  # items of one group are right answers to each other
    row: str  # id of the first row it stands in
    label: str | None


@dataclass(frozen=True)
class Items:
    """The items of one modality that could be read, and what the space makes of them."""

    modality: Modality
    each: list[Item]
    features: Features  # N rows
    group: Tensor  # (N,) int: the same number for the same group in every modality

    def __len__(self) -> int:
        return len(self.each)

    def take(self, rows: Tensor) -> Features:
        """The features of some of them, by number."""
        of = self.features
        return Features(of.embedding[rows], of.parts[rows], of.mask[rows])


def embed_items(
    space: Space, rows: Sequence[Row], show: bool = True, cache: Cache | None = None
) -> tuple[dict[Modality, Items], dict[Source, str]]:
    """The items of every modality that has any, and the files that could not be read, with the reason."""
    known: dict[str, int] = {}
    found: dict[Modality, Items] = {}
    failures: dict[Source, str] = {}
    for modality in space.modalities:
        # A file or caption that several rows of one group share is one item, not several.
        items: dict[tuple[Source, str], Item] = {}
        for row in rows:
            for source in sources_of(row, modality) if modality in row.modalities else ():
                items.setdefault((source, row.group), Item(source, row.group, row.id, row.label))
        each = list(items.values())
        with progress(f"embedding {modality}", len(each), show and bool(each)) as bar:
            embedded = space.embed(
                [item.source for item in each], modality, bar=bar, parts=space.similarity.reads_parts, cache=cache
            )
        failures |= embedded.failures
        if embedded.read:
            read = [each[i] for i in embedded.read]
            group = torch.tensor([known.setdefault(item.group, len(known)) for item in read])
            found[modality] = Items(modality, read, embedded.features, group)
    return found, failures
