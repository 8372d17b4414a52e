"""Requests and responses of the HTTP API. FastAPI generates the OpenAPI schema from these classes."""

from __future__ import annotations

from abc import ABC
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from triptych.app.server.limits import DEFAULT_LIMITS
from triptych.interfaces import Modality

ID_PATTERN = r"^[0-9a-f]{16}$"
MediaKind = Literal["image", "audio", "video", "text"]
ColumnText = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
MAX_TEXTS = DEFAULT_LIMITS.max_queue_length // 2  # maximum number of texts in one request to /v1/embeddings
TEXT_SCHEMA = {"type": "string", "minLength": 1, "maxLength": DEFAULT_LIMITS.max_characters}
QueryText = Annotated[str, Field(min_length=1, max_length=DEFAULT_LIMITS.max_characters)]


def _strict_config(**example: Any) -> ConfigDict:
    """Return a configuration that forbids unknown fields and adds an example to the schema."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]} if example else None)


class QueryPartRequest(BaseModel):
    """One part of a query: a text, an item of the collection, or the form field of an uploaded file."""

    model_config = _strict_config(text="rain on a tin roof", weight=1.0)
    text: QueryText | None = None
    item: str | None = Field(None, pattern=ID_PATTERN)
    file: str | None = Field(None, max_length=100, description="name of the form field that contains the file")
    weight: float = Field(
        1.0, ge=-10, le=10, description="a negative weight excludes similar items", allow_inf_nan=False
    )

    @model_validator(mode="after")
    def _check_exactly_one(self) -> QueryPartRequest:
        names = [name for name in ("text", "item", "file") if getattr(self, name) is not None]
        if len(names) != 1:
            raise ValueError(f"give exactly one of text, item and file; found {', '.join(names) or 'none'}")
        if self.weight == 0:
            raise ValueError("weight is 0; give a positive weight, or a negative weight to exclude similar items")
        return self


class FilterRequest(BaseModel):
    """Conditions that every hit must meet."""

    model_config = _strict_config(min_duration=2.0, columns={"split": "test"})
    folder: Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]+$")] | None = Field(
        None, description="only files in this folder and its subfolders; same format as the `folder` of items"
    )
    min_duration: float | None = Field(None, ge=0, le=1e9, description="minimum duration in seconds")
    max_duration: float | None = Field(None, ge=0, le=1e9, description="maximum duration in seconds")
    since: date | None = Field(None, description="modified on this day or later")
    until: date | None = Field(None, description="modified on this day or earlier")
    columns: dict[ColumnText, ColumnText] = Field({}, max_length=16, description="required values of manifest columns")


QueryParts = Annotated[list[QueryPartRequest], Field(min_length=1, max_length=DEFAULT_LIMITS.max_parts)]


class QueryRequest(BaseModel):
    """A query of one or several parts."""

    model_config = _strict_config(parts=[{"text": "rain on a tin roof"}])
    parts: QueryParts


class SearchRequest(BaseModel):
    """A query, the modalities to return, a filter, and the number of hits."""

    model_config = _strict_config(
        parts=[{"text": "two red bells"}, {"text": "speech", "weight": -0.5}],
        modalities=["audio", "image"],
        k=10,
        filter={},
    )
    parts: QueryParts
    modalities: list[Modality] = Field([], max_length=3, description="modalities to return; empty: all")
    k: int = Field(20, ge=1, le=DEFAULT_LIMITS.max_hits, description="number of hits")
    filter: FilterRequest = Field(default_factory=lambda: FilterRequest.model_validate({}))
    include_query: bool = Field(
        False, description="also return items that are part of the query, by id or by the same file content"
    )


class ExplainRequest(BaseModel):
    """A query and the item to explain."""

    model_config = _strict_config(parts=[{"text": "two red bells"}], item="0123456789abcdef")
    parts: QueryParts
    item: str = Field(pattern=ID_PATTERN)


def _as_text_list(value: Any) -> Any:
    """Return a single text as a list. With a union type, pydantic would report one error per branch."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise ValueError("give a text or a list of texts; token ids are not supported")  # noqa: TRY004 - pydantic's way
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise ValueError(f"{len(texts)} texts; give 1 to {MAX_TEXTS} per request")
    return texts


