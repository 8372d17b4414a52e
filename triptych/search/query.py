"""Queries of one or several weighted parts, and filters on metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time
from pathlib import Path

from triptych.errors import MediaError, UsageError, describe_unknown
from triptych.inputs import Input, to_source
from triptych.interfaces import MODALITIES, Features, Modality, Source
from triptych.media import modalities_of, video
from triptych.search.roots import Roots


@dataclass(frozen=True)
class EmbeddedQuery:
    """A query part that is already embedded."""

    features: Features  # features of one item
    content_hashes: frozenset[str] = frozenset()  # of the query file, from `scan.query_content_hashes`


@dataclass(frozen=True)
class StoredItem:
    """An item of the collection, given by its id, as a query part."""

    id: str


@dataclass(frozen=True)
class QueryPart:
    """One part of a query: a source, or an item of the collection. A negative weight ranks similar items lower."""

    value: Source | EmbeddedQuery | StoredItem
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight) or self.weight == 0:
            raise UsageError(
                f"weight {self.weight:g}: give a finite number other than 0 (negative to rank similar items lower)"
            )


@dataclass(frozen=True)
class Query:
    """A query of one or several parts.

    Example:
        >>> query = Query.combine("rain", Path("roof.wav"), negatives=["speech"])
        >>> [part.weight for part in query.parts]
        [1.0, 1.0, -1.0]
    """

    parts: tuple[QueryPart, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise UsageError("empty query: give a text, a file or an item")

    @staticmethod
    def wrap(query: Input | Query) -> Query:
        """Convert an input to a query of one part; return a query unchanged."""
        return query if isinstance(query, Query) else Query.combine(query)

    @staticmethod
    def combine(*inputs: Input | StoredItem, negatives: Sequence[Input | StoredItem] = ()) -> Query:
        """Combine several inputs into one query.

        Args:
            *inputs: Texts, paths, PIL images, (samples, rate) and all other forms that `Space.encode` accepts, or
                items of the collection as `StoredItem(id)`. Items that are similar to the inputs are ranked higher.
            negatives: Inputs of the same forms. Items that are similar to a negative input are ranked lower.

        Returns:
            The query, in which each input has the weight 1, and each negative input the weight -1.
        """
        weighted = [*((value, 1.0) for value in inputs), *((value, -1.0) for value in negatives)]
        return Query(tuple(QueryPart(v if isinstance(v, StoredItem) else to_source(v), w) for v, w in weighted))


@dataclass(frozen=True)
class Filter:
    """Conditions that hits must satisfy. A field that is None or empty adds no condition."""

    folder: str | Path | None = None  # only files in this folder and its subfolders
    min_duration: float | None = None  # in seconds; items without a duration are excluded
    max_duration: float | None = None  # in seconds; items without a duration are excluded
    since: datetime | date | None = None  # earliest modification time; texts of manifests are excluded
    until: datetime | date | None = None  # latest modification time; a date includes the entire day
    columns: Mapping[str, str] = field(default_factory=dict)  # required values of manifest columns, by column name
    location: str | None = None  # only files in this folder of a root, such as "recordings/field"

    def __post_init__(self) -> None:
        for name in ("min_duration", "max_duration"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 <= seconds < math.inf:
                raise UsageError(f"{name} = {seconds}: give a number of seconds, 0 or more")

    def to_sql(self, roots: Roots) -> str:
        """Return an SQL condition on the columns of the table; an empty text if the filter has no conditions.

        The roots are those of the collection; they convert the folder to locations.
        """
        conditions = []
        if self.folder is not None:
            inside = [f"starts_with(file, {quote_sql(f'{loc}/')})" for loc in roots.find_locations_below(self.folder)]
            conditions.append(f"({' OR '.join(inside)})" if inside else "false")
        if self.location is not None:
            conditions.append(f"starts_with(file, {quote_sql(self.location.rstrip('/') + '/')})")
        limits = {
            "duration >=": None if self.min_duration is None else float(self.min_duration),
            "duration <=": None if self.max_duration is None else float(self.max_duration),
            "modified_time >=": None if self.since is None else _to_timestamp(self.since, time.min),
            "modified_time <=": None if self.until is None else _to_timestamp(self.until, time.max),
        }
        conditions += [f"{comparison} {value!r}" for comparison, value in limits.items() if value is not None]
        conditions += [f"array_has(columns, {quote_sql(f'{name}={value}')})" for name, value in self.columns.items()]
        return " AND ".join(conditions)


PART_NAMES = ("text", "audio", "image", "video", "item", "not")  # the names that --weight accepts


@dataclass(frozen=True)
class QueryInputs:
    """The inputs of a query by type, as given on the command line."""

    text: str = ""
    audio: Sequence[Path] = ()
    images: Sequence[Path] = ()
    videos: Sequence[Path] = ()
    items: Sequence[str] = ()  # item ids
    negatives: Sequence[str] = ()  # texts or existing files
    weights: Mapping[str, float] = field(default_factory=dict)  # by name in PART_NAMES; the default weight is 1

    def check_not_empty(self) -> None:
        """Raise a UsageError if there is no input."""
        if not any((self.text, self.audio, self.images, self.videos, self.items, self.negatives)):
            raise UsageError("nothing to look for: give a text, --audio, --image, --video or --item")

    def make_query(self, modalities: Sequence[Modality]) -> Query:
        """Combine all inputs into one query for a space with these modalities."""
        weights = dict.fromkeys(PART_NAMES, 1.0) | dict(self.weights)
        return Query(
            (
                *([QueryPart(Source("text", self.text), weights["text"])] if self.text else []),
                *(QueryPart(Source("audio", path), weights["audio"]) for path in self.audio),
                *(QueryPart(Source("image", path), weights["image"]) for path in self.images),
                *(part for path in self.videos for part in make_video_parts(path, modalities, weights["video"])),
                *(QueryPart(StoredItem(item_id), weights["item"]) for item_id in self.items),
                *(part for text in self.negatives for part in make_negative_parts(text, modalities, weights["not"])),
            )
        )


def parse_weights(pairs: Sequence[str]) -> dict[str, float]:
    """Parse weights of query parts, such as "audio=0.5"."""
    weights: dict[str, float] = {}
    for name, value in parse_pairs(pairs, "--weight").items():
        if name not in PART_NAMES:
            raise UsageError(f"--weight: {describe_unknown('part', name, PART_NAMES)}")
        with suppress(ValueError):
            weights[name] = float(value)
        if not 0 < weights.get(name, 0.0) < math.inf:
            raise UsageError(f"--weight {name}={value}: give a number above 0; use --not for negative parts")
    return weights


def parse_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """Parse the values of a command-line option, each of the form "name=value"."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"{option} {pair}: write NAME=VALUE")
        values[name] = value
    return values


