"""A collection: a user's files, embedded once with one space, and the search over them."""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych import checkpoint
from triptych.contracts import Features, Hit, Modality, Source
from triptych.data.cache import Cache
from triptych.errors import CollectionError, UsageError
from triptych.files import lock_names, remains
from triptych.search.chance import Chance
from triptych.search.entry import Entry, entry_of, unpacked
from triptych.search.gallery import FILTERS, Gallery, make_lists
from triptych.search.index import TRIED
from triptych.search.ingest import Indexed, Ingest
from triptych.search.items import Item, contents_of_query, merged
from triptych.search.lease import LOCK, WriteAccess, write_access
from triptych.search.query import Part, Query, Ready, Where, quoted
from triptych.search.ranking import Allowed, Asked, Ranked, Ranking
from triptych.search.relevance import Kind
from triptych.search.store import FACTS, SCORING, TABLE, Note, Store, Version
from triptych.search.writer import Writer
from triptych.space import Space, alone

OLD = "items.parquet"
LISTS = "lists"
NOT_INDEXED = "not-indexed.tsv"
OWN = {f"{TABLE}.lance", *lock_names(LOCK), LISTS, NOT_INDEXED}
SPARE = 3  # times as many as are wanted are fetched, so that folded copies leave enough
LOOK_SECONDS = 0.5  # between looks for a newer version of the store
KEPT = 20_000  # items whose facts are kept in memory once they were shown
SHOWN = 40  # characters of a text in a note
NAMED = 3  # items that were asked with are named in a note
COPY = 1e-3  # two items count as copies of each other when they lie this much nearer than two items do on average


