"""From items to the store: only what is new or changed is embedded, in whole steps, so that a kill costs seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from triptych.contracts import Features, Modality, Source
from triptych.data.cache import Cache, Shelf
from triptych.errors import MediaError
from triptych.media import text
from triptych.progress import Bar, progress
from triptych.search.entry import Claim, Entry, described, entry_of, packed
from triptych.search.items import Item
from triptych.search.store import FACTS, MANY, SCORING
from triptych.search.writer import Writer
from triptych.space import Space, alone, joined

CHUNK = 256  # items that go through an encoder together
SAVE_SECONDS = 2.0  # how much work a kill can cost, beside the chunk in hand
UNREADABLE = "unreadable"
EXCERPT = 2000  # characters of a text file that are kept to be shown
CARRIED = (*SCORING, "text")  # of an item whose content has stayed


@dataclass(frozen=True)
class Indexed:
    """What indexing did: new, unchanged and gone items, the files that could not be read, and where the time went."""

    added: int
    kept: int
    dropped: int
    failures: dict[Source, str]
    seconds: dict[str, float] = field(default_factory=dict)  # looking, embedding, storing


class Ingest:
    """One run of indexing into a store."""

    def __init__(self, writer: Writer, space: Space, cache: Cache) -> None:
        store = writer.store
        # Parts are not kept a second time: those of frozen encoders are in the cache already.
        name, width = f"space-{store.note.fingerprint}", space.recipe.space.width
        about = f"embeddings of the space {store.note.fingerprint}"
        self._shelf = None if space.similarity.reads_parts else Shelf(cache.folder / name, width, about)
        self.writer, self.store, self.space, self.cache = writer, store, space, cache
        self.failures: dict[Source, str] = {}
        self.seconds: dict[str, float] = {"looking": 0.0, "embedding": 0.0, "storing": 0.0}
        self._waiting: list[pa.Table] = []
        self._saved = time.monotonic()
        self._number = 0
        self._known: dict[str, dict[str, Any]] = {}

    def run(self, items: Sequence[Item], origin: str, show: bool) -> Indexed:
        """Make the store hold exactly these items of an origin, beside those of others.

        An item that several origins have is kept as long as one of them has it, with what all of them say.
        """
        with self._clock("looking"):
            rows = self.store.rows(["id", "number", "origins", "content", "facts"]).to_pylist()
            self._known = {row["id"]: row for row in rows}
            self._number = self.store.next_number()
            wanted = {item.id for item in items}
            others = self._others([row for row in rows if origin in row["origins"] or row["id"] in wanted], origin)
            left = [row["id"] for row in rows if origin in row["origins"] and row["id"] not in wanted]
            gone = [name for name in left if name not in others]
            entries = self._entries(items, origin, others)
        fresh = [entry for entry in entries if not self._is_known(entry)]
        kept = [entry for entry in entries if self._is_known(entry)]
        self._drop(gone)
        self._describe([others[name] for name in left if name in others])
        self._describe([entry for entry in kept if self._known[entry.id]["facts"] != entry.facts])
        added = self._add(fresh, show)
        # What was here and can no longer be read has a vector of a content that is gone.
        self._drop([e.id for e in fresh if e.item.source in self.failures and e.id in self._known])
        return Indexed(added, len(kept), len(gone), self.failures, self.seconds)

    def _others(self, rows: Sequence[dict[str, Any]], origin: str) -> dict[str, Entry]:
        """What other origins have of these rows, by id, with what they alone say."""
        numbers = [row["number"] for row in rows if set(row["origins"]) - {origin}]
        found = [entry_of(row) for row in self.store.numbered(FACTS, numbers).values()]
        return {entry.id: entry.claimed([c for c in entry.claims if c.origin != origin]) for entry in found}

    def _entries(self, items: Sequence[Item], origin: str, others: dict[str, Entry]) -> list[Entry]:
        """Every item with the hash of its content, which decides whether it is known, and its file's date."""
        keys = self.cache.keys([item.source for item in items])
        found = []
        for item, key in zip(items, keys, strict=True):
            content = UNREADABLE if isinstance(key, MediaError) else key.hex()
            entry = Entry(item, (Claim.of(item, origin),), content, _date(item.source.content))
            other = others.get(entry.id)
            found.append(entry.claimed([*other.claims, *entry.claims]) if other else entry)
        return found

    def _is_known(self, entry: Entry) -> bool:
        known = self._known.get(entry.id)
        return known is not None and known["content"] == entry.content != UNREADABLE

    def _add(self, entries: Sequence[Entry], show: bool) -> int:
        """Embed what is new or changed, and store it as it comes."""
        kinds: dict[Modality, list[Entry]] = {}
        for entry in entries:
            kinds.setdefault(entry.item.source.modality, []).append(entry)
        added = 0
        try:
            with progress("indexing", len(entries), show) as bar:
                for modality, some in kinds.items():
                    for first in range(0, len(some), CHUNK):
                        added += self._embed(modality, some[first : first + CHUNK], bar)
                        if time.monotonic() - self._saved > SAVE_SECONDS:
                            self._save()
        finally:
            self._save()
        return added

    @torch.inference_mode()
    def _embed(self, modality: Modality, entries: Sequence[Entry], bar: Bar) -> int:
        with self._clock("embedding"):
            known = self._remembered(entries)
            before = [entry for entry in entries if entry.content in known]
            rest = [entry for entry in entries if entry.content not in known]
            bar.advance(len(before))
            found = [alone(torch.stack([known[entry.content] for entry in before]))] if before else []
            after: list[Entry] = []
            similarity, sources = self.space.similarity, [entry.item.source for entry in rest]
            if sources:
                embedded = self.space.embed(sources, modality, bar=bar, parts=similarity.reads_parts, cache=self.cache)
                self.failures |= embedded.failures
                after = [rest[i] for i in embedded.read]
                self._remember(after, embedded.features)
                found.append(embedded.features)
            read = [
                replace(entry, number=self._number + i, excerpt=_excerpt(entry.item.source))
                for i, entry in enumerate([*before, *after])
            ]
            self._number += len(read)
            if read:
                self._waiting.append(packed(read, joined(found, self.space.recipe.space.width), similarity))
        return len(read)

    def _remembered(self, entries: Sequence[Entry]) -> dict[str, Tensor]:
        """Embeddings that this space has made of these contents before, whatever became of the collection."""
        if self._shelf is None:
            return {}
        found = self._shelf.find(bytes.fromhex(entry.content) for entry in entries if entry.content != UNREADABLE)
        pooled = {key.hex(): self._shelf.pooled(record) for key, record in found.items()}
        return {content: torch.from_numpy(rows[0].copy()) for content, rows in pooled.items() if rows is not None}

    def _remember(self, entries: Sequence[Entry], features: Features) -> None:
        if self._shelf is not None and entries:
            rows = zip(entries, features.embedding.float(), strict=True)
            self._shelf.add([(bytes.fromhex(entry.content), row.unsqueeze(0)) for entry, row in rows])

    def _save(self) -> None:
        with self._clock("storing"):
            if self._waiting:
                self.writer.add(pa.concat_tables(self._waiting))
                self._waiting.clear()
        self._saved = time.monotonic()

    def _describe(self, entries: Sequence[Entry]) -> None:
        """New captions, columns, dates or origin for items whose content has stayed."""
        with self._clock("storing"):
            for first in range(0, len(entries), MANY):
                some = entries[first : first + MANY]
                numbers = [self._known[entry.id]["number"] for entry in some]
                kept = self.store.numbered(CARRIED, numbers)
                rows = [replace(entry, number=number) for entry, number in zip(some, numbers, strict=True)]
                whole = {name: [kept[number][name] for number in numbers] for name in CARRIED}
                kinds = {name: self.store.schema.field(name).type for name in CARRIED}
                scoring = {name: pa.array(values, kinds[name]) for name, values in whole.items()}
                self.writer.add(pa.table(described(rows) | scoring))

    def _drop(self, ids: Sequence[str]) -> None:
        with self._clock("storing"):
            self.writer.drop(ids)

    @contextmanager
    def _clock(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - started


def _excerpt(source: Source) -> str | None:
    """How a text file begins; None of anything else, or where it cannot be read any more."""
    if source.modality != "text" or isinstance(source.content, str):
        return None
    try:
        return text.read(source.content)[:EXCERPT]
    except MediaError:
        return None


def _date(content: str | Path) -> float | None:
    try:
        return None if isinstance(content, str) else content.stat().st_mtime
    except OSError:
        return None
