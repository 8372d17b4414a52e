"""Parse the cells of a manifest row: files, captions, metadata and segment."""

import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, TypeVar

from triptych.data.manifest_problems import InvalidCellError, ManifestProblem, Severity, to_printable
from triptych.errors import describe_unknown
from triptych.media import AUDIO_EXTENSIONS, IMAGE_EXTENSIONS, VIDEO_EXTENSIONS

MediaType = Literal["audio", "image", "video"]
MEDIA_EXTENSIONS: dict[MediaType, frozenset[str]] = {
    "audio": AUDIO_EXTENSIONS,
    "image": IMAGE_EXTENSIONS,
    "video": VIDEO_EXTENSIONS,
}
MEDIA_TYPE_BY_EXTENSION: dict[str, MediaType] = {
    extension: media_type for media_type, extensions in MEDIA_EXTENSIONS.items() for extension in extensions
}
METADATA_COLUMNS = ("id", "group", "split", "label")
SEGMENT_COLUMNS = ("start", "end")
MAX_SECONDS = 1e7  # maximum of `start` and `end`, about four months
CAPTION_COLUMNS = ("text", "caption", "captions")
KNOWN_COLUMNS = (*MEDIA_EXTENSIONS, *CAPTION_COLUMNS, *METADATA_COLUMNS, *SEGMENT_COLUMNS, "file_name")
NUMBERED_CAPTION_COLUMN = re.compile(r"caption_(\d{1,6})")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
FILE_NAME_COLUMN = re.compile(r"(?:(\w+)_)?file_name")  # columns of Hugging Face folders: file_name, image_file_name, …

T = TypeVar("T")


def is_known_column(name: str) -> bool:
    """Return whether a column is part of the manifest format."""
    return name in KNOWN_COLUMNS or is_caption_column(name) or _is_file_name_column(name)


def is_caption_column(name: str) -> bool:
    """Return whether a column has captions."""
    return name in CAPTION_COLUMNS or NUMBERED_CAPTION_COLUMN.fullmatch(name) is not None


def _is_file_name_column(name: str) -> bool:
    return FILE_NAME_COLUMN.fullmatch(name) is not None


def find_file_columns(columns: Iterable[str]) -> dict[str, MediaType | None]:
    """Return the columns that have files, with their media type; None if the extension of each file decides."""
    file_columns = [name for name in columns if name in MEDIA_EXTENSIONS or _is_file_name_column(name)]
    return {name: _media_type_of_column(name) for name in file_columns}


def describe_unknown_column(name: str) -> str:
    """Return a message about an unknown column, with a suggestion."""
    number = re.search(r"\d{1,6}$", name)
    known_columns = (*KNOWN_COLUMNS, f"caption_{number[0] if number else 1}")
    lowercase_name = name.strip().lower()
    if lowercase_name in known_columns:  # the edit distance of AUDIO and audio is too large for a suggestion
        return f"column {to_printable(name)!r} is unknown; did you mean {lowercase_name!r}?"
    return describe_unknown("column", to_printable(name), known_columns)


@dataclass(frozen=True)
class ParsedRow:
    """The parsed cells of a row without errors."""

    files: dict[MediaType, Path | None]
    texts: tuple[str, ...]
    metadata: dict[str, str | None]  # id, group, split and label; None if the row has no value
    start: float | None
    end: float | None


