"""The pairs of a manifest, as they are judged: which row's sound or picture stands beside which words or sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from triptych.contracts import MODALITIES, Modality, Source
from triptych.data.cache import Cache
from triptych.data.loader import sources_of
from triptych.data.manifest import Row
from triptych.errors import ManifestError, MediaError

FEWEST = 12  # rows with a kind of pair, below which nothing can be learned from it
Kind = tuple[Modality, Modality]
KINDS: dict[str, Kind] = {f"{a}-{b}": (a, b) for i, a in enumerate(MODALITIES) for b in MODALITIES[i + 1 :]}


@dataclass(frozen=True)
class Content:
    """What the rows hold of one modality: distinct contents, and which of them each row has, in its own order."""

    sources: list[Source]  # one for each content
    of_row: list[list[int]]  # empty where a row has none, or none that can be read
    films: frozenset[int] = frozenset()  # the rows that have it from a film

    def sets(self, rows: Sequence[int]) -> tuple[list[tuple[int, ...]], np.ndarray]:
        """The distinct sets of contents that rows have, and which of them each row has."""
        known: dict[tuple[int, ...], int] = {}
        place = [known.setdefault(tuple(self.of_row[row]), len(known)) for row in rows]
        return list(known), np.array(place, int)


def contents(rows: Sequence[Row], modality: Modality, cache: Cache) -> Content:
    """What the rows hold of a modality, files with the same bytes as one; what cannot be read is left out."""
    held = [sources_of(row, modality) if modality in row.modalities else [] for row in rows]
    flat = list(dict.fromkeys(source for some in held for source in some))
    films = frozenset(i for i, row in enumerate(rows) if row.video and modality != "text")
    known: dict[bytes, int] = {}
    place: dict[Source, int] = {}
    sources: list[Source] = []
    for source, key in zip(flat, cache.keys(flat), strict=True):
        if isinstance(key, MediaError):
            continue  # the space that reads it will say what is wrong
        if key not in known:
            known[key] = len(sources)
            sources.append(source)
        place[source] = known[key]
    return Content(sources, [[place[s] for s in some if s in place] for some in held], films)


def kinds(held: Mapping[Modality, Content], rows: Sequence[int]) -> list[Kind]:
    """The pairs of modalities that enough rows have to be judged."""
    every = [kind for kind in KINDS.values() if kind[0] in held and kind[1] in held]
    found = [kind for kind in every if len(of_kind(held, kind, rows)) >= FEWEST and _differ(held, kind, rows)]
    if not found:
        raise ManifestError(
            f"of {len(rows)} rows fewer than {FEWEST} have the same two modalities, or one is the same in all; "
            "an audit learns what belongs together from the rows themselves, so it needs more of them"
        )
    return found


def of_kind(held: Mapping[Modality, Content], kind: Kind, rows: Sequence[int]) -> list[int]:
    """Of some rows, those that have both sides of a kind of pair; what a film shows and sounds like is no question."""
    a, b = (held[m] for m in kind)
    return [row for row in rows if a.of_row[row] and b.of_row[row] and row not in a.films & b.films]


def _differ(held: Mapping[Modality, Content], kind: Kind, rows: Sequence[int]) -> bool:
    """Whether there is more than one thing to choose from on either side."""
    chosen = of_kind(held, kind, rows)
    return all(len({tuple(held[m].of_row[row]) for row in chosen}) > 1 for m in kind)


def pairs_of(held: Mapping[Modality, Content], kinds: Sequence[Kind], rows: Sequence[Row]) -> dict[str, list[object]]:
    """Of each row, by its id, the pairs of contents it holds."""
    found: dict[str, list[object]] = {row.id: [] for row in rows}
    for a, b in kinds:
        for i in of_kind(held, (a, b), range(len(rows))):
            found[rows[i].id] += [(a, x, b, y) for x, y in product(held[a].of_row[i], held[b].of_row[i])]
    return found
