"""What goes over the wire, as the OpenAPI description shows it: requests with their limits, and answers."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from triptych.app.server.limits import Limits
from triptych.contracts import Modality

LIMITS = Limits()  # those in the description; the server's own are checked again
ID = r"^[0-9a-f]{16}$"
Kind = Literal["picture", "sound", "film", "text"]
Name = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
TEXTS = LIMITS.waiting // 2  # of one call for embeddings
TEXT = {"type": "string", "minLength": 1, "maxLength": LIMITS.characters}
Words = Annotated[str, Field(min_length=1, max_length=LIMITS.characters)]


def _closed(**example: Any) -> ConfigDict:
    """No unknown keys, and an example for the description."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]} if example else None)


class QueryPart(BaseModel):
    """One part of a query: words, an item of the collection, or an uploaded file by its name in the form."""

    model_config = _closed(text="rain on a tin roof", weight=1.0)
    text: Words | None = None
    item: str | None = Field(None, pattern=ID)
    file: str | None = Field(None, max_length=100, description="name of the form's field that holds the file")
    weight: float = Field(1.0, ge=-10, le=10, description="negative: not like this", allow_inf_nan=False)

    @model_validator(mode="after")
    def _one(self) -> QueryPart:
        given = [name for name in ("text", "item", "file") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of text, item and file; found {', '.join(given) or 'none'}")
        if self.weight == 0:
            raise ValueError("weight 0: give another number; negative for what is not wanted")
        return self


class Conditions(BaseModel):
    """Which items may be found at all."""

    model_config = _closed(longer=2.0, columns={"split": "test"})
    folder: str | None = Field(
        None, max_length=1000, pattern=r"^[^\x00]+$", description="files below it, as items name theirs"
    )
    longer: float | None = Field(None, ge=0, le=1e9, description="seconds at least")
    shorter: float | None = Field(None, ge=0, le=1e9, description="seconds at most")
    since: date | None = Field(None, description="changed on this day or later")
    until: date | None = Field(None, description="changed on this day or earlier")
    columns: dict[Name, Name] = Field({}, max_length=16, description="of the manifest: name to value")


class Asking(BaseModel):
    """A query of one or several parts."""

    model_config = _closed(parts=[{"text": "rain on a tin roof"}])
    parts: list[QueryPart] = Field(min_length=1, max_length=LIMITS.parts)


class SearchQuery(BaseModel):
    """What to look for, among what, and how much of it."""

    model_config = _closed(
        parts=[{"text": "two red bells"}, {"text": "speech", "weight": -0.5}], want=["audio", "image"], k=10, where={}
    )
    parts: list[QueryPart] = Field(min_length=1, max_length=LIMITS.parts)
    want: list[Modality] = Field([], max_length=3, description="only these kinds; empty: all")
    k: int = Field(20, ge=1, le=LIMITS.hits, description="how many hits")
    where: Conditions = Field(default_factory=lambda: Conditions.model_validate({}))
    include_query: bool = Field(
        False, description="also find the items that the query asks with: by id, or by a file with the same content"
    )


class ExplainQuery(BaseModel):
    """A query and one hit of it."""

    model_config = _closed(parts=[{"text": "two red bells"}], item="0123456789abcdef")
    parts: list[QueryPart] = Field(min_length=1, max_length=LIMITS.parts)
    item: str = Field(pattern=ID)


def _texts(given: Any) -> Any:
    """One text as a list of one. Checked here, for a message in words: of a union each branch would have its own."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list):
        raise ValueError("give a text, or a list of texts; tokens are not taken")  # noqa: TRY004 - pydantic's way
    if not 1 <= len(texts) <= TEXTS:
        raise ValueError(f"{len(texts)} texts; give 1 to {TEXTS} in one request, and the rest in others")
    return texts


class EmbeddingsQuery(BaseModel):
    """Texts to embed, as OpenAI's clients ask."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": ["a dog barks"], "model": "triptych"}]})
    input: Annotated[
        list[Words],
        BeforeValidator(_texts),
        WithJsonSchema({"anyOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1, "maxItems": TEXTS}]}),
    ] = Field(description=f"one text, or a list of at most {TEXTS}")
    model: str = Field("triptych", max_length=200, description="there is one: the collection's space; any name will do")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, le=65_536, description="if given, must be the width of the space")
    user: str | None = Field(None, max_length=200)


class ItemAnswer(BaseModel):
    """Something in the collection."""

    id: str
    modality: Modality
    kind: Kind
    name: str = Field(description="of the file; empty for a text")
    folder: str = Field(description="where the file lies in what was indexed")
    text: str | None
    captions: list[str]
    start: float | None = Field(description="seconds, where it is a moment of a longer file")
    end: float | None
    duration: float | None
    columns: dict[str, list[str]] = Field(description="what the manifest says of it")
    siblings: list[ItemAnswer] = Field(
        [], description="asked for one item: the rest of its row of the manifest, and the same moment of the same film"
    )


class HitAnswer(BaseModel):
    """An item that was found: what it is, and how well it fits."""

    id: str
    modality: Modality
    kind: Kind
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


class SearchAnswer(BaseModel):
    """Hits, most relevant first."""

    hits: list[HitAnswer]
    line: float = Field(description="hits whose relevance is below this are probably not relevant")
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


class EmbeddingsAnswer(BaseModel):
    """Vectors in the order of what was asked."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage = Usage()


class PeaksAnswer(BaseModel):
    """The outline of a sound: lowest and highest sample of each piece, from start to end (seconds of the file)."""

    start: float
    end: float
    seconds: float = Field(description="of the item itself")
    peaks: list[tuple[float, float]]


class Side(BaseModel):
    """One side of an explanation: where its parts lie, and how much each adds to the score."""

    modality: Modality
    text: str | None = Field(description="what the places of a text count characters of")
    span: tuple[float, float] | None = Field(description="seconds of the file that a sound's places lie in")
    places: list[list[float]] = Field(
        description="picture: left, top, right, bottom as shares; sound: start, end in seconds; text: first character "
        "and the one after the last; empty, and last: of the item as a whole, such as marks a network adds to a text"
    )
    contributions: list[float]


class PartReason(BaseModel):
    """Why a hit fits one part of the query: score = total + rest, total = the sum of all pairs."""

    part: int = Field(description="which part of the query, from 0; a film's picture and its sound are of one part")
    score: float
    weight: float
    total: float
    rest: float = Field(description="what no pair of parts accounts for: constants of network and similarity")
    query: Side
    hit: Side
    pairs: list[list[float]] = Field(description="what each part of the query (rows) adds with each of the hit")
    heat: list[list[float]] = Field(description="what to light up, on the similarity's own scale; of the same shape")


class ExplainAnswer(BaseModel):
    """Why a hit fits a query, part by part."""

    item: ItemAnswer
    parts: list[PartReason]
    how: str = Field(description="how the contributions are computed, in one sentence")


class MapAnswer(BaseModel):
    """Items on a plane, x and y within 0 and 1."""

    total: int = Field(description="items in the collection; where they are many, a sample of them is shown")
    ids: list[str]
    names: list[str]
    modalities: list[Modality]
    x: list[float]
    y: list[float]
    values: list[str] | None = Field(description="of the column asked for")
    legend: list[str] = Field(description="the column's values, most frequent first")


class Drawing(BaseModel):
    """The map is being made: ask again in a second."""

    state: Literal["drawing"] = "drawing"


class Landing(BaseModel):
    """Where a query lies on the map: among the items most like it."""

    x: float
    y: float
    near: list[str] = Field(description="ids of those items")


class Overview(BaseModel):
    """What the collection holds, and what the page needs to know of the server."""

    name: str
    items: int
    modalities: dict[Modality, int]
    folders: list[str]
    columns: dict[str, list[str]] = Field(description="values of those columns of a manifest that have only a few")
    examples: list[str]
    similarity: str
    width: int
    fingerprint: str = Field(description="of the space")
    limits: dict[str, float]
    report: bool
    review: bool


class Health(BaseModel):
    """The server is well."""

    status: Literal["ok", "busy"] = Field(description="busy: the collection does not answer at once")
    items: int = Field(description="in the collection; where it is busy, when it last answered")
    waiting: int = Field(description="requests at the encoder")