class Collection:
    """Items embedded with one space, searchable by anything the space can embed."""

    def __init__(self, place: str, space_path: Path, store: Store | None) -> None:
        self.place, self.space_path, self.store = place, space_path, store
        self.space: Space = checkpoint.load(space_path)
        self.fingerprint = checkpoint.fingerprint(space_path)
        self.cache = Cache.default()
        self.chance = Chance(self.space)
        self._galleries: dict[Modality, tuple[Version, Gallery]] = {}
        self._allowed: dict[tuple[Version, str], Allowed] = {}
        self._entries: tuple[Version | None, dict[int, Entry]] = None, {}
        self._looked = -math.inf
        self._rebuild = False

    def __len__(self) -> int:
        return self.store.count() if self.store else 0

    @property
    def folder(self) -> Path:
        """Where it is, where that is a folder."""
        return Path(self.place)

    @property
    def not_indexed(self) -> Path:
        """The list of files that the last run of `triptych index` left out; absent where it left out none."""
        return (self._lists if "://" in self.place else self.folder) / NOT_INDEXED

    @staticmethod
    def create(folder: str | Path, space: str | Path, rebuild: bool = False) -> Collection:
        """The collection in a folder (or at s3://…), new or as it is; another space than its own is refused.

        With rebuild the first index() removes what it holds, readable or not, and begins anew; what was embedded before
        comes back from the cache.
        """
        place, space_path = str(folder), checkpoint.find(space).resolve()
        store = None if rebuild else Store.open(place)
        if store is None and "://" not in place:
            _refuse_other_things(Path(place))
        collection = Collection(place, space_path, store)
        collection._rebuild = rebuild
        if store is not None:
            collection._refuse_another_space(store.note)
        return collection

    @staticmethod
    def open(folder: str | Path) -> Collection:
        """A collection that was made before."""
        place = str(folder)
        store = Store.open(place)
        if store is None and "://" not in place and (Path(place) / OLD).exists():
            raise CollectionError(f"{place}: made by an earlier version of triptych; delete the folder and index again")
        if store is None:
            raise CollectionError(f"{place}: no collection here; make one with `triptych index FOLDER --space RUN`")
        if not Path(store.note.space).exists():
            raise CollectionError(f"{place}: its space {store.note.space} is gone; index again with --space RUN")
        collection = Collection(place, Path(store.note.space), store)
        collection._refuse_another_space(store.note)
        return collection

    def index(self, items: Iterable[Item], origin: str | Path, show: bool = True) -> Indexed:
        """Make the collection hold exactly these items of an origin (a folder, a manifest), beside those of others.

        Only what is new or changed is embedded. Killed at any moment, the next call goes on from what was stored.
        """
        wanted = merged(items)
        with write_access(self.place) as access:
            writer = self._writer(access)
            done = Ingest(writer, self.space, self.cache).run(wanted, str(Path(origin).resolve()), show)
            writer.tidy()
            self._sort_into_lists()
        return done

    @torch.inference_mode()
    def search(
        self,
        query: Source | Query,
        want: Sequence[Modality] = (),
        k: int = 10,
        where: Where | None = None,
        fold: bool = True,
        include_query: bool = False,
    ) -> list[Hit]:
        """The k most relevant items of the wanted modalities (all of them, unless told), most relevant first.

        Of items that are nearly the same only the first is listed, with the ids of its copies, unless fold is off.
        Items that the query asks with are left out, unless include_query is on: those it names by id, those with the
        same content, and a file of the collection that it gives.
        """
        if self.store is None:
            return []
        version = self._version()
        parts = Query.of(query).parts
        asked = [self._asked(part) for part in parts]
        own = set[int]() if include_query else self._own(version, parts)
        allowed = self._matching(version, where.sql) if where and where.sql else Allowed()
        found: list[Ranked] = []
        for modality in want or self.space.modalities:
            gallery = self._gallery(version, modality)
            if len(gallery):
                ranking = Ranking(
                    self.space, self.store, gallery, modality, asked, self._kinds(version, modality, asked)
                )
                found.append(ranking.best(SPARE * k + len(own), allowed))
        return self._hits(version, found, own, fold, k)

    def similar(self, name: str, want: Sequence[Modality] = (), k: int = 10, where: Where | None = None) -> list[Hit]:
        """The items most like one of the collection."""
        return self.search(Query((Part(name),)), want, k, where)

    def note_on_own_items(self, query: Source | Query) -> str | None:
        """A sentence on the items that a search leaves out because the query asks with them, beside those it names."""
        if self.store is None:
            return None
        version, parts = self._version(), Query.of(query).parts
        numbers = sorted(self._own(version, parts))
        entries = self._looked_up(version, numbers)
        asked = {part.what for part in parts if isinstance(part.what, str)}
        own = [entries[number] for number in numbers if number in entries and entries[number].id not in asked]
        names = list(dict.fromkeys(_name(entry) for entry in own))
        if not names:
            return None
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"what was asked with is in the collection itself ({', '.join(names[:NAMED])}{more}) and is not shown"

    def item(self, name: str) -> Entry:
        """An item of the collection by its id."""
        return entry_of(self._row(name, FACTS))

    def features(self, name: str) -> Features:
        """What the collection has kept of an item for scoring."""
        return unpacked([self._row(name, SCORING)], self.space.recipe.space.width)

    def entries(self, where: Where | None = None, limit: int | None = None, skip: int = 0) -> list[Entry]:
        """The items, or some of them, as they are kept."""
        if self.store is None:
            return []
        self.store.refresh()
        rows = self.store.rows(FACTS, where.sql if where else "", limit, skip).to_pylist()
        return sorted(map(entry_of, rows), key=lambda entry: entry.item.key)

    def sample(self, modality: Modality, count: int) -> tuple[list[Entry], np.ndarray]:
        """At most so many items of a modality, always the same ones, with their keys (C, S): for maps."""
        if self.store is None:
            return [], np.empty((0, 1), np.float32)
        numbers, keys = self._gallery(self._version(), modality).sample(count)
        rows = self.store.numbered(FACTS, numbers)
        return [entry_of(rows[int(number)]) for number in numbers], keys

    def _asked(self, part: Part) -> Asked:
        if isinstance(part.what, Ready):
            return Asked(part.what.features, part.what.modality, part.weight)
        if isinstance(part.what, Source):
            return Asked(self.space.embed_one(part.what), part.what.modality, part.weight)
        row = self._row(part.what, ("modality", *SCORING))
        return Asked(unpacked([row], self.space.recipe.space.width), row["modality"], part.weight)

    def _own(self, version: Version, parts: Sequence[Part]) -> set[int]:
        """The numbers of the items that a query asks with: by their content; of a longer file, all of its moments."""
        items, files = set[str](), set[str]()  # contents
        for what in (part.what for part in parts):
            if isinstance(what, str):
                items.add(self._row(what, ["content"])["content"])
            elif isinstance(what, Ready):
                files |= what.contents
            else:
                is_whole = what.start is None and what.end is None
                (files if is_whole else items).update(contents_of_query(what, self.space))
        if not items | files:
            return set()
        numbers = self._numbers(version, f"content IN ({', '.join(map(quoted, sorted(items | files)))})")
        entries = self._looked_up(version, numbers)
        for source in {entries[n].item.source for n in numbers if n in entries and entries[n].content in files}:
            if source.start is not None:
                file = f"modality = {quoted(source.modality)} AND file = {quoted(str(source.content))}"
                numbers += self._numbers(version, file)
        return set(numbers)

    def _numbers(self, version: Version, sql: str) -> list[int]:
        numbers = self._matching(version, sql).numbers
        return [] if numbers is None else numbers.tolist()

    def _hits(self, version: Version, found: Sequence[Ranked], own: set[int], fold: bool, k: int) -> list[Hit]:
        """Everything found, rarest score first, without what was asked with; copies are folded into the first."""
        entries = self._looked_up(version, [int(number) for ranked in found for number in ranked.numbers])
        order = sorted(
            ((ranked, i) for ranked in found for i in range(len(ranked.numbers))), key=lambda p: -p[0].rarity[p[1]]
        )
        kept: list[tuple[Entry, np.ndarray, Hit, list[str]]] = []
        for ranked, i in order:
            entry, key = entries.get(int(ranked.numbers[i])), ranked.keys[i]
            if entry is None or entry.number in own:
                continue
            near = COPY * ranked.gallery.apart
            same = next((copies for e, other, _, copies in kept if _is_copy(entry, key, e, other, near)), None)
            if fold and same is not None:
                same.append(entry.id)
            elif len(kept) < k:
                kept.append((entry, key, _hit(entry, ranked, i), []))
        return [replace(hit, copies=tuple(copies)) for _, _, hit, copies in kept]

    def _looked_up(self, version: Version, numbers: Sequence[int]) -> dict[int, Entry]:
        """Items by their numbers. A look into the table costs more than all the rest of a search: each is read once."""
        known = self._entries[1] if self._entries[0] == version else {}
        missing = [number for number in numbers if number not in known]
        if missing:
            if len(known) + len(missing) > KEPT:
                known, missing = {}, numbers
            known |= {n: entry_of(row) for n, row in self._store().numbered(FACTS, missing).items()}
            self._entries = version, known
        return known

    def _row(self, name: str, columns: Sequence[str]) -> dict[str, Any]:
        rows = self._store().rows(columns, f"id = {quoted(name)}").to_pylist() if self.store else []
        if not rows:
            raise UsageError(f"{self.place}: no item {name!r} in this collection; a search shows the ids (--json)")
        return rows[0]

    def _store(self) -> Store:
        if self.store is None:
            raise CollectionError(f"{self.place}: the collection is empty; index a folder first")
        if self.store.note.fingerprint != self.fingerprint:
            raise CollectionError(
                f"{self.place}: was made anew with another space ({self.store.note.space}) since it was opened; open "
                "it again (a server: start it again)"
            )
        return self.store

    def _gallery(self, version: Version, modality: Modality) -> Gallery:
        known, before = self._galleries.get(modality, (("", 0), None))
        if before is None or known != version:
            is_same_table = known[0] == version[0]  # of another table the same numbers are other items
            before = Gallery.read(self._store(), modality, self._lists, before if is_same_table else None)
            self._galleries[modality] = version, before
        return before

    def _kinds(self, version: Version, modality: Modality, asked: Sequence[Asked]) -> list[Kind]:
        items = modality, self._gallery(version, modality)
        found = []
        for part in asked:
            question = part.modality, self._gallery(version, part.modality)
            found.append(self.chance.kind(self._store(), version, question, items, part.features))
        return found

    def _version(self) -> Version:
        """The newest version of the store, looked for now and then: another process may be indexing."""
        if self.store is not None and time.monotonic() - self._looked > LOOK_SECONDS:
            self.store.refresh()
            self._looked = time.monotonic()
        return self._store().version

    @property
    def _lists(self) -> Path:
        """Where lists of keys lie: beside the items; for a collection elsewhere, in this machine's cache."""
        if "://" not in self.place:
            return self.folder / LISTS
        return self.cache.folder / LISTS / hashlib.sha256(self.place.encode()).hexdigest()[:16]

    def _sort_into_lists(self) -> None:
        version = self._store().refresh()
        galleries: dict[Modality, Gallery] = {m: self._gallery(version, m) for m in self.space.modalities}
        asked = np.concatenate([gallery.sample(TRIED)[1] for gallery in galleries.values()])
        queries = np.random.default_rng(0).permutation(asked)
        for modality, gallery in galleries.items():
            if gallery.is_stale():
                make_lists(self._store(), modality, self._lists, queries)
                self._galleries.clear()

    def _matching(self, version: Version, sql: str) -> Allowed:
        """The items that fulfil a condition."""
        if (version, sql) not in self._allowed:
            if len(self._allowed) >= FILTERS:
                self._allowed.clear()
            self._allowed[version, sql] = Allowed(
                sql, np.sort(self._store().rows(["number"], sql)["number"].to_numpy())
            )
        return self._allowed[version, sql]

    def _refuse_another_space(self, note: Note) -> None:
        if self.fingerprint != note.fingerprint:
            raise CollectionError(
                f"{self.place}: was made with another space than {self.space_path} is now; index into another folder "
                "(--into), or make it anew with --rebuild"
            )

    def _writer(self, access: WriteAccess) -> Writer:
        """What changes the store: as it is now, or new, or made anew."""
        if self._rebuild:
            Writer.remove(self.place, access)
            shutil.rmtree(self._lists, ignore_errors=True)
            self._rebuild = False
        elif self.store is None:
            self.store = Store.open(self.place)  # another process may have made it meanwhile
        if self.store is not None:
            writer = Writer(self.store, access)
            self._refuse_another_space(self.store.note)
            return writer
        note = Note(str(self.space_path), self.fingerprint)
        keys = self.space.similarity.keys(alone(torch.randn(1, self.space.recipe.space.width)))
        writer = Writer.create(self.place, note, keys.shape[1], access)
        self.store = writer.store
        return writer


def _refuse_other_things(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise CollectionError(f"{folder}: is a file; give a folder for the collection")
    if folder.exists() and {path.name for path in folder.iterdir()} - OWN - remains(folder, [NOT_INDEXED]):
        raise CollectionError(f"{folder}: holds other things; give an empty or new folder for the collection")


def _name(entry: Entry) -> str:
    content = entry.item.source.content
    return content.name if isinstance(content, Path) else repr(content[:SHOWN])


def _hit(entry: Entry, ranked: Ranked, i: int) -> Hit:
    source, item = entry.item.source, entry.item
    return Hit(
        item=str(source.content),
        modality=source.modality,
        score=float(ranked.score[i]),
        captions=item.captions,
        start=source.start,
        end=source.end,
        id=entry.id,
        relevance=float(ranked.relevance[i]),
        parts=tuple(map(float, ranked.parts[i])),
        columns=item.columns,
        duration=item.duration,
        excerpt=entry.excerpt,
    )


def _is_copy(entry: Entry, key: np.ndarray, other: Entry, other_key: np.ndarray, near: float) -> bool:
    if entry.item.source.modality != other.item.source.modality:
        return False
    return entry.content == other.content or float(((key - other_key) ** 2).sum()) < near
