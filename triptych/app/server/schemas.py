"""What goes over the wire, as the OpenAPI description shows it: requests with their limits, and answers."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from triptych.app.server.limits import Limits
from triptych.interfaces import Modality

DEFAULT_LIMITS = Limits()  # those in the description; the server's own are checked again
ID_PATTERN = r"^[0-9a-f]{16}$"
MediaKind = Literal["image", "audio", "video", "text"]
ColumnText = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
MAX_TEXTS = DEFAULT_LIMITS.max_queue_length // 2  # of one call for embeddings
TEXT_SCHEMA = {"type": "string", "minLength": 1, "maxLength": DEFAULT_LIMITS.max_characters}
QueryText = Annotated[str, Field(min_length=1, max_length=DEFAULT_LIMITS.max_characters)]


def _strict_config(**example: Any) -> ConfigDict:
    """No unknown keys, and an example for the description."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]} if example else None)


class QueryPartRequest(BaseModel):
    """One part of a query: words, an item of the collection, or an uploaded file by its name in the form."""

    model_config = _strict_config(text="rain on a tin roof", weight=1.0)
    text: QueryText | None = None
    item: str | None = Field(None, pattern=ID_PATTERN)
    file: str | None = Field(None, max_length=100, description="name of the form's field that holds the file")
    weight: float = Field(1.0, ge=-10, le=10, description="negative: not like this", allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_exactly_one(self) -> QueryPartRequest:
        given_fields = [name for name in ("text", "item", "file") if getattr(self, name) is not None]
        if len(given_fields) != 1:
            raise ValueError(f"give exactly one of text, item and file; found {', '.join(given_fields) or 'none'}")
        if self.weight == 0:
            raise ValueError("weight 0: give another number; negative for what is not wanted")
        return self


class FilterRequest(BaseModel):
    """Which items may be found at all."""

    model_config = _strict_config(min_duration=2.0, columns={"split": "test"})
    folder: str | None = Field(
        None, max_length=1000, pattern=r"^[^\x00]+$", description="files below it, as items name theirs"
    )
    min_duration: float | None = Field(None, ge=0, le=1e9, description="seconds at least")
    max_duration: float | None = Field(None, ge=0, le=1e9, description="seconds at most")
    since: date | None = Field(None, description="changed on this day or later")
    until: date | None = Field(None, description="changed on this day or earlier")
    columns: dict[ColumnText, ColumnText] = Field({}, max_length=16, description="of the manifest: name to value")


class QueryRequest(BaseModel):
    """A query of one or several parts."""

    model_config = _strict_config(parts=[{"text": "rain on a tin roof"}])
    parts: list[QueryPartRequest] = Field(min_length=1, max_length=DEFAULT_LIMITS.max_parts)


class SearchRequest(BaseModel):
    """What to look for, among what, and how much of it."""

    model_config = _strict_config(
        parts=[{"text": "two red bells"}, {"text": "speech", "weight": -0.5}],
        modalities=["audio", "image"],
        k=10,
        filter={},
    )
    parts: list[QueryPartRequest] = Field(min_length=1, max_length=DEFAULT_LIMITS.max_parts)
    modalities: list[Modality] = Field([], max_length=3, description="only these kinds; empty: all")
    k: int = Field(20, ge=1, le=DEFAULT_LIMITS.max_hits, description="how many hits")
    filter: FilterRequest = Field(default_factory=lambda: FilterRequest.model_validate({}))
    include_query: bool = Field(
        False, description="also find the items that the query asks with: by id, or by a file with the same content"
    )


class ExplainRequest(BaseModel):
    """A query and one hit of it."""

    model_config = _strict_config(parts=[{"text": "two red bells"}], item="0123456789abcdef")
    parts: list[QueryPartRequest] = Field(min_length=1, max_length=DEFAULT_LIMITS.max_parts)
    item: str = Field(pattern=ID_PATTERN)


def _as_text_list(value: Any) -> Any:
    """One text as a list of one. Checked here, for a message in words: of a union each branch would have its own."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise ValueError("give a text, or a list of texts; tokens are not taken")  # noqa: TRY004 - pydantic's way
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise ValueError(f"{len(texts)} texts; give 1 to {MAX_TEXTS} in one request, and the rest in others")
    return texts


class EmbeddingsRequest(BaseModel):
    """Texts to embed, as OpenAI's clients ask."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": ["a dog barks"], "model": "triptych"}]})
    input: Annotated[
        list[QueryText],
        BeforeValidator(_as_text_list),
        WithJsonSchema(
            {"anyOf": [TEXT_SCHEMA, {"type": "array", "items": TEXT_SCHEMA, "minItems": 1, "maxItems": MAX_TEXTS}]}
        ),
    ] = Field(description=f"one text, or a list of at most {MAX_TEXTS}")
    model: str = Field("triptych", max_length=200, description="there is one: the collection's space; any name will do")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, le=65_536, description="if given, must be the width of the space")
    user: str | None = Field(None, max_length=200)