class FileResolver:
    """Resolves the paths in a manifest.

    A manifest from an untrusted source must not give access to arbitrary files. A path that leaves the manifest's
    folder (absolute, through `..` or through a symlink) is an error unless `allow_outside` is set.
    """

    def __init__(self, root: Path, media_root: Path, allow_outside: bool = False) -> None:
        self.root = root.resolve()
        self.media_root = str(media_root.absolute())  # the base of relative paths
        self.allow_outside = allow_outside
        self._folder_is_inside: dict[str, bool] = {}  # realpath() takes a system call for each component of a path

    def resolve(self, name: str) -> Path:
        """Return the path of an existing, non-empty, readable file; raise an InvalidCellError otherwise."""
        # Paths are strings, because pathlib would take most of the time to read a long manifest.
        path = os.path.join(self.media_root, name)  # noqa: PTH118
        if not self._is_allowed_folder(os.path.split(path)[0]):
            raise self._outside_error(name)
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                if not self._is_inside(path):
                    raise self._outside_error(name)
                status = os.stat(path)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            hint = " (write / between folders, not \\)" if "\\" in name else ""
            raise InvalidCellError("missing file", f"no such file: {to_printable(name)}{hint}") from None
        except OSError as error:
            message = f"cannot be read ({error.strerror}): {to_printable(name)}"
            raise InvalidCellError("unreadable file", message) from None
        if not stat.S_ISREG(status.st_mode):
            raise InvalidCellError("not a file", f"is not a file: {to_printable(name)}")
        if status.st_size == 0:
            raise InvalidCellError("empty file", f"the file is empty: {to_printable(name)}")
        return Path(path)

    def _is_allowed_folder(self, folder: str) -> bool:
        is_inside = self._folder_is_inside.get(folder)
        if is_inside is None:
            is_inside = self._folder_is_inside[folder] = self._is_inside(folder)
        return is_inside

    def _is_inside(self, path: str) -> bool:
        return self.allow_outside or Path(os.path.realpath(path)).is_relative_to(self.root)

    @staticmethod
    def _outside_error(name: str) -> InvalidCellError:
        message = f"leaves the manifest's folder: {to_printable(name)}; to allow this, use --allow-outside"
        return InvalidCellError("outside path", message)


class RowParser:
    """Parses rows and collects the problems of all rows."""

    def __init__(self, columns: Iterable[str], resolver: FileResolver, has_only_strings: bool) -> None:
        columns = tuple(columns)
        self.resolver = resolver
        self.problems: list[ManifestProblem] = []
        # Classify the columns once, not for each row.
        self.file_columns = find_file_columns(columns)
        self._caption_columns = sorted(filter(is_caption_column, columns), key=_caption_sort_key)
        self._json_list_columns = frozenset(CAPTION_COLUMNS if has_only_strings else ())
        self._row_number = 0
        self._has_error = False

    def parse(self, number: int, cells: dict[str, Any]) -> ParsedRow | None:
        """Return the parsed cells of a row, or None if the row has an error."""
        self._row_number, self._has_error = number, False
        files = self._parse_files(cells)
        texts = self._parse_texts(cells)
        metadata = {name: self._parse_cell(name, _parse_string, cells.get(name)) for name in METADATA_COLUMNS}
        start, end = (self._parse_cell(name, _parse_seconds, cells.get(name)) for name in SEGMENT_COLUMNS)
        if end is not None and end <= (start or 0.0):
            self._add_problem("error", "wrong time", "end", f"{end:g} s is not after start, {start or 0:g} s")
        if not self._has_error and not texts and not any(files.values()):
            self._add_problem("error", "empty row", None, "has no audio, image, video or text")
        return None if self._has_error else ParsedRow(files, texts, metadata, start, end)

    def _parse_files(self, cells: dict[str, Any]) -> dict[MediaType, Path | None]:
        files: dict[MediaType, Path | None] = dict.fromkeys(MEDIA_EXTENSIONS)
        for column, column_type in self.file_columns.items():
            name = self._parse_cell(column, _parse_file_name, cells.get(column))
            path = self._parse_cell(column, self.resolver.resolve, name) if name else None
            if name is None or path is None:
                continue
            media_type = column_type or self._parse_cell(column, _media_type_of_file, name)
            if media_type is None:
                continue
            if files[media_type] is not None:
                message = f"a second {media_type} file: {to_printable(name)}; use one row per file"
                self._add_problem("error", "two files", column, message)
            elif _extension(name) not in MEDIA_EXTENSIONS[media_type]:
                extensions = " ".join(sorted(MEDIA_EXTENSIONS[media_type]))
                message = f"{to_printable(name)} has none of the extensions for {media_type}: {extensions}"
                self._add_problem("warning", "unexpected extension", column, message)
            files[media_type] = path
        return files

    def _parse_texts(self, cells: dict[str, Any]) -> tuple[str, ...]:
        texts: list[str] = []
        unique_texts: set[str] = set()
        for column in self._caption_columns:
            cell = cells.get(column)
            if column in self._json_list_columns and isinstance(cell, str) and cell.startswith("["):
                cell = _parse_json_list(cell)
            for text in self._parse_cell(column, _parse_captions, cell) or ():
                if not text.strip():
                    self._add_problem("warning", "empty caption", column, "is empty and ignored")
                    continue
                if text in unique_texts:
                    message = f"is repeated in this row: {to_printable(text, 60)}"
                    self._add_problem("warning", "duplicate caption", column, message)
                texts.append(text)
                unique_texts.add(text)
        return tuple(texts)

    def _parse_cell(self, column: str, parse: Callable[[Any], T], cell: Any) -> T | None:
        try:
            return parse(cell)
        except InvalidCellError as error:
            self._add_problem("error", error.category, column, error.message)
            return None

    def _add_problem(self, severity: Severity, category: str, column: str | None, message: str) -> None:
        self._has_error |= severity == "error"
        self.problems.append(ManifestProblem(severity, category, self._row_number, column, message))


