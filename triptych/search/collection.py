"""A collection: what was embedded, with which space, and the search over it. One Parquet file in one folder."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from triptych import checkpoint
from triptych.contracts import MODALITIES, Hit, Modality, Source
from triptych.data.cache import Cache
from triptych.data.loader import source_of
from triptych.data.manifest import Row
from triptych.errors import CollectionError, MediaError
from triptych.files import remains, replacing, sweep
from triptych.media import audio, modalities_of, video
from triptych.progress import Bar, progress, tell
from triptych.search.index import nearest
from triptych.space import Space

ITEMS_FILE = "items.parquet"
SAVE_SECONDS = 60.0  # how much work a kill can cost at most
CHUNK = 256
MOMENT = 10.0  # seconds of a film that become one item, where no sound encoder says otherwise


@dataclass(frozen=True)
class Item:
    """Something to be found: a file, a moment of one, or a text; with the captions known for it."""

    source: Source
    captions: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What makes it this item: where its content is, and which moment."""
        return f"{self.source.modality}:{self.source.content}:{self.source.start}:{self.source.end}"


@dataclass(frozen=True)
class Entry:
    """An item as it is kept: where it was indexed from, a hash of its content, and its vector."""

    item: Item
    origin: str
    content: str
    vector: np.ndarray  # (S,)


@dataclass(frozen=True)
class Indexed:
    """What indexing did: new, unchanged and gone items, and the files that could not be read."""

    added: int
    kept: int
    dropped: int
    failures: dict[Source, str]


