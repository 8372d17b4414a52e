"""Collect the items of a folder or a manifest, and list the files that were not indexed."""

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from triptych.csv_files import escape_cell
from triptych.data import manifest
from triptych.data.cache import content_key
from triptych.data.loader import source_of
from triptych.data.manifest import Manifest, Row
from triptych.errors import CollectionError, MediaError, UsageError
from triptych.files import remove_stale_temp_files, write_text
from triptych.interfaces import Modality, Source
from triptych.media import audio, modalities_of, video
from triptych.search.item import Item
from triptych.space import Space

SYSTEM_FILES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini"})  # written by operating systems
UNSUPPORTED_FORMAT = "unsupported format: convert the file"
NON_UTF8_NAME = "the path is not valid UTF-8: rename the file or its folder"
NOT_A_FILE = "not a regular file or a link to a regular file"
LINKED_FOLDER = "links to folders are not followed: index the linked folder separately"
DEFAULT_SEGMENT_SECONDS = 10.0  # length of a video segment if no audio encoder limits the length


@dataclass(frozen=True)
class SkippedPath:
    """A file or folder that was skipped, with the reason."""

    path: Path
    reason: str
    is_folder: bool = False

    @property
    def extension(self) -> str:
        """The file extension in lower case; skipped files are counted by extension."""
        if self.is_folder:
            return "folder"
        suffix = self.path.suffix.lower()
        return suffix if re.fullmatch(r"\.\w{1,8}", suffix) else "no extension"


@dataclass(frozen=True)
class PathScan:
    """The items of a folder or manifest, and the files that were skipped."""

    path: Path
    items: list[Item]
    skipped: list[SkippedPath]
    manifest: Manifest | None  # None if the path is a folder
    has_unused_manifest: bool = False  # True if the folder contains a manifest, whose captions are not used

    def check_not_empty(self, space: Space) -> None:
        """Raise a UsageError if there is nothing to index."""
        if not self.items:
            modalities = ", ".join(space.modalities)
            raise UsageError(f"{self.path}: contains nothing that this space can embed ({modalities})")


def scan_path(
    path: Path, space: Space, split: str | None = None, allow_outside: bool = False, exclude: Path | None = None
) -> PathScan:
    """Collect the items of a folder, without the folder `exclude`, of one file, or of a manifest, with captions."""
    if path.is_dir():
        if split:
            raise UsageError(f"--split {split}: {path} is a folder; give a manifest, which has splits")
        skipped: list[SkippedPath] = []
        items = list(items_from_folder(path, space, skipped, exclude))
        has_manifest = any((path / name).exists() for name in manifest.MANIFEST_NAMES)
        return PathScan(path, items, skipped, None, has_manifest)
    if modalities_of(path):
        reason = _reason_to_skip(path, [m for m in modalities_of(path) if m in space.modalities])
        if reason:
            raise UsageError(f"{path}: {reason}")
        return PathScan(path, list(_items_from_file(path, space)), [], None)
    table = manifest.read(path, allow_outside)
    rows = (table.split(split) if split else table).rows
    return PathScan(path, list(items_from_rows(rows, space)), [], table)


def collect_media(paths: Iterable[Path], space: Space, allow_outside: bool = False) -> dict[Modality, list[Source]]:
    """Return the images and the audio of folders, files and manifests. Of a manifest with a train split, only that."""
    media: dict[Modality, list[Source]] = {"image": [], "audio": []}
    for path in map(Path.expanduser, paths):
        is_table = not path.is_dir() and not modalities_of(path)
        splits = manifest.read(path, allow_outside).counts.splits if is_table else {}
        for item in scan_path(path, space, "train" if "train" in splits else None, allow_outside).items:
            if item.source.modality in media:
                media[item.source.modality].append(item.source)
    return media


def items_from_folder(
    folder: Path, space: Space, skipped: list[SkippedPath] | None = None, exclude: Path | None = None
) -> Iterator[Item]:
    """Yield the files in a folder and its subfolders that the space can embed, in order of path.

    The folder `exclude` is not searched. Skipped paths are appended to `skipped`, except hidden files and files that
    operating systems write.
    """
    if not folder.is_dir():
        raise CollectionError(f"{folder}: no such folder")
    skipped_paths, excluded = [] if skipped is None else skipped, exclude.resolve() if exclude else None

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
            yield from _items_from_file(path, space)


def _items_from_file(path: Path, space: Space) -> Iterator[Item]:
    """Yield the items of a file: one item per modality of the space, and per segment of a long file."""
    modalities: list[Modality] = [m for m in modalities_of(path) if m in space.modalities]
    for modality in modalities if len(modalities) == 1 else _available_modalities(path, modalities):
        yield from split_into_segments(Item(Source(modality, path.resolve())), space)


