"""The pairs of a manifest, as they are judged: which row's sound or picture stands beside which words or sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from triptych.data.cache import Cache
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.errors import ManifestError, MediaError
from triptych.interfaces import MODALITIES, Modality, Source

MIN_ROWS = 12  # rows with a kind of pair, below which nothing can be learned from it
ModalityPair = tuple[Modality, Modality]
MODALITY_PAIRS: dict[str, ModalityPair] = {
    f"{a}-{b}": (a, b) for i, a in enumerate(MODALITIES) for b in MODALITIES[i + 1 :]
}


@dataclass(frozen=True)
class ModalityContents:
    """What the rows hold of one modality: distinct contents, and which of them each row has, in its own order."""

    sources: list[Source]  # one for each content
    by_row: list[list[int]]  # empty where a row has none, or none that can be read
    video_rows: frozenset[int] = frozenset()  # the rows that have it from a film

    def distinct_sets(self, rows: Sequence[int]) -> tuple[list[tuple[int, ...]], np.ndarray]:
        """The distinct sets of contents that rows have, and which of them each row has."""
        index_of_set: dict[tuple[int, ...], int] = {}
        set_of_row = [index_of_set.setdefault(tuple(self.by_row[row]), len(index_of_set)) for row in rows]
        return list(index_of_set), np.array(set_of_row, int)


def collect_contents(rows: Sequence[Row], modality: Modality, cache: Cache) -> ModalityContents:
    """What the rows hold of a modality, files with the same bytes as one; what cannot be read is left out."""
    row_sources = [sources_of(row, modality) if modality in row.modalities else [] for row in rows]
    unique_sources = list(dict.fromkeys(source for some in row_sources for source in some))
    video_rows = frozenset(i for i, row in enumerate(rows) if row.video and modality != "text")
    index_of_key: dict[bytes, int] = {}
    index_of_source: dict[Source, int] = {}
    sources: list[Source] = []
    for source, key in zip(unique_sources, cache.content_keys(unique_sources), strict=True):
        if isinstance(key, MediaError):
            continue  # the space that reads it will say what is wrong
        if key not in index_of_key:
            index_of_key[key] = len(sources)
            sources.append(source)
        index_of_source[source] = index_of_key[key]
    return ModalityContents(
        sources, [[index_of_source[s] for s in some if s in index_of_source] for some in row_sources], video_rows
    )


def find_modality_pairs(contents: Mapping[Modality, ModalityContents], rows: Sequence[int]) -> list[ModalityPair]:
    """The pairs of modalities that enough rows have to be judged."""
    candidates = [kind for kind in MODALITY_PAIRS.values() if kind[0] in contents and kind[1] in contents]
    modality_pairs = [
        kind
        for kind in candidates
        if len(select_rows_with_pair(contents, kind, rows)) >= MIN_ROWS and _has_alternatives(contents, kind, rows)
    ]
    if not modality_pairs:
        raise ManifestError(
            f"of {len(rows)} rows fewer than {MIN_ROWS} have the same two modalities, or one is the same in all; "
            "an audit learns what belongs together from the rows themselves, so it needs more of them"
        )
    return modality_pairs


def select_rows_with_pair(
    contents: Mapping[Modality, ModalityContents], modality_pair: ModalityPair, rows: Sequence[int]
) -> list[int]:
    """Of some rows, those that have both sides of a kind of pair; what a film shows and sounds like is no question."""
    a, b = (contents[m] for m in modality_pair)
    return [row for row in rows if a.by_row[row] and b.by_row[row] and row not in a.video_rows & b.video_rows]


def _has_alternatives(
    contents: Mapping[Modality, ModalityContents], modality_pair: ModalityPair, rows: Sequence[int]
) -> bool:
    """Whether there is more than one thing to choose from on either side."""
    pair_rows = select_rows_with_pair(contents, modality_pair, rows)
    return all(len({tuple(contents[m].by_row[row]) for row in pair_rows}) > 1 for m in modality_pair)


def collect_pairs(
    contents: Mapping[Modality, ModalityContents], modality_pairs: Sequence[ModalityPair], rows: Sequence[Row]
) -> dict[str, list[object]]:
    """Of each row, by its id, the pairs of contents it holds."""
    pairs_by_row: dict[str, list[object]] = {row.id: [] for row in rows}
    for a, b in modality_pairs:
        for i in select_rows_with_pair(contents, (a, b), range(len(rows))):
            pairs_by_row[rows[i].id] += [(a, x, b, y) for x, y in product(contents[a].by_row[i], contents[b].by_row[i])]
    return pairs_by_row
