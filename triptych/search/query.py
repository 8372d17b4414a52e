"""What is asked of a collection: one thing or several, each wanted or not wanted, within limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time
from pathlib import Path

from triptych.contracts import Features, Modality, Source
from triptych.errors import MediaError, UsageError
from triptych.media import modalities_of, video


@dataclass(frozen=True)
class Ready:
    """Something that is embedded already, as a server does with several requests at once."""

    features: Features  # of one item
    modality: Modality
    contents: frozenset[str] = frozenset()  # of the file it was made of, as `items.contents_of_query` tells them


@dataclass(frozen=True)
class Part:
    """One part of a question: a source, or an item of the collection by its id; a negative weight says "but not"."""

    what: Source | Ready | str  # a string is an item's id
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight) or self.weight == 0:
            raise UsageError(f"weight {self.weight:g}: give a number other than 0; negative for what is not wanted")


@dataclass(frozen=True)
class Query:
    """Several parts at once: like this and this, but not like that."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise UsageError("an empty query: give words, a file or an item")

    @staticmethod
    def of(asked: Source | Query) -> Query:
        """A single source as a query of one part."""
        return asked if isinstance(asked, Query) else Query((Part(asked),))


@dataclass(frozen=True)
class Where:
    """Which items may be found at all; what is left out does not restrict."""

    folder: str | Path | None = None  # files below it
    longer: float | None = None  # seconds, of sounds, films and their moments; what has no duration is left out
    shorter: float | None = None
    since: datetime | date | None = None  # by the file's time of change; texts of manifests have none
    until: datetime | date | None = None  # a day without a time: to its end
    columns: Mapping[str, str] = field(default_factory=dict)  # of the manifest: name to value

    def __post_init__(self) -> None:
        for name in ("longer", "shorter"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 <= seconds < math.inf:
                raise UsageError(f"{name} = {seconds}: give seconds, 0 or more")

    @property
    def sql(self) -> str:
        """As a condition on the store's columns; empty where nothing restricts."""
        found = []
        if self.folder is not None:
            below = str(Path(self.folder).expanduser().resolve()).rstrip("/") + "/"
            found.append(f"starts_with(file, {quoted(below)})")
        if self.longer is not None:
            found.append(f"duration >= {float(self.longer)!r}")
        if self.shorter is not None:
            found.append(f"duration <= {float(self.shorter)!r}")
        if self.since is not None:
            found.append(f"date >= {_seconds(self.since, time.min)!r}")
        if self.until is not None:
            found.append(f"date <= {_seconds(self.until, time.max)!r}")
        found += [f"array_has(columns, {quoted(f'{name}={value}')})" for name, value in self.columns.items()]
        return " AND ".join(found)


def film_parts(path: Path, modalities: Sequence[Modality], weight: float = 1.0) -> tuple[Part, ...]:
    """A film as parts of a question: its middle picture and its sound, as far as it has and the space knows them."""
    if len(modalities_of(path)) < 2:
        raise MediaError(f"{path}: does not end like a film; give it as a picture or as a sound")
    found = video.info(path)
    has: dict[Modality, bool] = {"image": found.has_pictures, "audio": found.has_sound}
    known: list[Modality] = [m for m, there in has.items() if there and m in modalities]
    if not known:
        raise MediaError(f"{path}: has neither pictures nor sound that this space knows ({', '.join(modalities)})")
    return tuple(Part(Source(m, path), weight / len(known)) for m in known)


def unwanted(what: str, modalities: Sequence[Modality], weight: float = 1.0) -> tuple[Part, ...]:
    """What should not be found, as parts of a question: an existing file by what it is, anything else as words."""
    path = Path(what)
    known = modalities_of(path) if path.is_file() else ()
    if len(known) > 1:
        return film_parts(path, modalities, -weight)
    return (Part(Source(known[0], path) if known else Source("text", what), -weight),)


def read_moment(text: str) -> datetime | date:
    """A day such as 2025-01-31, or a moment such as 2025-01-31T18:30."""
    for kind in (date, datetime):
        with suppress(ValueError):
            return kind.fromisoformat(text)
    raise UsageError(f"{text!r} is no day; write 2025-01-31, or 2025-01-31T18:30 with a time")


def quoted(text: str) -> str:
    """A text as SQL has it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r}: is not UTF-8, so no item of a collection has it; give it as UTF-8") from None
    return "'" + text.replace("'", "''") + "'"


def _seconds(moment: datetime | date, of_day: time) -> float:
    whole = moment if isinstance(moment, datetime) else datetime.combine(moment, of_day)
    try:
        return whole.timestamp()  # without a zone: the local one, as people mean it
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{moment}: no file is of that time; give a year like {date.today().year}") from error
