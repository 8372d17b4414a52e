"""Find and read files in a local copy of a dataset. Errors name the expected files and the files that exist."""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from triptych.data.manifest_problems import to_printable
from triptych.data.row_parser import MediaType, media_type_from_suffix
from triptych.errors import ManifestError

MAX_DEPTH, MAX_FOLDERS = 3, 5000  # limits of the search for a base folder
SAMPLE_SIZE = 50  # number of file names that are tested in each folder


@dataclass(frozen=True)
class LocalCopy:
    """A local copy of a dataset, and the folder to which files of the copy are unpacked."""

    dataset_name: str
    path: Path  # a folder or an archive
    unpack_folder: Path

    def missing_error(self, expected: str) -> ManifestError:
        """Build the error for missing files."""
        if not self.path.exists():
            return ManifestError(f"{self.path}: no such file or folder; {self.dataset_name} expects {expected}")
        if not self.path.is_dir():
            return ManifestError(f"{self.path}: is a file; {self.dataset_name} expects a folder with {expected}")
        names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in self.path.iterdir())
        contents = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
        return ManifestError(
            f"{self.path}: {self.dataset_name} expects {expected} here; found: {contents or 'nothing'}. "
            "`triptych data` lists the files that each dataset expects"
        )

    def require_file(self, *names: str) -> Path:
        """Return the first of these files that exists, in the folder or one level below. Raise if there is none."""
        path = self.find_file(*names)
        if path is None:
            raise self.missing_error(" or ".join(names))
        return path

    def find_file(self, *names: str) -> Path | None:
        """Return the same file as `require_file`, or None if no file exists."""
        if not self.path.is_dir():
            return None
        paths = (path for name in names for path in sorted((*self.path.glob(name), *self.path.glob(f"*/{name}"))))
        return next(paths, None)

    def find_files(self, *patterns: str) -> list[Path]:
        """Return all files that match the patterns, at any depth, sorted."""
        if not self.path.is_dir():
            return []
        return sorted({path for pattern in patterns for path in self.path.rglob(pattern) if path.is_file()})

    def index_by_stem(self, *media_types: MediaType) -> dict[str, list[Path]]:
        """Return a dict from file names without suffix to the files of these types, at any depth."""
        paths_by_stem: dict[str, list[Path]] = {}
        for path in self.find_files("*"):
            if media_type_from_suffix(path) in media_types:
                paths_by_stem.setdefault(path.stem, []).append(path)
        return paths_by_stem

    def find_base_folder(self, names: Iterable[str], description: str, prefer: str = "") -> Path:
        """Return the folder that contains most of these files; on a tie, a folder whose name contains `prefer`."""
        sample = list(islice(names, SAMPLE_SIZE))
        best_folder, best_key = None, (0, False)
        for folder in list_folders(self.path):
            num_files = sum((folder / name).is_file() for name in sample)
            key = (num_files, prefer != "" and prefer in folder.name)
            if num_files and key > best_key:
                best_folder, best_key = folder, key
        if best_folder is None:
            raise self.missing_error(f"{description} such as {sample[0] if sample else 'any'}")
        return best_folder


def list_folders(root: Path) -> list[Path]:
    """Return a folder and its sub-folders, breadth first."""
    result, layer = [root], [root]
    for _ in range(MAX_DEPTH):
        layer = [entry for folder in layer for entry in sorted(folder.iterdir()) if entry.is_dir()]
        result += layer
        if len(result) > MAX_FOLDERS:
            break
    return result[:MAX_FOLDERS]


def read_csv(path: Path, columns: Sequence[str], **csv_options: Any) -> list[dict[str, str]]:
    """Read the rows of a CSV file. Raise if a column is missing."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, **csv_options)
        try:
            rows = list(reader)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ManifestError(f"{path}: cannot be read as CSV: {error}") from error
    missing_columns = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing_columns:
        columns_found = ", ".join(reader.fieldnames or ()) or "nothing"
        raise ManifestError(f"{path}: has no column {', '.join(missing_columns)}; found: {columns_found}")
    return rows


def read_json(path: Path, *keys: str) -> Any:
    """Read a JSON file. If keys are given, the file must contain an object with these keys."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path}: cannot be read as JSON: {error}") from error
    if keys and not (isinstance(content, dict) and all(key in content for key in keys)):
        raise ManifestError(f"{path}: should be a JSON object with {', '.join(keys)}")
    return content


def read_fields(entry: Any, path: Path, *keys: str) -> tuple[str, ...]:
    """Return the values of these keys as strings, from one entry of a JSON file."""
    missing_keys = [key for key in keys if not isinstance(entry, dict) or not isinstance(entry.get(key), str | int)]
    if missing_keys:
        raise ManifestError(f"{path}: an entry has no {' and no '.join(missing_keys)}: {to_printable(entry)}")
    return tuple(str(entry[key]) for key in keys)


def read_lines(path: Path) -> list[str]:
    """Return the non-empty lines of a text file, stripped."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: is not UTF-8 text (byte {error.start})") from error
    return [line.strip() for line in text.split("\n") if line.strip()]