class Collection:
    """Items embedded with one space, searchable by anything the space can embed."""

    def __init__(self, folder: Path, space_path: Path, entries: Sequence[Entry] = ()) -> None:
        self.folder, self.space_path, self.entries = folder, space_path, list(entries)
        self._ready: dict[Modality, tuple[list[Entry], np.ndarray]] = {}
        self.space: Space = checkpoint.load(space_path)
        self.fingerprint = checkpoint.fingerprint(space_path)
        self.cache = Cache.default()
        if not self.space.similarity.exact:
            name = self.space.recipe.space.similarity.name
            raise CollectionError(f"a space whose similarity is {name!r} cannot be searched yet; use cosine")

    def __len__(self) -> int:
        return len(self.entries)

    @staticmethod
    def create(folder: str | Path, space: str | Path) -> Collection:
        """The collection in a folder, new or as it is, for a space; another space than its own is refused."""
        folder, space_path = Path(folder), checkpoint.find(space).resolve()
        if not (folder / ITEMS_FILE).exists():
            if folder.exists() and not folder.is_dir():
                raise CollectionError(f"{folder}: is a file; give a folder for the collection")
            if folder.exists() and {p.name for p in folder.iterdir()} - remains(folder, [ITEMS_FILE]):
                raise CollectionError(f"{folder}: holds other things; give an empty or new folder for the collection")
            return Collection(folder, space_path)
        table = _read(folder / ITEMS_FILE)
        return _opened(folder, table, space_path)

    @staticmethod
    def open(folder: str | Path) -> Collection:
        """A collection that was made before."""
        folder = Path(folder)
        if not (folder / ITEMS_FILE).exists():
            raise CollectionError(f"{folder}: no collection here; make one with `triptych index FOLDER --space RUN`")
        table = _read(folder / ITEMS_FILE)
        return _opened(folder, table, Path(_note(table, folder, "space")))

    def index(self, items: Iterable[Item], origin: str | Path, show: bool = True) -> Indexed:
        """Make the collection hold exactly these items of an origin (a folder, a manifest), beside those of others.

        Only what is new or changed is embedded. Work done is saved now and then, and when interrupted: the next call
        goes on from there.
        """
        origin, wanted = str(Path(origin).resolve()), _merged(items)
        known = {(entry.item.key, entry.content): entry for entry in self.entries}
        keys = {item.key for item in wanted}
        kept = [entry for entry in self.entries if entry.origin != origin and entry.item.key not in keys]
        dropped = sum(entry.origin == origin and entry.item.key not in keys for entry in self.entries)
        others, new, failures = len(kept), list[Entry](), dict[Source, str]()
        fresh: dict[Modality, list[tuple[Item, str]]] = {}
        hashes: dict[str | Path, str] = {}  # a long file has many moments, and is hashed once
        for item in wanted:
            place = item.source.content
            content = hashes.get(place) or _content_hash(place)
            hashes[place] = content
            entry = known.get((item.key, content))
            if entry:
                kept.append(Entry(item, origin, content, entry.vector))
            else:
                fresh.setdefault(item.source.modality, []).append((item, content))
        try:
            with progress("indexing", sum(map(len, fresh.values())), show) as bar:
                saved = time.monotonic()
                for modality, some in fresh.items():
                    for first in range(0, len(some), CHUNK):
                        new += self._embed(modality, some[first : first + CHUNK], origin, failures, bar)
                        if time.monotonic() - saved > SAVE_SECONDS:
                            self._save([*kept, *new])
                            saved = time.monotonic()
        finally:
            self._save([*kept, *new])
        return Indexed(len(new), len(kept) - others, dropped, failures)

    @torch.inference_mode()
    def search(self, query: Source, want: Sequence[Modality] = (), k: int = 10) -> list[Hit]:
        """The k best items of each wanted modality (all of them, unless told), best first within each."""
        vector = self.space.similarity.query(self.space.embed_one(query))[0].numpy()
        hits: list[Hit] = []
        for modality in want or self.space.modalities:
            entries, keys = self._keys(modality)
            if not entries:
                continue
            if keys.shape[1] != len(vector):
                raise CollectionError(
                    f"{self.folder}: holds vectors {keys.shape[1]} wide, not {len(vector)}; index again"
                )
            order, scores = nearest(vector, keys, k)
            for position, score in zip(order, scores, strict=True):
                item = entries[position].item
                moment = (item.source.start, item.source.end)
                hits.append(Hit(str(item.source.content), modality, float(score), item.captions, *moment))
        return hits

    def _keys(self, modality: Modality) -> tuple[list[Entry], np.ndarray]:
        """The entries of a modality and their vectors as one matrix, made at the first search."""
        if modality not in self._ready:
            entries = [entry for entry in self.entries if entry.item.source.modality == modality]
            self._ready[modality] = entries, np.array([entry.vector for entry in entries], np.float32)
        return self._ready[modality]

    @torch.inference_mode()
    def _embed(
        self, modality: Modality, wanted: Sequence[tuple[Item, str]], origin: str, failures: dict[Source, str], bar: Bar
    ) -> list[Entry]:
        embedded = self.space.embed(
            [item.source for item, _ in wanted],
            modality,
            bar=bar,
            parts=self.space.similarity.reads_parts,
            cache=self.cache,
        )
        failures |= embedded.failures
        vectors = self.space.similarity.keys(embedded.features).numpy()
        found = [(*wanted[i], vectors[row]) for row, i in enumerate(embedded.read)]
        return [Entry(item, origin, content, vector) for item, content, vector in found]

    def _save(self, entries: list[Entry]) -> None:
        """Write everything to one file that takes the old one's place whole."""
        self.entries = sorted(entries, key=lambda entry: entry.item.key)
        self._ready.clear()
        sources = [entry.item.source for entry in self.entries]
        width = len(self.entries[0].vector) if self.entries else 1
        flat = np.concatenate([e.vector for e in self.entries]) if self.entries else np.empty(0, np.float32)
        table = pa.table(
            {
                "modality": pa.array([s.modality for s in sources], pa.string()),
                "file": pa.array(
                    [str(s.content) if isinstance(s.content, Path) else None for s in sources], pa.string()
                ),
                "text": pa.array([s.content if isinstance(s.content, str) else None for s in sources], pa.string()),
                "start": pa.array([s.start for s in sources], pa.float64()),
                "end": pa.array([s.end for s in sources], pa.float64()),
                "captions": pa.array([list(e.item.captions) for e in self.entries], pa.list_(pa.string())),
                "origin": pa.array([e.origin for e in self.entries], pa.string()),
                "content": pa.array([e.content for e in self.entries], pa.string()),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float32()), width),
            }
        ).replace_schema_metadata({"space": str(self.space_path), "fingerprint": self.fingerprint})
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.folder, [ITEMS_FILE])
        with replacing(self.folder / ITEMS_FILE) as temporary:
            pq.write_table(table, temporary)


def items_in(folder: Path, space: Space) -> Iterator[Item]:
    """Every file below a folder that the space can embed, in order of path; hidden ones are passed over."""
    if not folder.is_dir():
        raise CollectionError(f"{folder}: no such folder")
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(place) / name
            known: list[Modality] = [m for m in modalities_of(path) if m in space.modalities]
            if known and not name.startswith(".") and path.is_file():
                if not _is_utf8(name):
                    tell(f"{path!r}: the file's name is not UTF-8; rename it")
                    continue
                for modality in known if len(known) == 1 else _shown(path, known):
                    yield from moments(Item(Source(modality, path.resolve())), space)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def items_of(rows: Sequence[Row], space: Space) -> Iterator[Item]:
    """Every file of a manifest's rows with its captions, and every caption as a text."""
    for row in rows:
        for modality in row.modalities:
            if modality == "text" and "text" in space.modalities:
                yield from (Item(Source("text", caption)) for caption in row.texts)
            elif modality in space.modalities:
                yield from moments(Item(source_of(row, modality), row.texts), space)


