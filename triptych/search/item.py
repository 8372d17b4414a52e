"""The items of a collection. The table schema, `Hit`, `--json` and the HTTP responses derive from the fields of `Item`.

To add a column to the table, add a field to `Item` with `column_field`. docs/architecture.md shows an example.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from triptych.data.cache import to_float16
from triptych.data.loader import collate
from triptych.errors import CollectionError, InputError
from triptych.interfaces import MODALITIES, Features, Modality, Similarity, Source, features_from_embeddings
from triptych.search.roots import Roots

if TYPE_CHECKING:
    import pandas as pd

STRING, STRINGS, FLOAT, INTEGER = pa.string(), pa.list_(pa.string()), pa.float64(), pa.int64()
PRIMARY_KEY = {"lance-schema:unenforced-primary-key": "true"}  # makes Lance detect that two merges insert the same id
VECTOR_COLUMNS = ("vector", "embedding", "parts")  # the columns that similarities read


def column_field(
    arrow_type: pa.DataType,
    default: Any = None,
    factory: Any = MISSING,
    encode: Callable[[Any], Any] = lambda value: value,
    decode: Callable[[Any], Any] = lambda value: value,
    is_public: bool = True,
) -> Any:
    """Declare a field of `Item` that is a column of the table.

    `encode` converts a value of the field to an Arrow value, and `decode` converts an Arrow value back. Columns that
    are not public are omitted from `to_dict`.
    """
    metadata = {"arrow_type": arrow_type, "encode": encode, "decode": decode, "is_public": is_public}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Provenance:
    """The metadata of an item from one origin (a folder or a manifest)."""

    origin: str
    captions: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # each of the form name=value


def _encode_provenance(provenance: Sequence[Provenance]) -> str:
    return json.dumps([astuple(record) for record in provenance])


def _decode_provenance(text: str | None) -> tuple[Provenance, ...]:
    records = json.loads(text or "[]")
    return tuple(Provenance(origin, tuple(captions), tuple(columns)) for origin, captions, columns in records)


def _encode_columns(columns: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [f"{name}={value}" for name, values in columns.items() for value in values]


def _decode_columns(pairs: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    columns: dict[str, tuple[str, ...]] = {}
    for pair in pairs or ():
        name, _, value = pair.partition("=")
        columns[name] = (*columns.get(name, ()), value)
    return columns


@dataclass(frozen=True)
class Item:
    """A file, a segment of a file, or a text, with its metadata.

    The source is stored as the columns modality, file, text, start and end. The column `file` contains the location:
    the name of a root and the path in this root, such as "recordings/field/rain.wav".
    """

    source: Source
    captions: tuple[str, ...] = column_field(STRINGS, (), encode=list, decode=lambda captions: tuple(captions or ()))
    columns: Mapping[str, tuple[str, ...]] = column_field(  # values of manifest columns, by column name
        STRINGS, factory=dict, encode=_encode_columns, decode=_decode_columns
    )
    duration: float | None = column_field(FLOAT)  # of audio and video, in seconds
    modified_time: float | None = column_field(FLOAT)  # of the file, in seconds since 1970
    content_hash: str = column_field(STRING, "", is_public=False)  # set by indexing
    row_id: int = column_field(INTEGER, -1, is_public=False)  # set by indexing; the id of a deleted row is not reused
    provenance: tuple[Provenance, ...] = column_field(
        STRING, (), encode=_encode_provenance, decode=_decode_provenance, is_public=False
    )
    excerpt: str | None = None  # the beginning of a text file when it was indexed; stored in the column `text`
    location: str | None = None  # of a file: its root and the path in the root; set by indexing

    @property
    def identity(self) -> str:
        """The modality, the location or text, and the segment, which together identify the item."""
        form = "file" if isinstance(self.source.content, Path) else "text"
        content = self.location or self.source.content
        return f"{self.source.modality}:{form}:{content}:{self.source.start}:{self.source.end}"

    @property
    def id(self) -> str:
        """A hash of the identity. It does not change if the folder of a root moves."""
        return hashlib.sha256(self.identity.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def file(self) -> str | None:
        """The path of the file; None for a text of a manifest."""
        return str(self.source.content) if isinstance(self.source.content, Path) else None

    @property
    def origins(self) -> list[str]:
        """The locations of the folders and manifests that contain the item."""
        return [record.origin for record in self.provenance]

    @property
    def metadata_hash(self) -> str:
        """A hash of the metadata, which can change while the content of the file stays the same."""
        values = _encode_source(self) | _encode_fields(self)
        metadata = {name: values[name] for name in values if name not in {"text", "content_hash", "row_id"}}
        return hashlib.sha256(json.dumps(metadata).encode()).hexdigest()[:16]

    def with_origin(self, origin: str) -> Item:
        """Return the item with a provenance that assigns its captions and columns to an origin."""
        return replace(self, provenance=(Provenance(origin, self.captions, tuple(_encode_columns(self.columns))),))

    def with_provenance(self, provenance: Sequence[Provenance]) -> Item:
        """Return the item with the captions and columns of these origins only."""
        ordered = tuple(sorted(provenance, key=lambda record: record.origin))  # independent of the order of indexing
        shared = replace(self, provenance=ordered)
        return merge_items(replace(shared, captions=p.captions, columns=_decode_columns(p.columns)) for p in ordered)[0]

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of the id, the source and the public columns, for JSON."""
        source = _encode_source(self) | {"file": self.file}
        return {"id": self.id, **source, **{name: getattr(self, name) for name in PUBLIC_FIELDS}}


