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

from triptych.data.cache import to_float16
from triptych.data.loader import collate
from triptych.errors import CollectionError, InputError
from triptych.interfaces import MODALITIES, Features, Modality, Similarity, Source
from triptych.search.items import Item, merge_items
from triptych.space import features_without_parts


@dataclass(frozen=True)
class Provenance:
    """What one origin, a folder or a manifest, says of an item."""

    origin: str
    captions: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # name=value

    @staticmethod
    def from_item(item: Item, origin: str) -> Provenance:
        """What an item brings from where it was indexed."""
        return Provenance(origin, item.captions, tuple(_format_columns(item.columns)))


@dataclass(frozen=True)
class StoredItem:
    """An item as it is kept: its number, who claims it, a hash of its content, its file's date."""

    item: Item  # with the captions and columns of all claims
    provenance: tuple[Provenance, ...]
    content_hash: str
    modified_time: float | None = None  # of the file's last change, seconds since 1970
    row_id: int = -1
    excerpt: str | None = None  # the beginning of a text file, as it was when it was embedded

    @property
    def id(self) -> str:
        """The item's id."""
        return self.item.id

    @property
    def origins(self) -> list[str]:
        """Where it was indexed from."""
        return [claim.origin for claim in self.provenance]

    @property
    def metadata_hash(self) -> str:
        """A hash of everything that can change while the content stays."""
        metadata = [[astuple(claim) for claim in self.provenance], self.modified_time, self.item.duration]
        return hashlib.sha256(json.dumps(metadata).encode()).hexdigest()[:16]

    def with_provenance(self, provenance: Sequence[Provenance]) -> StoredItem:
        """The same with these claims alone, and what they say."""
        ordered = sorted(provenance, key=lambda claim: claim.origin)  # whichever was indexed last
        items = [
            replace(self.item, captions=claim.captions, columns=_parse_columns(claim.columns)) for claim in ordered
        ]
        return replace(self, item=merge_items(items)[0], provenance=tuple(ordered))


def make_metadata_columns(stored_items: Sequence[StoredItem]) -> dict[str, pa.Array]:
    """The columns of the store that say what items are."""
    sources = [entry.item.source for entry in stored_items]
    string_type, float_type = pa.string(), pa.float64()
    return {
        "row_id": pa.array([entry.row_id for entry in stored_items], pa.int64()),
        "id": pa.array([entry.id for entry in stored_items], string_type),
        "modality": pa.array([s.modality for s in sources], string_type),
        "file": pa.array([str(s.content) if isinstance(s.content, Path) else None for s in sources], string_type),
        "text": pa.array([_text_to_store(entry) for entry in stored_items], string_type),
        "start": pa.array([s.start for s in sources], float_type),
        "end": pa.array([s.end for s in sources], float_type),
        "captions": pa.array([list(e.item.captions) for e in stored_items], pa.list_(string_type)),
        "origins": pa.array([entry.origins for entry in stored_items], pa.list_(string_type)),
        "provenance": pa.array([_encode_provenance(entry.provenance) for entry in stored_items], string_type),
        "content_hash": pa.array([entry.content_hash for entry in stored_items], string_type),
        "modified_time": pa.array([entry.modified_time for entry in stored_items], float_type),
        "duration": pa.array([e.item.duration for e in stored_items], float_type),
        "columns": pa.array([_format_columns(e.item.columns) for e in stored_items], pa.list_(string_type)),
        "metadata_hash": pa.array([entry.metadata_hash for entry in stored_items], string_type),
    }


def to_arrow(stored_items: Sequence[StoredItem], features: Features, similarity: Similarity) -> pa.Table:
    """Entries with what is needed to score them, as rows of the store; row i of the features belongs to entry i."""
    keys = similarity.keys(features)
    vectors = keys.float().numpy()
    parts: list[bytes | None] = [None] * len(stored_items)
    if similarity.reads_parts:
        half_parts = to_float16(features.parts)
        parts = [half_parts[i][features.mask[i]].numpy().tobytes() for i in range(len(stored_items))]
    keys_suffice = can_query_with_keys(similarity, features.embedding.shape[1])
    embeddings = [None if keys_suffice else row.numpy().tobytes() for row in features.embedding.float()]
    vector_columns = {
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), vectors.shape[1]),
        "embedding": pa.array(embeddings, pa.binary()),
        "parts": pa.array(parts, pa.large_binary()),
    }
    return pa.table(make_metadata_columns(stored_items) | vector_columns)


def stored_item_from_row(row: Mapping[str, Any]) -> StoredItem:
    """A row of the store as an entry."""
    if row["modality"] not in MODALITIES:
        raise CollectionError(f"item {row['id']}: modality {row['modality']!r} is none; rebuild the collection")
    content = row["text"] if row["file"] is None else Path(row["file"])
    source = Source(row["modality"], content, row["start"], row["end"])
    captions, pairs = tuple(row["captions"] or ()), tuple(row["columns"] or ())
    metadata_by_origin = json.loads(row["provenance"]) if row["provenance"] else [(captions, pairs)]
    provenance = [
        Provenance(origin, *map(tuple, one)) for origin, one in zip(row["origins"], metadata_by_origin, strict=True)
    ]
    item = Item(source, captions, _parse_columns(pairs), row["duration"])
    excerpt = None if row["file"] is None else row["text"]
    return StoredItem(item, tuple(provenance), row["content_hash"], row["modified_time"], row["row_id"], excerpt)


def features_from_rows(rows: Sequence[Mapping[str, Any]], embed_dim: int, modality: Modality) -> Features:
    """The features of rows with vector, embedding and parts, for a space of a width."""
    embeddings = [
        np.asarray(row["vector"], np.float32) if row["embedding"] is None else np.frombuffer(row["embedding"], "<f4")
        for row in rows
    ]
    embedding = torch.from_numpy(np.array(embeddings).reshape(len(rows), -1))
    if any(row["parts"] is None for row in rows):
        return features_without_parts(embedding, modality)
    parts = [
        torch.from_numpy(np.frombuffer(row["parts"], "<f2").reshape(-1, embed_dim).astype(np.float32)) for row in rows
    ]
    return Features(embedding, *collate(parts), modality)


def can_query_with_keys(similarity: Similarity, embed_dim: int) -> bool:
    """Whether an item's key is enough to ask with it: true of angles and products, not of learned metrics."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        probe = features_without_parts(torch.randn(2, embed_dim))
        try:
            from_keys = similarity.query(features_without_parts(similarity.keys(probe).float()))
        except InputError:  # the key is wider than an embedding
            return False
        expected = similarity.query(probe)
        return from_keys.shape == expected.shape and torch.allclose(from_keys, expected, atol=1e-5)


def _text_to_store(stored_item: StoredItem) -> str | None:
    """What the store keeps to be shown of a text: all of it, or the beginning of a file."""
    content = stored_item.item.source.content
    return content if isinstance(content, str) else stored_item.excerpt


def _encode_provenance(provenance: Sequence[Provenance]) -> str | None:
    """What each origin says; of a single one the row itself tells it."""
    return json.dumps([[claim.captions, claim.columns] for claim in provenance]) if len(provenance) > 1 else None


def _parse_columns(pairs: Sequence[str]) -> dict[str, tuple[str, ...]]:
    columns: dict[str, tuple[str, ...]] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        columns[name] = (*columns.get(name, ()), value)
    return columns


def _format_columns(columns: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [f"{name}={value}" for name, values in columns.items() for value in values]
