"""What can be found: files, moments of long ones and texts, as a folder or a manifest has them."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from triptych.data import manifest
from triptych.data.cache import content_key
from triptych.data.loader import source_of
from triptych.data.manifest import Manifest, Row
from triptych.errors import CollectionError, MediaError, UsageError
from triptych.interfaces import Modality, Source
from triptych.media import audio, modalities_of, video
from triptych.space import Space

SYSTEM_FILES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini"})  # what systems write; they hide most others
UNSUPPORTED_FORMAT = "triptych does not read this format: convert the file"
NON_UTF8_NAME = "the name is not UTF-8: rename the file or its folder"
NOT_A_FILE = "neither a file nor a link to one"
LINKED_FOLDER = "a link to a folder is not followed: index that folder, too"
DEFAULT_SEGMENT_SECONDS = 10.0  # seconds of a film that become one item, where no sound encoder says otherwise


@dataclass(frozen=True)
class Item:
    """Something to be found: a file, a moment of one, or a text; with what else is known of it."""

    source: Source
    captions: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of the manifest, by name
    duration: float | None = None  # seconds, of a sound or film

    @property
    def identity(self) -> str:
        """What makes it this item: where its content is, and which moment."""
        return f"{self.source.modality}:{self.source.content}:{self.source.start}:{self.source.end}"

    @property
    def id(self) -> str:
        """Its short name, the same whenever and wherever it is indexed from this place."""
        return hashlib.sha256(self.identity.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class SkippedPath:
    """A file or folder that was passed over, and why."""

    path: Path
    reason: str
    is_folder: bool = False

    @property
    def extension(self) -> str:
        """What it is counted as: the ending of its name, in small letters."""
        if self.is_folder:
            return "folder"
        suffix = self.path.suffix.lower()
        return suffix if re.fullmatch(r"\.\w{1,8}", suffix) else "without an ending"


@dataclass(frozen=True)
class PathScan:
    """The items of a folder or manifest, and the files that were skipped."""

    path: Path
    items: list[Item]
    skipped: list[SkippedPath]
    manifest: Manifest | None  # None: the path is a folder
    has_unused_manifest: bool = False  # the folder contains a manifest, whose captions are not used

    def check_not_empty(self, space: Space) -> None:
        """Raise a UsageError if there is nothing to index."""
        if not self.items:
            modalities = ", ".join(space.modalities)
            raise UsageError(f"{self.path}: nothing here that this space can embed ({modalities})")


def scan_path(
    path: Path, space: Space, split: str | None = None, allow_outside: bool = False, exclude: Path | None = None
) -> PathScan:
    """Collect the items of a folder, or of a manifest with their captions; nothing below the folder `exclude`."""
    if path.is_dir():
        if split:
            raise UsageError(f"--split {split} needs a manifest; {path} is a folder")
        skipped: list[SkippedPath] = []
        items = list(items_from_folder(path, space, skipped, exclude))
        has_manifest = any((path / name).exists() for name in manifest.MANIFEST_NAMES)
        return PathScan(path, items, skipped, None, has_manifest)
    if modalities_of(path):
        raise UsageError(f"{path}: is a single file; give the folder it is in, or a manifest")
    table = manifest.read(path, allow_outside)
    rows = (table.split(split) if split else table).rows
    return PathScan(path, list(items_from_rows(rows, space)), [], table)


def items_from_folder(
    folder: Path, space: Space, skipped: list[SkippedPath] | None = None, exclude: Path | None = None
) -> Iterator[Item]:
    """Every file below a folder that the space can embed, in order of path; nothing below the folder `except_for`.

    What is passed over is appended to `skipped`, except hidden files and those that systems write beside a user's own.
    """
    if not folder.is_dir():
        raise CollectionError(f"{folder}: no such folder")
    skipped_paths = [] if skipped is None else skipped
    excluded = exclude.resolve() if exclude else None

    def record_unreadable(error: OSError) -> None:
        skipped_paths.append(SkippedPath(Path(error.filename), f"cannot be read ({error.strerror})", is_folder=True))

    for directory_name, folders, files in os.walk(folder.resolve(), onerror=record_unreadable):
        directory = Path(directory_name)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and directory / name != excluded)
        links = [path for name in folders if (path := directory / name).is_symlink()]
        skipped_paths.extend(SkippedPath(path, LINKED_FOLDER, is_folder=True) for path in links)
        for name in sorted(files):
            path = directory / name
            if name.startswith(".") or name.lower() in SYSTEM_FILES:
                continue
            modalities: list[Modality] = [m for m in modalities_of(path) if m in space.modalities]
            reason = _reason_to_skip(path, modalities)
            if reason:
                skipped_paths.append(SkippedPath(path, reason))
                continue
            for modality in modalities if len(modalities) == 1 else _available_modalities(path, modalities):
                yield from split_into_segments(Item(Source(modality, path.resolve())), space)


def _reason_to_skip(path: Path, modalities: Sequence[Modality]) -> str | None:
    if not modalities:
        file_modalities = modalities_of(path)
        return f"this space has no {' or '.join(file_modalities)}" if file_modalities else UNSUPPORTED_FORMAT
    if not path.is_file():
        return NOT_A_FILE
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        return NON_UTF8_NAME
    return None


def items_from_rows(rows: Sequence[Row], space: Space) -> Iterator[Item]:
    """Every file of a manifest's rows with its captions and columns, and every caption as a text."""
    for row in rows:
        columns = {name: (value,) for name, value in row.columns.items()}
        for modality in row.modalities:
            if modality == "text" and "text" in space.modalities:
                yield from (Item(Source("text", caption), columns=columns) for caption in row.texts)
            elif modality in space.modalities:
                yield from split_into_segments(Item(source_of(row, modality), row.texts, columns), space)