def moments(item: Item, space: Space) -> Iterator[Item]:
    """What lasts longer than its encoder takes at once as several moments; anything else as it is."""
    source = item.source
    longest = space.encoder(source.modality).seconds if source.modality == "audio" else _moment(space)
    path = Path(source.content)
    is_film = len(modalities_of(path)) > 1
    if source.modality == "text" or (source.modality == "image" and not is_film):
        yield item
        return
    try:
        length = video.info(path).duration if is_film else audio.duration(path)
    except MediaError:
        yield item  # embedding it will say what is wrong, once
        return
    start, end = source.start or 0.0, min(source.end or length, length)
    if end - start <= longest:
        yield item
        return
    for first, last in audio.windows(end - start, longest, space.recipe.data.hop or longest):
        yield Item(Source(source.modality, path, start + first, start + last), item.captions)


def _moment(space: Space) -> float:
    """How long a moment of a film is: what the sound encoder hears at once, so that both sides have the same."""
    heard = space.encoder("audio").seconds if "audio" in space.modalities else math.inf
    return heard if math.isfinite(heard) else MOMENT


def _shown(path: Path, known: list[Modality]) -> list[Modality]:
    """What a film has of what the space knows: some are silent, some are sound alone."""
    try:
        found = video.info(path)
    except MediaError:
        return known[:1]  # embedding it will say what is wrong, once
    return [m for m in known if (found.has_pictures if m == "image" else found.has_sound)]


def _merged(items: Iterable[Item]) -> list[Item]:
    """Each source once, with the captions of all its rows."""
    captions: dict[Source, dict[str, None]] = {}
    for item in items:
        captions.setdefault(item.source, {}).update(dict.fromkeys(item.captions))
    return [Item(source, tuple(known)) for source, known in captions.items()]


def _content_hash(content: str | Path) -> str:
    if isinstance(content, str):
        return hashlib.sha256(content.encode()).hexdigest()
    try:
        with content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "unreadable"  # embedding it will say what is wrong


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise CollectionError(f"{path}: cannot be read ({error}); delete the file and index again") from error


def _note(table: pa.Table, folder: Path, name: str) -> str:
    value = (table.schema.metadata or {}).get(name.encode())
    if value is None:
        raise CollectionError(f"{folder}: {ITEMS_FILE} was not written by triptych; give another folder")
    return value.decode(errors="replace")


def _opened(folder: Path, table: pa.Table, space_path: Path) -> Collection:
    if not space_path.exists():
        raise CollectionError(f"{folder}: its space {space_path} is gone; index again with --space RUN")
    if checkpoint.fingerprint(space_path) != _note(table, folder, "fingerprint"):
        raise CollectionError(
            f"{folder}: was made with another space than {space_path} is now; delete the folder and index again, "
            "or index into another"
        )
    try:
        entries = [_entry(row) for row in table.to_pylist()]
    except (KeyError, TypeError, ValueError) as error:
        raise CollectionError(
            f"{folder}: {ITEMS_FILE} has been changed ({error}); delete it and index again"
        ) from error
    collection = Collection(folder, space_path, entries)
    if any(entry.vector.ndim != 1 or not np.isfinite(entry.vector).all() for entry in entries):
        raise CollectionError(f"{folder}: {ITEMS_FILE} holds vectors that are none; delete it and index again")
    if len({len(entry.vector) for entry in entries}) > 1:
        raise CollectionError(f"{folder}: {ITEMS_FILE} holds vectors of several widths; index again")
    return collection


def _entry(row: dict[str, Any]) -> Entry:
    if row["modality"] not in MODALITIES:
        raise ValueError(f"modality {row['modality']!r}")
    content = row["text"] if row["file"] is None else Path(row["file"])
    start, end = (None if row[key] is None else float(row[key]) for key in ("start", "end"))
    source = Source(row["modality"], content, start, end)
    vector = np.asarray(row["vector"], np.float32)
    return Entry(Item(source, tuple(map(str, row["captions"]))), str(row["origin"]), str(row["content"]), vector)
