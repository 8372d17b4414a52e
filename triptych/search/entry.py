"""An item as it is kept, and how items and their features become rows of the store and come back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from triptych.contracts import MODALITIES, Features, Similarity, Source
from triptych.data.cache import halved
from triptych.data.loader import collate
from triptych.errors import CollectionError, InputError
from triptych.search.items import Item, merged
from triptych.space import alone


@dataclass(frozen=True)
class Claim:
    """What one origin, a folder or a manifest, says of an item."""

    origin: str
    captions: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # name=value

    @staticmethod
    def of(item: Item, origin: str) -> Claim:
        """What an item brings from where it was indexed."""
        return Claim(origin, item.captions, tuple(_pairs(item.columns)))


@dataclass(frozen=True)
class Entry:
    """An item as it is kept: its number, who claims it, a hash of its content, its file's date."""

    item: Item  # with the captions and columns of all claims
    claims: tuple[Claim, ...]
    content: str
    date: float | None = None  # of the file's last change, seconds since 1970
    number: int = -1
    excerpt: str | None = None  # the beginning of a text file, as it was when it was embedded

    @property
    def id(self) -> str:
        """The item's id."""
        return self.item.id

    @property
    def origins(self) -> list[str]:
        """Where it was indexed from."""
        return [claim.origin for claim in self.claims]

    @property
    def facts(self) -> str:
        """A hash of everything that can change while the content stays."""
        known = [[astuple(claim) for claim in self.claims], self.date, self.item.duration]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]

    def claimed(self, claims: Sequence[Claim]) -> Entry:
        """The same with these claims alone, and what they say."""
        order = sorted(claims, key=lambda claim: claim.origin)  # whichever was indexed last
        says = [replace(self.item, captions=claim.captions, columns=_columns(claim.columns)) for claim in order]
        return replace(self, item=merged(says)[0], claims=tuple(order))


def described(entries: Sequence[Entry]) -> dict[str, pa.Array]:
    """The columns of the store that say what items are."""
    sources = [entry.item.source for entry in entries]
    words, number = pa.string(), pa.float64()
    return {
        "number": pa.array([entry.number for entry in entries], pa.int64()),
        "id": pa.array([entry.id for entry in entries], words),
        "modality": pa.array([s.modality for s in sources], words),
        "file": pa.array([str(s.content) if isinstance(s.content, Path) else None for s in sources], words),
        "text": pa.array([_text(entry) for entry in entries], words),
        "start": pa.array([s.start for s in sources], number),
        "end": pa.array([s.end for s in sources], number),
        "captions": pa.array([list(e.item.captions) for e in entries], pa.list_(words)),
        "origins": pa.array([entry.origins for entry in entries], pa.list_(words)),
        "claims": pa.array([_written(entry.claims) for entry in entries], words),
        "content": pa.array([entry.content for entry in entries], words),
        "date": pa.array([entry.date for entry in entries], number),
        "duration": pa.array([e.item.duration for e in entries], number),
        "columns": pa.array([_pairs(e.item.columns) for e in entries], pa.list_(words)),
        "facts": pa.array([entry.facts for entry in entries], words),
    }


def packed(entries: Sequence[Entry], features: Features, similarity: Similarity) -> pa.Table:
    """Entries with what is needed to score them, as rows of the store; row i of the features belongs to entry i."""
    keys = similarity.keys(features)
    vectors = keys.float().numpy()
    parts: list[bytes | None] = [None] * len(entries)
    if similarity.reads_parts:
        halves = halved(features.parts)
        parts = [halves[i][features.mask[i]].numpy().tobytes() for i in range(len(entries))]
    told = tells_embedding(similarity, features.embedding.shape[1])
    whole = [None if told else row.numpy().tobytes() for row in features.embedding.float()]
    scoring = {
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), vectors.shape[1]),
        "embedding": pa.array(whole, pa.binary()),
        "parts": pa.array(parts, pa.large_binary()),
    }
    return pa.table(described(entries) | scoring)


def entry_of(row: Mapping[str, Any]) -> Entry:
    """A row of the store as an entry."""
    if row["modality"] not in MODALITIES:
        raise CollectionError(f"item {row['id']}: modality {row['modality']!r} is none; rebuild the collection")
    content = row["text"] if row["file"] is None else Path(row["file"])
    source = Source(row["modality"], content, row["start"], row["end"])
    captions, pairs = tuple(row["captions"] or ()), tuple(row["columns"] or ())
    said = json.loads(row["claims"]) if row["claims"] else [(captions, pairs)]
    claims = [Claim(origin, *map(tuple, one)) for origin, one in zip(row["origins"], said, strict=True)]
    item = Item(source, captions, _columns(pairs), row["duration"])
    excerpt = None if row["file"] is None else row["text"]
    return Entry(item, tuple(claims), row["content"], row["date"], row["number"], excerpt)


def unpacked(rows: Sequence[Mapping[str, Any]], width: int) -> Features:
    """The features of rows with vector, embedding and parts, for a space of a width."""
    vectors = [
        np.asarray(row["vector"], np.float32) if row["embedding"] is None else np.frombuffer(row["embedding"], "<f4")
        for row in rows
    ]
    embedding = torch.from_numpy(np.array(vectors).reshape(len(rows), -1))
    if any(row["parts"] is None for row in rows):
        return alone(embedding)
    parts = [torch.from_numpy(np.frombuffer(row["parts"], "<f2").reshape(-1, width).astype(np.float32)) for row in rows]
    return Features(embedding, *collate(parts))


def tells_embedding(similarity: Similarity, width: int) -> bool:
    """Whether an item's key is enough to ask with it: true of angles and products, not of learned metrics."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        some = alone(torch.randn(2, width))
        try:
            again = similarity.query(alone(similarity.keys(some).float()))
        except InputError:  # the key is wider than an embedding
            return False
        first = similarity.query(some)
        return again.shape == first.shape and torch.allclose(again, first, atol=1e-5)


def _text(entry: Entry) -> str | None:
    """What the store keeps to be shown of a text: all of it, or the beginning of a file."""
    content = entry.item.source.content
    return content if isinstance(content, str) else entry.excerpt


def _written(claims: Sequence[Claim]) -> str | None:
    """What each origin says; of a single one the row itself tells it."""
    return json.dumps([[claim.captions, claim.columns] for claim in claims]) if len(claims) > 1 else None


def _columns(pairs: Sequence[str]) -> dict[str, tuple[str, ...]]:
    columns: dict[str, tuple[str, ...]] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        columns[name] = (*columns.get(name, ()), value)
    return columns


def _pairs(columns: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [f"{name}={value}" for name, values in columns.items() for value in values]