def split_into_segments(item: Item, space: Space) -> Iterator[Item]:
    """What lasts longer than its encoder takes at once as several moments; anything else as it is."""
    source = item.source
    max_seconds = space.encoder(source.modality).max_seconds if source.modality == "audio" else _segment_seconds(space)
    path = Path(source.content)
    is_video = len(modalities_of(path)) > 1
    if source.modality == "text" or (source.modality == "image" and not is_video):
        yield item
        return
    try:
        duration = video.read_info(path).duration if is_video else audio.read_duration(path)
    except MediaError:
        yield item  # embedding it will say what is wrong, once
        return
    start, end = source.start or 0.0, min(source.end or duration, duration)
    if end - start <= max_seconds:
        yield Item(source, item.captions, item.columns, max(0.0, end - start))
        return
    for first, last in audio.sliding_windows(end - start, max_seconds, space.recipe.data.hop_seconds or max_seconds):
        segment = Source(source.modality, path, start + first, start + last)
        yield Item(segment, item.captions, item.columns, last - first)


def query_content_hashes(source: Source, space: Space) -> frozenset[str]:
    """The contents under which a collection holds the file of a query: the whole file, or its first moment.

    Empty where the source is no file, or cannot be read.
    """
    if not isinstance(source.content, Path):
        return frozenset()
    candidates = [source]
    max_seconds = space.encoder("audio").max_seconds if source.modality == "audio" else _segment_seconds(space)
    if source.start is None and source.end is None and math.isfinite(max_seconds):
        candidates.append(replace(source, start=0.0, end=float(max_seconds)))
    try:
        with source.content.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return frozenset()
    return frozenset(content_key(one, digest).hex() for one in candidates)


def merge_items(items: Iterable[Item]) -> list[Item]:
    """Each source once, with the captions and columns of all its rows."""
    by_source: dict[Source, Item] = {}
    for item in items:
        existing = by_source.get(item.source)
        if existing is not None:
            captions = tuple(dict.fromkeys((*existing.captions, *item.captions)))
            names = dict.fromkeys((*existing.columns, *item.columns))
            columns = {
                name: tuple(dict.fromkeys((*existing.columns.get(name, ()), *item.columns.get(name, ()))))
                for name in names
            }
            item = Item(item.source, captions, columns, item.duration)
        by_source[item.source] = item
    return list(by_source.values())


def _segment_seconds(space: Space) -> float:
    """How long a moment of a film is: what the sound encoder hears at once, so that both sides have the same."""
    max_seconds = space.encoder("audio").max_seconds if "audio" in space.modalities else math.inf
    return max_seconds if math.isfinite(max_seconds) else DEFAULT_SEGMENT_SECONDS


def _available_modalities(path: Path, modalities: list[Modality]) -> list[Modality]:
    """What a film has of what the space knows: some are silent, some are sound alone."""
    try:
        info = video.read_info(path)
    except MediaError:
        return modalities[:1]  # embedding it will say what is wrong, once
    return [m for m in modalities if (info.has_video if m == "image" else info.has_audio)]
