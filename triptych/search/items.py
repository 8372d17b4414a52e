"""What can be found: files, moments of long ones and texts, as a folder or a manifest has them."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from triptych.contracts import Modality, Source
from triptych.data.cache import content_key
from triptych.data.loader import source_of
from triptych.data.manifest import Row
from triptych.errors import CollectionError, MediaError
from triptych.media import audio, modalities_of, video
from triptych.space import Space

SYSTEM_FILES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini"})  # what systems write; they hide most others
FORMAT = "triptych does not read this format: convert the file"
NAME = "the name is not UTF-8: rename the file or its folder"
SPECIAL = "neither a file nor a link to one"
LINK = "a link to a folder is not followed: index that folder, too"
MOMENT = 10.0  # seconds of a film that become one item, where no sound encoder says otherwise


@dataclass(frozen=True)
class Item:
    """Something to be found: a file, a moment of one, or a text; with what else is known of it."""

    source: Source
    captions: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of the manifest, by name
    duration: float | None = None  # seconds, of a sound or film

    @property
    def key(self) -> str:
        """What makes it this item: where its content is, and which moment."""
        return f"{self.source.modality}:{self.source.content}:{self.source.start}:{self.source.end}"

    @property
    def id(self) -> str:
        """Its short name, the same whenever and wherever it is indexed from this place."""
        return hashlib.sha256(self.key.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class Skipped:
    """A file or folder that was passed over, and why."""

    path: Path
    reason: str
    is_folder: bool = False

    @property
    def ending(self) -> str:
        """What it is counted as: the ending of its name, in small letters."""
        if self.is_folder:
            return "folder"
        ending = self.path.suffix.lower()
        return ending if re.fullmatch(r"\.\w{1,8}", ending) else "without an ending"


def items_in(
    folder: Path, space: Space, skipped: list[Skipped] | None = None, except_for: Path | None = None
) -> Iterator[Item]:
    """Every file below a folder that the space can embed, in order of path; nothing below the folder `except_for`.

    What is passed over is appended to `skipped`, except hidden files and those that systems write beside a user's own.
    """
    if not folder.is_dir():
        raise CollectionError(f"{folder}: no such folder")
    passed = [] if skipped is None else skipped
    excluded = except_for.resolve() if except_for else None

    def unreadable(error: OSError) -> None:
        passed.append(Skipped(Path(error.filename), f"cannot be read ({error.strerror})", is_folder=True))

    for place, folders, files in os.walk(folder.resolve(), onerror=unreadable):
        here = Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and here / name != excluded)
        links = [path for name in folders if (path := here / name).is_symlink()]
        passed.extend(Skipped(path, LINK, is_folder=True) for path in links)
        for name in sorted(files):
            path = here / name
            if name.startswith(".") or name.lower() in SYSTEM_FILES:
                continue
            known: list[Modality] = [m for m in modalities_of(path) if m in space.modalities]
            reason = _reason_to_skip(path, known)
            if reason:
                passed.append(Skipped(path, reason))
                continue
            for modality in known if len(known) == 1 else _shown(path, known):
                yield from moments(Item(Source(modality, path.resolve())), space)


def _reason_to_skip(path: Path, known: Sequence[Modality]) -> str | None:
    if not known:
        could_be = modalities_of(path)
        return f"this space has no {' or '.join(could_be)}" if could_be else FORMAT
    if not path.is_file():
        return SPECIAL
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        return NAME
    return None


def items_of(rows: Sequence[Row], space: Space) -> Iterator[Item]:
    """Every file of a manifest's rows with its captions and columns, and every caption as a text."""
    for row in rows:
        columns = {name: (value,) for name, value in row.columns.items()}
        for modality in row.modalities:
            if modality == "text" and "text" in space.modalities:
                yield from (Item(Source("text", caption), columns=columns) for caption in row.texts)
            elif modality in space.modalities:
                yield from moments(Item(source_of(row, modality), row.texts, columns), space)


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
        yield Item(source, item.captions, item.columns, max(0.0, end - start))
        return
    for first, last in audio.windows(end - start, longest, space.recipe.data.hop or longest):
        moment = Source(source.modality, path, start + first, start + last)
        yield Item(moment, item.captions, item.columns, last - first)


def contents_of_query(source: Source, space: Space) -> frozenset[str]:
    """The contents under which a collection holds the file of a query: the whole file, or its first moment.

    Empty where the source is no file, or cannot be read.
    """
    if not isinstance(source.content, Path):
        return frozenset()
    may_be = [source]
    longest = space.encoder("audio").seconds if source.modality == "audio" else _moment(space)
    if source.start is None and source.end is None and math.isfinite(longest):
        may_be.append(replace(source, start=0.0, end=float(longest)))
    try:
        with source.content.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return frozenset()
    return frozenset(content_key(one, digest).hex() for one in may_be)


def merged(items: Iterable[Item]) -> list[Item]:
    """Each source once, with the captions and columns of all its rows."""
    found: dict[Source, Item] = {}
    for item in items:
        known = found.get(item.source)
        if known is not None:
            captions = tuple(dict.fromkeys((*known.captions, *item.captions)))
            names = dict.fromkeys((*known.columns, *item.columns))
            columns = {
                name: tuple(dict.fromkeys((*known.columns.get(name, ()), *item.columns.get(name, ()))))
                for name in names
            }
            item = Item(item.source, captions, columns, item.duration)
        found[item.source] = item
    return list(found.values())


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