class ItemResponse(BaseModel):
    """Something in the collection."""

    id: str
    modality: Modality
    media_kind: MediaKind
    name: str = Field(description="of the file; empty for a text")
    folder: str = Field(description="where the file lies in what was indexed")
    text: str | None
    captions: list[str]
    start: float | None = Field(description="seconds, where it is a moment of a longer file")
    end: float | None
    duration: float | None
    columns: dict[str, list[str]] = Field(description="what the manifest says of it")
    siblings: list[ItemResponse] = Field(
        [], description="asked for one item: the rest of its row of the manifest, and the same moment of the same film"
    )


class HitResponse(BaseModel):
    """An item that was found: what it is, and how well it fits."""

    id: str
    modality: Modality
    media_kind: MediaKind
    name: str
    folder: str
    text: str | None
    captions: list[str]
    start: float | None
    end: float | None
    duration: float | None
    columns: dict[str, list[str]]
    score: float = Field(description="the space's similarity; of several parts, their standardised scores together")
    relevance: float = Field(description="0 to 1: how unusual the score is against the collection's background")
    parts: list[float] = Field(description="the similarity to each part of the query")
    copies: list[str] = Field(description="ids of items that are nearly the same, and not listed")


class SearchResponse(BaseModel):
    """Hits, most relevant first."""

    hits: list[HitResponse]
    relevance_threshold: float = Field(description="hits whose relevance is below this are probably not relevant")
    seconds: float
    notes: list[str] = Field(description="what was done with the query that is worth knowing")


class Embedding(BaseModel):
    """One vector; base64 is of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """What OpenAI's clients expect to be told; nothing is counted here."""

    prompt_tokens: int = 0
    total_tokens: int = 0


class EmbeddingsResponse(BaseModel):
    """Vectors in the order of what was asked."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage = Usage()


class PeaksResponse(BaseModel):
    """The outline of a sound: lowest and highest sample of each piece, from start to end (seconds of the file)."""

    start: float
    end: float
    duration: float = Field(description="of the item itself")
    peaks: list[tuple[float, float]]


class SideResponse(BaseModel):
    """One side of an explanation: where its parts lie, and how much each adds to the score."""

    modality: Modality
    text: str | None = Field(description="what the places of a text count characters of")
    span: tuple[float, float] | None = Field(description="seconds of the file that a sound's places lie in")
    locations: list[list[float]] = Field(
        description="picture: left, top, right, bottom as shares; sound: start, end in seconds; text: first character "
        "and the one after the last; empty, and last: of the item as a whole, such as marks a network adds to a text"
    )
    contributions: list[float]


class PartExplanation(BaseModel):
    """Why a hit fits one part of the query: score = total + rest, total = the sum of all pairs."""

    part_index: int = Field(
        description="which part of the query, from 0; a film's picture and its sound are of one part"
    )
    score: float
    weight: float
    total: float
    residual: float = Field(description="what no pair of parts accounts for: constants of network and similarity")
    query: SideResponse
    hit: SideResponse
    pair_contributions: list[list[float]] = Field(
        description="what each part of the query (rows) adds with each of the hit"
    )
    attribution: list[list[float]] = Field(
        description="what to light up, on the similarity's own scale; of the same shape"
    )


class ExplainResponse(BaseModel):
    """Why a hit fits a query, part by part."""

    item: ItemResponse
    parts: list[PartExplanation]
    method: str = Field(description="how the contributions are computed, in one sentence")


class MapResponse(BaseModel):
    """Items on a plane, x and y within 0 and 1."""

    total: int = Field(description="items in the collection; where they are many, a sample of them is shown")
    ids: list[str]
    names: list[str]
    modalities: list[Modality]
    x: list[float]
    y: list[float]
    values: list[str] | None = Field(description="of the column asked for")
    legend: list[str] = Field(description="the column's values, most frequent first")


class MapPending(BaseModel):
    """The map is being made: ask again in a second."""

    status: Literal["pending"] = "pending"


class MapPosition(BaseModel):
    """Where a query lies on the map: among the items most like it."""

    x: float
    y: float
    neighbours: list[str] = Field(description="ids of those items")


class CollectionInfo(BaseModel):
    """What the collection holds, and what the page needs to know of the server."""

    name: str
    items: int
    modalities: dict[Modality, int]
    folders: list[str]
    columns: dict[str, list[str]] = Field(description="values of those columns of a manifest that have only a few")
    examples: list[str]
    similarity: str
    embed_dim: int
    fingerprint: str = Field(description="of the space")
    limits: dict[str, float]
    report: bool
    review: bool


class HealthResponse(BaseModel):
    """The server is well."""

    status: Literal["ok", "busy"] = Field(description="busy: the collection does not answer at once")
    items: int = Field(description="in the collection; where it is busy, when it last answered")
    queue_length: int = Field(description="requests at the encoder")