def _reason_to_skip(path: Path, modalities: Sequence[Modality]) -> str | None:
    if not modalities:
        file_modalities = modalities_of(path)
        return f"the space has no {' or '.join(file_modalities)} encoder" if file_modalities else UNSUPPORTED_FORMAT
    if not path.is_file():
        return NOT_A_FILE
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        return NON_UTF8_NAME
    return None


def items_from_rows(rows: Sequence[Row], space: Space) -> Iterator[Item]:
    """Yield the files of manifest rows, with captions and columns, and each caption as a text item."""
    for row in rows:
        columns = {name: (value,) for name, value in row.columns.items()}
        for modality in row.modalities:
            if modality == "text" and "text" in space.modalities:
                yield from (Item(Source("text", caption), columns=columns) for caption in row.texts)
            elif modality in space.modalities:
                yield from split_into_segments(Item(source_of(row, modality), row.texts, columns), space)


def split_into_segments(item: Item, space: Space) -> Iterator[Item]:
    """Split audio and video that is longer than the encoder's maximum into segments; yield other items unchanged."""
    source, path, max_seconds = item.source, item.source.path, _max_seconds(item.source.modality, space)
    is_video = len(modalities_of(path)) > 1
    if source.modality == "text" or (source.modality == "image" and not is_video):
        yield item
        return
    try:
        duration = video.read_info(path).duration if is_video else audio.read_duration(path)
    except MediaError:
        yield item  # embedding reports the error
        return
    start, end = source.start or 0.0, min(source.end or duration, duration)
    if end - start <= max_seconds:
        yield replace(item, duration=max(0.0, end - start))
        return
    for first, last in audio.sliding_windows(end - start, max_seconds, space.recipe.data.hop_seconds or max_seconds):
        segment = Source(source.modality, path, start + first, start + last)
        yield replace(item, source=segment, duration=last - first)


def query_content_hashes(source: Source, space: Space) -> frozenset[str]:
    """Return the content hashes that a query file would have in a collection: of the file and of its first segment.

    Return an empty set if the source is not a file, or if the file cannot be read.
    """
    if not isinstance(source.content, Path):
        return frozenset()
    candidates = [source]
    max_seconds = _max_seconds(source.modality, space)
    if source.start is None and source.end is None and math.isfinite(max_seconds):
        candidates.append(replace(source, start=0.0, end=float(max_seconds)))
    try:
        with source.content.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return frozenset()
    return frozenset(content_key(candidate, digest).hex() for candidate in candidates)


def _max_seconds(modality: Modality, space: Space) -> float:
    """Return the maximum length of a segment in seconds: the maximum of the audio encoder, also for video frames."""
    max_seconds = space.encoder("audio").max_seconds if "audio" in space.modalities else math.inf
    return max_seconds if modality == "audio" or math.isfinite(max_seconds) else DEFAULT_SEGMENT_SECONDS


def _available_modalities(path: Path, modalities: list[Modality]) -> list[Modality]:
    """Return the modalities that a video file contains: image for a video stream, audio for an audio stream."""
    try:
        info = video.read_info(path)
    except MediaError:
        return modalities[:1]  # one modality, so that embedding reports the error once
    return [m for m in modalities if (info.has_video if m == "image" else info.has_audio)]


def write_not_indexed(path: Path, failures: Mapping[Source, str], skipped: Iterable[SkippedPath]) -> bool:
    """Write the list of files that were not indexed. If there are none, delete the list and return False.

    Each line has a path, a tab and the reason. Non-printable characters are escaped, and so are cells that a
    spreadsheet program would execute as formulas.
    """
    rows = [(_format_name(source), message.removeprefix(f"{source.content}: ")) for source, message in failures.items()]
    rows += [(_format_name(skip.path), skip.reason) for skip in skipped]
    lines = dict.fromkeys(f"{_format_cell(name)}\t{_format_cell(reason)}" for name, reason in rows)
    remove_stale_temp_files(path.parent, [path.name])
    if lines:
        write_text(path, "".join(f"{line}\n" for line in ("file\treason", *sorted(lines))))
    else:
        path.unlink(missing_ok=True)
    return bool(lines)


def _format_name(source_or_path: Source | Path) -> str:
    """Return a path and its segment as text. Bytes that are not UTF-8 are written as \\xNN."""
    if isinstance(source_or_path, Source) and isinstance(source_or_path.content, str):
        return str(source_or_path)
    return os.fsencode(str(source_or_path)).decode("utf-8", "backslashreplace")


def _format_cell(text: str) -> str:
    return escape_cell("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))
