"""What the columns of a manifest mean: the cells of one row -> files, captions, words and a moment."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from triptych.data.folder import Folder
from triptych.data.problems import Problem, UnfitError, shown
from triptych.errors import unknown
from triptych.media import AUDIO_ENDINGS, IMAGE_ENDINGS, VIDEO_ENDINGS

FileKind = Literal["audio", "image", "video"]
ENDINGS: dict[FileKind, frozenset[str]] = {"audio": AUDIO_ENDINGS, "image": IMAGE_ENDINGS, "video": VIDEO_ENDINGS}
WORDS = ("id", "group", "split", "label")
MOMENT = ("start", "end")
LONGEST = 1e7  # seconds, about four months: no file is longer
CAPTIONS = ("text", "caption", "captions")
KNOWN = (*ENDINGS, *CAPTIONS, *WORDS, *MOMENT, "file_name")
NUMBERED_CAPTION = re.compile(r"caption_(\d{1,6})")
HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # a lone surrogate
FILE_NAME = re.compile(r"(?:(\w+)_)?file_name")  # Hugging Face folders: file_name, image_file_name, …

T = TypeVar("T")


def is_known(name: str) -> bool:
    """Whether a column means something here."""
    return name in KNOWN or _is_caption(name) or _is_file_name(name)


def _is_caption(name: str) -> bool:
    return name in CAPTIONS or NUMBERED_CAPTION.fullmatch(name) is not None


def _is_file_name(name: str) -> bool:
    return FILE_NAME.fullmatch(name) is not None


def meant(name: str) -> str:
    """What to say of a column that is not known: which ones are, and which it was probably meant to be."""
    number = re.search(r"\d{1,6}$", name)
    known = (*KNOWN, f"caption_{number[0] if number else 1}")
    plain = name.strip().lower()
    if plain in known:  # closeness counts letters, and by that AUDIO is as far from audio as can be
        return f"column {shown(name)!r} is unknown; did you mean {plain!r}?"
    return unknown("column", shown(name), known)


@dataclass(frozen=True)
class Content:
    """What one row holds, once every cell of it could be read."""

    files: dict[FileKind, Path | None]
    texts: tuple[str, ...]
    words: dict[str, str | None]  # id, group, split, label: those the row has
    start: float | None
    end: float | None


class RowReader:
    """Reads rows one by one and collects what is wrong with them."""

    def __init__(self, columns: Iterable[str], folder: Folder, only_strings: bool) -> None:
        columns = tuple(columns)
        self.folder = folder
        self.problems: list[Problem] = []
        # What a column means is decided here, once, not in each of perhaps a million rows.
        self._file_columns: dict[str, FileKind | None] = {
            name: _stated_kind(name) for name in columns if name in ENDINGS or _is_file_name(name)
        }
        self._caption_columns = sorted(filter(_is_caption, columns), key=_caption_order)
        self._json_lists = frozenset(CAPTIONS if only_strings else ())
        self._row = 0
        self._failed = False

    def read(self, number: int, cells: dict[str, Any]) -> Content | None:
        """The content of a row, or None if an error makes it unusable."""
        self._row, self._failed = number, False
        files = self._files(cells)
        texts = self._texts(cells)
        words = {name: self._try(name, _word, cells[name]) for name in WORDS if name in cells}
        start, end = (self._try(name, _seconds, cells[name]) if name in cells else None for name in MOMENT)
        if end is not None and end <= (start or 0.0):
            self._error("wrong time", "end", f"{end:g} s is not after start, {start or 0:g} s")
        if not self._failed and not texts and not any(files.values()):
            self._error("empty row", None, "has no audio, image, video or text")
        return None if self._failed else Content(files, texts, words, start, end)

    def _files(self, cells: dict[str, Any]) -> dict[FileKind, Path | None]:
        files: dict[FileKind, Path | None] = dict.fromkeys(ENDINGS)
        for column, stated in self._file_columns.items():
            name = self._try(column, _file_name, cells.get(column))
            path = self._try(column, self.folder.locate, name) if name else None
            if name is None or path is None:
                continue
            kind = stated or self._try(column, _kind_by_ending, name)
            if kind is None:
                continue
            if files[kind] is not None:
                self._error("two files", column, f"a second {kind} file: {shown(name)}; give each its own row")
            elif _ending(name) not in ENDINGS[kind]:
                message = f"{shown(name)} does not end like {kind}: {' '.join(sorted(ENDINGS[kind]))}"
                self._warn("unexpected extension", column, message)
            files[kind] = path
        return files

    def _texts(self, cells: dict[str, Any]) -> tuple[str, ...]:
        texts: list[str] = []
        seen: set[str] = set()
        for column in self._caption_columns:
            cell = cells.get(column)
            if column in self._json_lists and isinstance(cell, str) and cell.startswith("["):
                cell = _json_list(cell)
            for text in self._try(column, _captions, cell) or ():
                if not text.strip():
                    self._warn("empty caption", column, "is empty, so it is left out")
                    continue
                if text in seen:
                    self._warn("duplicate caption", column, f"stands twice in this row: {shown(text, 60)}")
                texts.append(text)
                seen.add(text)
        return tuple(texts)

    def _try(self, column: str, parse: Callable[[Any], T], cell: Any) -> T | None:
        try:
            return parse(cell)
        except UnfitError as unfit:
            self._error(unfit.kind, column, unfit.message)
            return None

    def _error(self, kind: str, column: str | None, message: str) -> None:
        self._failed = True
        self.problems.append(Problem("error", kind, self._row, column, message))

    def _warn(self, kind: str, column: str | None, message: str) -> None:
        self.problems.append(Problem("warning", kind, self._row, column, message))


def _caption_order(column: str) -> tuple[int, str]:
    # text, caption, captions, then caption_1, caption_2, … caption_10: by number, not by spelling.
    numbered = NUMBERED_CAPTION.fullmatch(column)
    return (len(CAPTIONS) + int(numbered[1]), column) if numbered else (CAPTIONS.index(column), column)


def _captions(cell: Any) -> list[str]:
    if _is_missing(cell):
        return []
    captions = cell if isinstance(cell, list) else [cell]
    return [_text(caption) for caption in captions if not _is_missing(caption)]


def _json_list(cell: str) -> str | list[str]:
    """A CSV cell that is a JSON list of strings is several captions; "[music] plays" is one."""
    try:
        captions = json.loads(cell)
    except (ValueError, RecursionError):
        return cell
    return captions if isinstance(captions, list) and all(isinstance(text, str) for text in captions) else cell


def _is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))  # NaN is how pandas writes "nothing here"


def _text(cell: Any) -> str:
    if not isinstance(cell, str):
        nested = " nested" if isinstance(cell, dict | list) else ""
        raise UnfitError("not text", f"should be text, is{nested} {type(cell).__name__}: {shown(cell, 60)}")
    # Neither can stand in a file name, be printed or be sent on; both can be written in JSON.
    if "\0" in cell or (not cell.isascii() and HALF_CHARACTER.search(cell)):
        raise UnfitError("not text", f"holds a null character or half a character: {shown(cell, 60)}")
    return cell


def _word(cell: Any) -> str | None:
    if _is_missing(cell):
        return None
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)  # pandas turns a column of whole numbers with gaps into 3.0, 7.0, …
    if isinstance(cell, int | float):
        cell = str(cell)
    return _text(cell).strip() or None


def _file_name(cell: Any) -> str | None:
    return None if _is_missing(cell) or not _text(cell).strip() else cell


def _ending(name: str) -> str:
    return f".{name.rpartition('.')[2].lower()}"


def _stated_kind(column: str) -> FileKind | None:
    """The kind a column's name states; None where the file's ending has to tell, as for file_name."""
    named = FILE_NAME.fullmatch(column)
    stated = named[1] if named else column
    for kind in ENDINGS:
        if stated == kind:
            return kind
    return None


def _kind_by_ending(name: str) -> FileKind:
    for kind, endings in ENDINGS.items():
        if _ending(name) in endings:
            return kind
    message = f"{shown(name)} does not end like audio, image or video; name the column audio, image or video instead"
    raise UnfitError("unknown extension", message)


def _seconds(cell: Any) -> float | None:
    if cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell)):
        return None  # NaN is how pandas writes an empty number
    try:
        seconds = math.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise UnfitError("wrong time", f"should be seconds, is {shown(cell, 60)!r}")
    if seconds > LONGEST:
        raise UnfitError("wrong time", f"is beyond any file: {seconds:g} s")
    if seconds < 0:
        raise UnfitError("wrong time", f"is before the beginning: {seconds:g} s")
    return seconds