def parse_modalities(names: str) -> list[Modality]:
    """Parse a comma-separated list of modalities."""
    given_names = [name.strip() for name in names.split(",") if name.strip()]
    for name in given_names:
        if name not in MODALITIES:
            raise UsageError(f"--modality: {describe_unknown('modality', name, MODALITIES)}")
    return [modality for modality in MODALITIES if modality in given_names]


def make_video_parts(path: Path, modalities: Sequence[Modality], weight: float = 1.0) -> tuple[QueryPart, ...]:
    """Return the middle frame and the audio of a video as query parts, as far as `modalities` has image and audio."""
    if len(modalities_of(path)) < 2:
        raise MediaError(f"{path}: the extension is not of a video file; give the file as image or audio")
    info = video.read_info(path)
    has_stream: dict[Modality, bool] = {"image": info.has_video, "audio": info.has_audio}
    available: list[Modality] = [m for m, is_present in has_stream.items() if is_present and m in modalities]
    if not available:
        raise MediaError(f"{path}: the video has no stream of a modality of this space ({', '.join(modalities)})")
    return tuple(QueryPart(Source(m, path), weight / len(available)) for m in available)


def make_negative_parts(content: str, modalities: Sequence[Modality], weight: float = 1.0) -> tuple[QueryPart, ...]:
    """Return query parts with negative weights. `content` is the path of an existing file, or else a text."""
    path = Path(content)
    file_modalities = modalities_of(path) if path.is_file() else ()
    if len(file_modalities) > 1:
        return make_video_parts(path, modalities, -weight)
    return (QueryPart(Source(file_modalities[0], path) if file_modalities else Source("text", content), -weight),)


def parse_date(text: str) -> datetime | date:
    """Parse a date such as 2025-01-31, or a time such as 2025-01-31T18:30."""
    for date_type in (date, datetime):
        with suppress(ValueError):
            return date_type.fromisoformat(text)
    raise UsageError(f"{text!r} is not a date; write 2025-01-31 or 2025-01-31T18:30")


def quote_sql(text: str) -> str:
    """Quote a text for SQL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} is not UTF-8; texts and paths in a collection must be UTF-8") from None
    return "'" + text.replace("'", "''") + "'"


def _to_timestamp(day_or_time: datetime | date, default_time: time) -> float:
    local_time = day_or_time if isinstance(day_or_time, datetime) else datetime.combine(day_or_time, default_time)
    try:
        return local_time.timestamp()  # without a time zone, the time is local
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{day_or_time}: out of range; give a year like {date.today().year}") from error