@dataclass(frozen=True)
class Hit:
    """A search result: an item with its scores."""

    item: Item
    score: float  # the similarity of the space; for several query parts, the weighted sum of standardised scores
    relevance: float = 0.0  # from 0 to 1; higher if the score is more unusual in this collection
    part_scores: tuple[float, ...] = ()  # the similarity to each query part, in the order of the query
    duplicates: tuple[str, ...] = ()  # ids of near-duplicates, which are not listed as separate hits

    @property
    def id(self) -> str:
        """The id of the item."""
        return self.item.id

    @property
    def source(self) -> Source:
        """The file, segment or text of the item."""
        return self.item.source

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of the item and its scores, for JSON."""
        return self.item.to_dict() | {name: getattr(self, name) for name in SCORE_COLUMNS}


class Hits(list[Hit]):
    """The hits of a search, best first: a list that can be converted to a table.

    Example:
        >>> hits = collection.search("rain on a tin roof", k=3)
        >>> hits.to_pandas()[["file", "score", "relevance"]].shape
        (3, 3)
    """

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the hits as dictionaries, as `triptych search --json` prints them."""
        return [hit.to_dict() for hit in self]

    def to_arrow(self) -> pa.Table:
        """Return the hits as an Arrow table with one row per hit."""
        files = pa.array([hit.item.file for hit in self], STRING)
        table = make_metadata_table([hit.item for hit in self]).select(PUBLIC_COLUMNS)
        table = table.set_column(PUBLIC_COLUMNS.index("file"), "file", files)
        for name, arrow_type in SCORE_COLUMNS.items():
            table = table.append_column(name, pa.array([getattr(hit, name) for hit in self], arrow_type))
        return table

    def to_pandas(self) -> pd.DataFrame:
        """Return the hits as a pandas data frame with one row per hit. pandas must be installed."""
        return self.to_arrow().to_pandas()


STORED_FIELDS = {f.name: f.metadata for f in fields(Item) if f.metadata}
METADATA_SCHEMA = pa.schema(
    [
        pa.field("id", STRING, nullable=False, metadata=PRIMARY_KEY),
        *[("modality", STRING), ("file", STRING), ("text", STRING), ("start", FLOAT), ("end", FLOAT)],
        *[("origins", STRINGS), ("metadata_hash", STRING)],
        *[(name, metadata["arrow_type"]) for name, metadata in STORED_FIELDS.items()],
    ]
)
METADATA_COLUMNS = tuple(METADATA_SCHEMA.names)
PUBLIC_FIELDS = [name for name, metadata in STORED_FIELDS.items() if metadata["is_public"]]
PUBLIC_COLUMNS = ["id", "modality", "file", "text", "start", "end", *PUBLIC_FIELDS]
SCORE_COLUMNS = {
    "score": FLOAT,
    "relevance": FLOAT,
    "part_scores": pa.list_(FLOAT),
    "duplicates": STRINGS,
}  # columns of `Hit`


def make_schema(key_dim: int) -> pa.Schema:
    """Return the schema of a table with keys of `key_dim` dimensions."""
    vector_fields = [
        pa.field("vector", pa.list_(pa.float32(), key_dim)),  # the key of the item
        pa.field("embedding", pa.binary()),  # float32; null if the key is sufficient
        pa.field("parts", pa.large_binary()),  # float16; null if the similarity does not read parts
    ]
    return pa.schema([*METADATA_SCHEMA, *vector_fields])


