"""Write Python data as a Parquet manifest with media files, so that commands can read the data later."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from triptych.data.datasets.convert import assign_missing_splits
from triptych.data.datasets.draft import DraftItem, ManifestDraft
from triptych.data.datasets.manifest_writer import format_parquet
from triptych.data.datasets.splits import find_connected_groups, separate_groups_by_split
from triptych.data.manifest_problems import ManifestProblem, to_printable
from triptych.data.media_folder import MEDIA_FILE_NAME, MediaFolder
from triptych.data.row_parser import (
    FileResolver,
    MediaType,
    RowParser,
    describe_unknown_column,
    is_caption_column,
    is_known_column,
)
from triptych.data.tables_in_memory import DataLike, is_hf_data, iter_rows
from triptych.errors import InputError, ManifestError, MediaError, UsageError
from triptych.files import TEMP_SUFFIX, atomic_write, suggest_remedy
from triptych.progress import notify, track_progress

MANIFEST_FILE, MEDIA_FOLDER = "manifest.parquet", "media"
METADATA = {"triptych": "data from Python"}  # stored in the schema of each manifest that this module writes
MAX_PROBLEMS = 5  # problems that an error message lists


@dataclass(frozen=True)
class MaterialisedData:
    """A manifest that was written from Python data."""

    path: Path
    manifest_hash: str  # SHA-256 of the manifest
    needs_allow_outside: bool  # whether the manifest refers to files outside its folder
    has_assigned_splits: bool  # whether no row had a split, so that the rows were split by a hash
    split_note: str  # a message for the user about rows without a split; empty if all rows have splits


def materialise(
    data: DataLike, folder: Path, name: str = MANIFEST_FILE, can_replace: bool = True, show_progress: bool = True
) -> MaterialisedData:
    """Write Python data to a folder: a Parquet manifest, and media files that are named by a hash of their content.

    Files that the data names by path are not copied. If no row has a split, the rows are split by a hash: 80 % train,
    10 % valid, 10 % test; rows that share a file or a group are in one split. The same data gives the same manifest. If
    an exception is raised, the folder is unchanged.

    Args:
        data: Python data; see `triptych.data.tables_in_memory.DataLike`.
        folder: The folder to write to.
        name: The file name of the manifest. If the name is empty, the hash of the manifest is its name.
        can_replace: Whether an existing manifest of other data may be replaced.
        show_progress: Whether to show a progress bar.

    Returns:
        The path and the hash of the manifest.

    Raises:
        ManifestError: The data has no rows, an unknown column, an invalid cell or a missing file.
        UsageError: The folder contains other files, or other data that must not be replaced.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> folder = Path(tempfile.mkdtemp())
        >>> rows = [{"audio": (np.zeros(8000), 8000), "text": f"silence {i}", "split": "train"} for i in range(2)]
        >>> materialise(rows, folder).path.name
        'manifest.parquet'
        >>> len(list((folder / "media").iterdir()))
        1
    """
    media, path = MediaFolder(folder / MEDIA_FOLDER), folder / (name or MANIFEST_FILE)
    if name and has_other_files(folder, name):
        raise UsageError(f"{folder}: contains other files; give another folder")
    with _remove_on_error(media, folder):
        items = _collect_items(data, media, show_progress)
        draft = assign_missing_splits(ManifestDraft(items, split_units=_find_split_units(items)), "data")
        content, has_outside_paths = format_parquet(draft.items, path, METADATA)
        manifest_hash = hashlib.sha256(content).hexdigest()
        if not name:
            path = folder / f"{manifest_hash[:32]}.parquet"
        previous = path.read_bytes() if path.is_file() else None
        if previous is None or not _is_same_table(previous, content):
            if previous is not None and not can_replace:
                raise UsageError(f"{path}: contains other data; give another folder, or restart=True to replace it")
            with atomic_write(path) as temporary:
                temporary.write_bytes(content)
        else:
            manifest_hash = hashlib.sha256(previous).hexdigest()
    if name:
        _remove_unused_media(media.folder, draft.items)
    num_split, split_note = sum(item.split is not None for item in items), ""
    if num_split == 0:
        split_note = f"{draft.notes[-1]}; to choose the splits, add a column split"
    elif num_split < len(items):
        split_note = f"{len(items) - num_split} of {len(items)} rows have no split and are in no split of the data"
    return MaterialisedData(path, manifest_hash, has_outside_paths, num_split == 0, split_note)


@contextmanager
def materialised(
    data: DataLike, folder: Path, can_replace: bool, is_used: Callable[[], bool], show_progress: bool = True
) -> Iterator[MaterialisedData]:
    """Materialise data for a block. If the block raises while `is_used()` is False, remove new data.

    Print a line if the rows were split by a hash.
    """
    is_new = not folder.exists()
    try:
        written = materialise(data, folder, can_replace=can_replace, show_progress=show_progress)
        notify(written.split_note, show_progress and bool(written.split_note))
        yield written
    except BaseException:
        if is_new and not is_used():
            shutil.rmtree(folder, ignore_errors=True)
        raise


def has_other_files(folder: Path, name: str = MANIFEST_FILE) -> bool:
    """Return whether a folder contains files that `materialise` did not write."""
    from pyarrow import ArrowException, parquet

    path, media = folder / name, folder / MEDIA_FOLDER
    if not folder.is_dir():
        return folder.exists()
    if path.exists():
        metadata: dict[bytes, bytes] = {}
        with suppress(ArrowException, OSError, ValueError):
            metadata = parquet.read_schema(path).metadata or {}
        if any(metadata.get(key.encode()) != value.encode() for key, value in METADATA.items()):
            return True
    names = {entry.name for entry in folder.iterdir()} - {name, MEDIA_FOLDER}
    media_names = [entry.name for entry in media.iterdir()] if media.is_dir() else []
    is_temporary = re.compile(rf"\..*{re.escape(TEMP_SUFFIX)}").fullmatch
    return not all(map(is_temporary, names)) or not all(
        MEDIA_FILE_NAME.fullmatch(media_name) or is_temporary(media_name) for media_name in media_names
    )


def _is_same_table(first: bytes, second: bytes) -> bool:
    """Return whether two Parquet files have the same rows. Versions of pyarrow write different bytes."""
    from pyarrow import ArrowException, parquet

    with suppress(ArrowException):
        return first == second or parquet.read_table(io.BytesIO(first)).equals(parquet.read_table(io.BytesIO(second)))
    return False


@contextmanager
def _remove_on_error(media: MediaFolder, folder: Path) -> Iterator[None]:
    """If the block raises, remove the files that it wrote, and the folders that are then empty."""
    try:
        yield
    except BaseException as error:
        for path in media.written:
            path.unlink(missing_ok=True)
        for empty_folder in (media.folder, folder):
            with suppress(OSError):
                empty_folder.rmdir()
        if isinstance(error, OSError):
            reason = f"cannot be written ({error.strerror}); {suggest_remedy(error.errno or 0)}"
            raise UsageError(f"{folder}: {reason}, or give another folder") from error
        raise


def _remove_unused_media(folder: Path, items: Sequence[DraftItem]) -> None:
    """Remove the media files of replaced data, and those of killed processes."""
    used = {path.name for item in items for path in item.files.values()}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name not in used:
            path.unlink()


def _collect_items(data: DataLike, media: MediaFolder, show_progress: bool) -> list[DraftItem]:
    """Convert all rows. Raise ManifestError if there is no row, or with the first problems of the rows."""
    reader, items = _RowReader(media), list[DraftItem]()
    total = len(data) if isinstance(data, Sized) and not isinstance(data, str | Mapping) else 0
    with track_progress("reading data", total, show_progress and total > 0) as progress:
        for number, row in enumerate(iter_rows(data), start=1):
            if item := reader.read(number, row):
                items.append(item)
            progress.advance()
    problems = [*reader.errors, *_find_duplicate_ids(items)]
    if problems:
        lines = [f"data: {len(problems):,} error{'s' if len(problems) > 1 else ''}; correct or remove these rows"]
        lines += [f"  {problem}" for problem in problems[:MAX_PROBLEMS]]
        raise ManifestError("\n".join([*lines, *(["  …"] if len(problems) > MAX_PROBLEMS else [])]))
    if not items:
        raise ManifestError("data: the table has no rows")
    return _group_by_file(items) if is_hf_data(data) else items


class _RowReader:
    """Converts the rows of Python data to the rows of a manifest, and collects their errors."""

    def __init__(self, media: MediaFolder) -> None:
        self.media = media
        self.errors: list[ManifestProblem] = []
        self._parsers: dict[tuple[str, ...], RowParser] = {}  # by the columns of a row

    def read(self, number: int, row: Mapping[str, Any]) -> DraftItem | None:
        """Return a row of the manifest, or None if the row has an error."""
        parser = self._parsers.get(tuple(row)) or self._make_parser(number, tuple(row))
        cells = {name: self._convert_cell(number, name, cell, parser) for name, cell in row.items()}
        parsed = parser.parse(number, cells)
        self.errors += [problem for problem in parser.problems if problem.severity == "error"]
        parser.problems.clear()
        if parsed is None:
            return None
        files: dict[MediaType, Path] = {column: path for column, path in parsed.files.items() if path}
        metadata = {**parsed.metadata, "id": parsed.metadata["id"] or f"row-{number}"}
        return DraftItem(files=files, texts=parsed.texts, start=parsed.start, end=parsed.end, **metadata)

    def _make_parser(self, number: int, columns: tuple[str, ...]) -> RowParser:
        for name in columns:
            if not is_known_column(name):
                raise ManifestError(f"data, row {number}: {describe_unknown_column(name)}; rename or drop the column")
        resolver = FileResolver(Path.cwd(), Path.cwd(), allow_outside=True)
        return self._parsers.setdefault(columns, RowParser(columns, resolver, has_only_strings=False))

    def _convert_cell(self, number: int, column: str, cell: Any, parser: RowParser) -> Any:
        """Convert a cell to a type that a manifest has: the path of a file, a text, a list of texts or a number."""
        import numpy as np

        if isinstance(cell, np.generic):
            return cell.item()
        if is_caption_column(column):
            return list(cell) if isinstance(cell, tuple | np.ndarray) else cell
        if column not in parser.file_columns:
            return cell
        try:
            path = self.media.add_cell(cell, parser.file_columns[column])
        except (InputError, MediaError) as error:
            raise ManifestError(f"data, row {number}, column {to_printable(column)}: {error}") from error
        return str(path) if path else None


def _find_duplicate_ids(items: Sequence[DraftItem]) -> list[ManifestProblem]:
    duplicates = [name for name, count in Counter(item.id for item in items).items() if count > 1]
    message = "is the id of several rows; to link rows, use the same group"
    return [ManifestProblem("error", "duplicate id", None, "id", f"id {name!r} {message}") for name in duplicates]


def _group_by_file(items: list[DraftItem]) -> list[DraftItem]:
    """Put rows without a group that share a file into one group, as `triptych data hf` does."""
    groups = find_connected_groups({item.id: item.files.values() for item in items})
    sizes = Counter(groups.values())
    return separate_groups_by_split(
        replace(item, group=groups[item.id]) if item.group is None and sizes[groups[item.id]] > 1 else item
        for item in items
    )


def _find_split_units(items: Sequence[DraftItem]) -> dict[str, str]:
    """Return the unit of each row. Rows that share a file or a group are in one unit, and so in one split."""
    links = {item.id: [*item.files.values(), *([("group", item.group)] if item.group else [])] for item in items}
    return find_connected_groups(links)