def _caption_sort_key(column: str) -> tuple[int, str]:
    # The order is text, caption, captions, then caption_1, caption_2, …, caption_10 in numerical order.
    match = NUMBERED_CAPTION_COLUMN.fullmatch(column)
    return len(CAPTION_COLUMNS) + int(match[1]) if match else CAPTION_COLUMNS.index(column), column


def _parse_captions(cell: Any) -> list[str]:
    if is_missing(cell):
        return []
    captions = cell if isinstance(cell, list) else [cell]
    return [_parse_text(caption) for caption in captions if not is_missing(caption)]


def _parse_json_list(cell: str) -> str | list[str]:
    """Parse a CSV cell with a JSON list of strings; return other cells, such as "[music] plays", as they are."""
    try:
        captions = json.loads(cell)
    except (ValueError, RecursionError):
        return cell
    return captions if isinstance(captions, list) and all(isinstance(text, str) for text in captions) else cell


def is_missing(cell: Any) -> bool:
    """Return whether a cell is empty: None or NaN."""
    return cell is None or (isinstance(cell, float) and math.isnan(cell))  # pandas stores missing values as NaN


def _parse_text(cell: Any) -> str:
    if not isinstance(cell, str):
        nested = " nested" if isinstance(cell, dict | list) else ""
        raise InvalidCellError("not text", f"must be text, is{nested} {type(cell).__name__}: {to_printable(cell, 60)}")
    # A null character is invalid in file names and a lone surrogate in UTF-8, but JSON can encode both.
    if "\0" in cell or (not cell.isascii() and LONE_SURROGATE.search(cell)):
        raise InvalidCellError("not text", f"contains a null character or a lone surrogate: {to_printable(cell, 60)}")
    return cell


def _parse_string(cell: Any) -> str | None:
    if is_missing(cell):
        return None
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)  # pandas writes integers as floats if a column has missing values
    if isinstance(cell, int | float):
        cell = str(cell)
    return _parse_text(cell).strip() or None


def _parse_file_name(cell: Any) -> str | None:
    return None if is_missing(cell) or not _parse_text(cell).strip() else cell


def _extension(name: str) -> str:
    return f".{name.rpartition('.')[2].lower()}"


def media_type_from_suffix(path: PurePath) -> MediaType | None:
    """Return the media type, which is also the manifest column, for a file's suffix; None if the suffix is unknown."""
    return MEDIA_TYPE_BY_EXTENSION.get(path.suffix.lower())


def _media_type_of_column(column: str) -> MediaType | None:
    """Return the media type in a column's name; None if the file's extension decides, as for `file_name`."""
    match = FILE_NAME_COLUMN.fullmatch(column)
    type_name = match[1] if match else column
    return next((media_type for media_type in MEDIA_EXTENSIONS if media_type == type_name), None)


def _media_type_of_file(name: str) -> MediaType:
    media_type = MEDIA_TYPE_BY_EXTENSION.get(_extension(name))
    if media_type is None:
        problem = f"{to_printable(name)} has no extension of audio, image or video"
        raise InvalidCellError("unknown extension", f"{problem}; use a column named audio, image or video")
    return media_type


def _parse_seconds(cell: Any) -> float | None:
    if cell == "" or is_missing(cell):
        return None
    try:
        seconds = math.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise InvalidCellError("wrong time", f"must be a number of seconds, is {to_printable(cell, 60)!r}")
    if seconds > MAX_SECONDS:
        raise InvalidCellError("wrong time", f"is longer than any file: {seconds:g} s")
    if seconds < 0:
        raise InvalidCellError("wrong time", f"is negative: {seconds:g} s")
    return seconds