def make_metadata_table(items: Sequence[Item]) -> pa.Table:
    """Convert items to table rows, without the vector columns."""
    rows = [
        {"id": item.id, "origins": item.origins, "metadata_hash": item.metadata_hash}
        | _encode_source(item)
        | _encode_fields(item)
        for item in items
    ]
    return pa.Table.from_pylist(rows, METADATA_SCHEMA)


def to_arrow(items: Sequence[Item], features: Features, similarity: Similarity) -> pa.Table:
    """Convert items and features to table rows; row i of the features belongs to item i."""
    keys = similarity.keys(features).float().numpy()
    parts: list[bytes | None] = [None] * len(items)
    if similarity.reads_parts:
        half_parts = to_float16(features.parts)
        parts = [half_parts[i][features.mask[i]].numpy().tobytes() for i in range(len(items))]
    keys_suffice = can_query_with_keys(similarity, features.embedding.shape[1])
    embeddings = [None if keys_suffice else row.numpy().tobytes() for row in features.embedding.float()]
    vector_columns = {
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(keys.ravel(), pa.float32()), keys.shape[1]),
        "embedding": pa.array(embeddings, pa.binary()),
        "parts": pa.array(parts, pa.large_binary()),
    }
    table = make_metadata_table(items)
    for name, values in vector_columns.items():
        table = table.append_column(name, values)
    return table


def item_from_row(row: Mapping[str, Any], roots: Roots | None = None) -> Item:
    """Convert a row of the table to an item. Without roots, the column `file` contains a path instead of a location."""
    if row["modality"] not in MODALITIES:
        raise CollectionError(f"item {row['id']}: unknown modality {row['modality']!r}; rebuild the collection")
    is_file = row["file"] is not None
    location = row["file"] if roots is not None else None
    content = (Path(row["file"]) if roots is None else roots.find_path(row["file"])) if is_file else row["text"]
    source = Source(row["modality"], content, row["start"], row["end"])
    values = {name: metadata["decode"](row[name]) for name, metadata in STORED_FIELDS.items()}
    return Item(source, **values, excerpt=row["text"] if is_file else None, location=location)


def features_from_rows(rows: Sequence[Mapping[str, Any]], embed_dim: int, modality: Modality) -> Features:
    """Convert the vector columns of rows to features of a space with `embed_dim` dimensions."""
    embeddings = [
        np.asarray(row["vector"], np.float32) if row["embedding"] is None else np.frombuffer(row["embedding"], "<f4")
        for row in rows
    ]
    embedding = torch.from_numpy(np.array(embeddings).reshape(len(rows), -1))
    if any(row["parts"] is None for row in rows):
        return features_from_embeddings(embedding, modality)
    parts = [np.frombuffer(row["parts"], "<f2").reshape(-1, embed_dim).astype(np.float32) for row in rows]
    return Features(embedding, *collate(list(map(torch.from_numpy, parts))), modality)


def can_query_with_keys(similarity: Similarity, embed_dim: int) -> bool:
    """Return whether the query vector of an item can be computed from its key, as for cosine and dot products."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        probe = features_from_embeddings(torch.randn(2, embed_dim))
        try:
            from_keys = similarity.query(features_from_embeddings(similarity.keys(probe).float()))
        except InputError:  # the key has more dimensions than an embedding
            return False
        expected = similarity.query(probe)
        return from_keys.shape == expected.shape and torch.allclose(from_keys, expected, atol=1e-5)


def merge_items(items: Iterable[Item]) -> list[Item]:
    """Merge items of the same source, with the captions and columns of all merged items."""
    by_source: dict[Source, Item] = {}
    for item in items:
        existing = by_source.get(item.source)
        if existing is not None:
            captions = tuple(dict.fromkeys((*existing.captions, *item.captions)))
            columns = {
                name: tuple(dict.fromkeys((*existing.columns.get(name, ()), *item.columns.get(name, ()))))
                for name in dict.fromkeys((*existing.columns, *item.columns))
            }
            item = replace(item, captions=captions, columns=columns)
        by_source[item.source] = item
    return list(by_source.values())


def _encode_source(item: Item) -> dict[str, Any]:
    source = item.source
    is_file = isinstance(source.content, Path)
    file, text = (item.location or str(source.content), item.excerpt) if is_file else (None, source.content)
    return {"modality": source.modality, "file": file, "text": text, "start": source.start, "end": source.end}


def _encode_fields(item: Item) -> dict[str, Any]:
    return {name: metadata["encode"](getattr(item, name)) for name, metadata in STORED_FIELDS.items()}