class EmbeddingsRequest(BaseModel):
    """Texts to embed, in the format of the OpenAI API."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": ["a dog barks"], "model": "triptych"}]})
    input: Annotated[
        list[QueryText],
        BeforeValidator(_as_text_list),
        WithJsonSchema(
            {"anyOf": [TEXT_SCHEMA, {"type": "array", "items": TEXT_SCHEMA, "minItems": 1, "maxItems": MAX_TEXTS}]}
        ),
    ] = Field(description=f"one text, or a list of at most {MAX_TEXTS}")
    model: str = Field("triptych", max_length=200, description="ignored: the collection's space is the only model")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, le=65_536, description="if given, must equal the embed_dim of the space")
    user: str | None = Field(None, max_length=200)


class ItemFields(BaseModel, ABC):
    """The fields of an item. Most field names are keys of `triptych.search.item.Item.to_dict`."""

    id: str
    modality: Modality
    media_kind: MediaKind
    name: str = Field(description="file name; empty for a text")
    folder: str = Field(description="folder of the file, relative to the indexed folder")
    text: str | None
    captions: list[str]
    start: float | None = Field(description="start time in seconds, if the item is a segment of a longer file")
    end: float | None
    duration: float | None
    columns: dict[str, list[str]] = Field(description="columns of the manifest")


class ItemResponse(ItemFields):
    """An item of the collection."""

    siblings: list[ItemResponse] = Field(
        [], description="other items of the same manifest row or video segment; only in GET /v1/items/{id}"
    )


class HitResponse(ItemFields):
    """A search result: an item with its score and relevance."""

    score: float = Field(description="similarity; with several query parts, their combined standardised similarities")
    relevance: float = Field(description="0 to 1: how unusual the score is in this collection")
    part_scores: list[float] = Field(description="similarity to each part of the query")
    duplicates: list[str] = Field(description="ids of near-duplicates, which are not listed as hits")


class SearchResponse(BaseModel):
    """Hits, most relevant first."""

    hits: list[HitResponse]
    relevance_threshold: float = Field(description="hits with a lower relevance are probably not relevant")
    seconds: float
    notes: list[str] = Field(description="remarks, such as that a long query was truncated")


class Embedding(BaseModel):
    """One vector, as numbers or as base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Token counts, which OpenAI clients expect; always 0."""

    prompt_tokens: int = 0
    total_tokens: int = 0


class EmbeddingsResponse(BaseModel):
    """Vectors in the order of the input."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage = Usage()


class PeaksResponse(BaseModel):
    """A waveform outline: minimum and maximum of each bin between the times `start` and `end` of the file."""

    start: float
    end: float
    duration: float = Field(description="duration of the item in seconds")
    peaks: list[tuple[float, float]]


class ClassResponse(BaseModel):
    """A class of an item, its weight in the embedding (all weights sum to 1), and its contribution to the score."""

    name: str
    weight: float
    contribution: float


class SideResponse(BaseModel):
    """The parts of the query or of the hit, with their locations and their contributions to the score."""

    modality: Modality
    text: str | None = Field(description="the text that character locations refer to")
    span: tuple[float, float] | None = Field(description="start and end of the audio in the file, in seconds")
    locations: list[list[float]] = Field(
        description="image: left, top, right, bottom as fractions; audio: start, end in seconds; text: start and end "
        "character; the last location is empty if some parts, such as special tokens, have no location"
    )
    contributions: list[float]
    classes: list[ClassResponse] = Field(
        description="the classes of the item that contribute most to the score; empty if the space does not embed "
        "items by their classes"
    )


class PartExplanation(BaseModel):
    """The explanation for one part of the query: score = total + residual; total = sum of all pair contributions."""

    part_index: int = Field(
        description="index of the query part, from 0; image and audio of a video have the same index"
    )
    score: float
    weight: float
    total: float
    residual: float = Field(description="constant terms of network and similarity that belong to no pair of parts")
    query: SideResponse
    hit: SideResponse
    pair_contributions: list[list[float]] = Field(
        description="contribution of each pair of parts; rows: parts of the query, columns: parts of the hit"
    )
    attribution: list[list[float]] = Field(description="values for highlighting, in the shape of pair_contributions")


class ExplainResponse(BaseModel):
    """The explanation of a hit, one entry per part of the query."""

    item: ItemResponse
    parts: list[PartExplanation]
    method: str = Field(description="how the contributions are computed")


class MapResponse(BaseModel):
    """A 2-D map of the collection, with x and y from 0 to 1."""

    total: int = Field(description="items in the collection; the map of a large collection shows a sample")
    ids: list[str]
    names: list[str]
    modalities: list[Modality]
    x: list[float]
    y: list[float]
    values: list[str] | None = Field(description="values of the requested column")
    legend: list[str] = Field(description="the column's values, most frequent first")


class MapPending(BaseModel):
    """The map is being computed. Repeat the request after one second."""

    status: Literal["pending"] = "pending"


class MapPosition(BaseModel):
    """The position of a query on the map."""

    x: float
    y: float
    neighbours: list[str] = Field(description="ids of the best hits that are on the map")


class CollectionInfo(BaseModel):
    """The contents of the collection, the limits of the server, and whether a report and a review page exist."""

    name: str
    items: int
    modalities: dict[Modality, int]
    folders: list[str]
    columns: dict[str, list[str]] = Field(description="values of each manifest column that has few distinct values")
    examples: list[str]
    similarity: str
    embed_dim: int
    fingerprint: str = Field(description="fingerprint of the space")
    limits: dict[str, float]
    report: bool
    review: bool


class HealthResponse(BaseModel):
    """The state of the server."""

    status: Literal["ok", "busy"] = Field(description="busy: the collection could not be read in time")
    items: int = Field(description="items in the collection; while busy, the last known number")
    queue_length: int = Field(description="inputs waiting for the encoder")
