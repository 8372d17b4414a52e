"""A local copy of a data set, and how things are found in it: what is missing is named with what was there instead."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from triptych.data.problems import shown
from triptych.errors import ManifestError

DEEPEST = 3  # how many folders down we look for where files lie
MOST_FOLDERS = 5000
SAMPLE = 50  # so many names decide where files lie


@dataclass(frozen=True)
class Copy:
    """Where a copy lies, which source reads it, and the folder that may hold what has to be unpacked from it."""

    source: str
    path: Path  # a folder, or one archive
    room: Path

    def missing(self, what: str) -> ManifestError:
        """The error for something that is not where it should be."""
        if not self.path.exists():
            return ManifestError(f"{self.path}: no such file or folder; {self.source} expects {what}")
        if not self.path.is_dir():
            return ManifestError(f"{self.path}: is a file; {self.source} expects a folder with {what}")
        names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in self.path.iterdir())
        found = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
        return ManifestError(
            f"{self.path}: {self.source} expects {what} here; found: {found or 'nothing'}. "
            f"`triptych data --list` shows every source's layout"
        )

    def file(self, *names: str) -> Path:
        """The first of these files that is there, in the folder or one below it."""
        found = self.seek(*names)
        if found is None:
            raise self.missing(" or ".join(names))
        return found

    def seek(self, *names: str) -> Path | None:
        """As `file`, but None where there is none."""
        if not self.path.is_dir():
            return None
        for name in names:
            found = sorted((*self.path.glob(name), *self.path.glob(f"*/{name}")))
            if found:
                return found[0]
        return None

    def all(self, *patterns: str) -> list[Path]:
        """All files of these patterns, at any depth, in order."""
        if not self.path.is_dir():
            return []
        return sorted({path for pattern in patterns for path in self.path.rglob(pattern) if path.is_file()})

    def base(self, names: Iterable[str], what: str, prefer: str = "") -> Path:
        """The folder under which most of these files lie; of equal ones, one whose name holds `prefer`."""
        sample = list(islice(names, SAMPLE))
        best, most = None, (0, False)
        for folder in folders(self.path):
            found = sum((folder / name).is_file() for name in sample)
            key = (found, prefer != "" and prefer in folder.name)
            if found and key > most:
                best, most = folder, key
        if best is None:
            raise self.missing(f"{what} such as {sample[0] if sample else 'any'}")
        return best


def folders(root: Path) -> list[Path]:
    """A folder and those in it, those near the top first."""
    found, layer = [root], [root]
    for _ in range(DEEPEST):
        layer = [entry for folder in layer for entry in sorted(folder.iterdir()) if entry.is_dir()]
        found += layer
        if len(found) > MOST_FOLDERS:
            break
    return found[:MOST_FOLDERS]


def read_csv(path: Path, columns: Sequence[str], **form: Any) -> list[dict[str, str]]:
    """The rows of a CSV file that must have these columns."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, **form)
        try:
            rows = list(reader)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ManifestError(f"{path}: cannot be read as CSV: {error}") from error
    absent = [name for name in columns if name not in (reader.fieldnames or ())]
    if absent:
        found = ", ".join(reader.fieldnames or ()) or "nothing"
        raise ManifestError(f"{path}: has no column {', '.join(absent)}; found: {found}")
    return rows


def read_json(path: Path, *keys: str) -> Any:
    """A JSON file; an object must have these keys."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path}: cannot be read as JSON: {error}") from error
    if keys and not (isinstance(content, dict) and all(key in content for key in keys)):
        raise ManifestError(f"{path}: should be a JSON object with {', '.join(keys)}")
    return content


def pick(entry: Any, path: Path, *keys: str) -> tuple[str, ...]:
    """The values of these keys as texts, out of one entry of a JSON file."""
    absent = [key for key in keys if not isinstance(entry, dict) or not isinstance(entry.get(key), str | int)]
    if absent:
        raise ManifestError(f"{path}: an entry has no {' and no '.join(absent)}: {shown(entry)}")
    return tuple(str(entry[key]) for key in keys)


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that hold something."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    return [line.strip() for line in text.split("\n") if line.strip()]
