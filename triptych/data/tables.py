"""CSV, JSONL and Parquet files -> numbered raw rows. Knows nothing of what the columns mean."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.csv_files import unescape_cell
from triptych.data.manifest_problems import ManifestProblem, to_printable
from triptych.errors import ManifestError

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import parquet

TABLE_EXTENSIONS = (".csv", ".jsonl", ".parquet")
MAX_ROWS = 10_000_000  # a few bytes of Parquet can claim billions
# How many bytes a Parquet file may hold unpacked: a text that repeats, or compresses well, takes next to nothing in it.
MAX_UNPACKED_BYTES = 2_000_000_000
MAX_EXPANSION = 100  # times its own size, and …
BASE_BYTES, BASE_BYTES_PER_ROW = 10_000_000, 1_000  # … so many on top of that, for short texts that repeat


@dataclass(frozen=True)
class RawTable:
    """Rows as they were found, and the ones that could not be read at all as problems.

    A row's number is what a person sees: the spreadsheet row in a CSV (the header is row 1), the line in a JSONL file,
    the row counted from 1 in a Parquet file.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[int, dict[str, Any]], ...]
    problems: tuple[ManifestProblem, ...]
    has_only_strings: bool  # CSV: a list can only be written as JSON inside a cell


def read_table(path: Path, is_wanted: Callable[[str], bool]) -> RawTable:
    """Read a table by its suffix; of a Parquet file only the wanted columns, as others may hold gigabytes."""
    suffix = path.suffix.lower()
    if suffix not in TABLE_EXTENSIONS:
        raise ManifestError(
            f"{path}: a manifest is a file that ends in {', '.join(TABLE_EXTENSIONS)}; this ends in {suffix!r}"
        )
    try:
        if path.stat().st_size == 0:
            raise ManifestError(f"{path}: the file is empty")
        return _read_parquet(path, is_wanted) if suffix == ".parquet" else _read_text(path, suffix)
    except (OSError, ValueError) as error:
        # ValueError: a path with a null byte. Whatever else can go wrong inside a file is caught where it is read.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ManifestError(f"{path}: cannot be read: {reason}") from error


def _read_text(path: Path, suffix: str) -> RawTable:
    text = _decode(path, path.read_bytes())
    if not text.strip():
        raise ManifestError(f"{path}: the file is empty")
    return _read_csv(path, text) if suffix == ".csv" else _read_jsonl(text)


def _decode(path: Path, raw: bytes) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ManifestError(f"{path}: the file is UTF-16; save it as UTF-8")
    if (offset := raw.find(b"\0")) >= 0:
        raise ManifestError(
            f"{path}: line {_line_number(raw, offset)} has a null byte: not a text file, or not saved as UTF-8"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # A byte order mark is cut off before decoding, which shifts the error's place; it is never a line break.
        byte = error.object[error.start]
        line = _line_number(error.object, error.start)
        raise ManifestError(f"{path}: line {line} is not UTF-8 (byte 0x{byte:02X}); save the file as UTF-8") from error


def _line_number(raw: bytes, offset: int) -> int:
    return raw.count(b"\n", 0, offset) + 1


def _read_csv(path: Path, text: str) -> RawTable:
    records = _csv_records(path, text)
    _, header = next(records)
    columns = _check_distinct_columns(path, header)
    if len(columns) == 1 and (separator := next((mark for mark in ";\t|" if mark in columns[0]), None)):
        raise ManifestError(f"{path}: the columns seem to be separated by {separator!r}; separate them by commas")
    rows: list[tuple[int, dict[str, Any]]] = []
    problems: list[ManifestProblem] = []
    for number, cells in records:
        if len(cells) == len(columns):
            rows.append((number, dict(zip(columns, map(unescape_cell, cells), strict=True))))
        else:
            message = f"has {len(cells)} cells, the header has {len(columns)}; put a cell with commas in double quotes"
            problems.append(ManifestProblem("error", "ragged row", number, None, message))
    return RawTable(columns, tuple(rows), tuple(problems), has_only_strings=True)


def _csv_records(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    # strict: else a quote that is never closed would silently swallow the rest of the file into one caption.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    number = 0
    try:
        for number, cells in enumerate(reader, start=1):
            if cells:  # blank lines count as rows, as in a spreadsheet, but hold nothing
                yield number, cells
    except csv.Error as error:
        # Besides wrong quotes this is a cell above csv's limit of 131,072 characters.
        raise ManifestError(
            f"{path}: row {number + 1} (line {reader.line_num}) is broken: {error}; is a double quote left open?"
        ) from error


def _read_jsonl(text: str) -> RawTable:
    rows: list[tuple[int, dict[str, Any]]] = []
    problems: list[ManifestProblem] = []
    # Not splitlines(), which also cuts at characters such as U+2028 that may stand inside a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append((number, _parse_object(line)))
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
            problems.append(
                ManifestProblem("error", "broken line", number, None, f"is not a JSON object: {to_printable(reason)}")
            )
    columns = dict.fromkeys(name for _, cells in rows for name in cells)
    return RawTable(tuple(columns), tuple(rows), tuple(problems), has_only_strings=False)


def _parse_object(line: str) -> dict[str, Any]:
    value = json.loads(line, object_pairs_hook=_reject_duplicate_keys)
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}; write one {{…}} a line")  # noqa: TRY004 - caught above
    return value


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    cells = dict(pairs)
    if len(cells) < len(pairs):
        duplicate, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {duplicate!r} stands twice")
    return cells


def _check_row_count(path: Path, rows: int) -> None:
    if rows > MAX_ROWS:
        raise ManifestError(f"{path}: says it has {rows:,} rows; at most {MAX_ROWS:,}: split it")


def _read_parquet(path: Path, is_wanted: Callable[[str], bool]) -> RawTable:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            _check_row_count(path, file.metadata.num_rows)
            columns = _check_distinct_columns(path, list(file.schema_arrow.names))
            names = [name for name in columns if is_wanted(name)]
            _check_unpacked_size(path, file, names)
            table = file.read(columns=names)
        # By column and strictly: in a damaged file the columns may differ in length from what the file says of itself.
        values = zip(*(column.to_pylist() for column in table.columns), strict=True)
        rows = [(number, dict(zip(table.column_names, cells, strict=True))) for number, cells in enumerate(values, 1)]
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise ManifestError(f"{path}: cannot be read as Parquet: {to_printable(error)}") from error
    return RawTable(columns, tuple(rows), (), has_only_strings=False)


def _check_unpacked_size(path: Path, file: parquet.ParquetFile, names: list[str]) -> None:
    """Raise a ManifestError for a file whose content takes far more memory than the file's size suggests."""
    from pyarrow import parquet

    metadata = file.metadata
    max_bytes = MAX_EXPANSION * path.stat().st_size + BASE_BYTES + BASE_BYTES_PER_ROW * metadata.num_rows
    max_bytes = min(MAX_UNPACKED_BYTES, max_bytes)
    leaf_paths = [file.schema.column(i).path for i in range(len(file.schema))]
    leaves = [i for i, leaf in enumerate(leaf_paths) if leaf.split(".")[0] in names]
    # The sum over all columns comes first: metadata of single columns is not safe to read in this process.
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if size > max_bytes:
        size = _sum_column_sizes(path, leaves)
    if size <= max_bytes:  # the dictionary-encoded columns fit into memory
        with parquet.ParquetFile(path, read_dictionary=[leaf_paths[i] for i in leaves]) as dictionary_file:
            columns = dictionary_file.read(columns=names).columns
        size = sum(_unpacked_size(chunk) for column in columns for chunk in column.chunks)
    if size > max_bytes:
        raise ManifestError(
            f"{path}: unpacks to {size:,} bytes; at most {max_bytes:,} for a file of its size: write a .jsonl"
        )


COLUMN_SIZES_SCRIPT = """
import sys
from pyarrow import parquet
metadata = parquet.read_metadata(sys.argv[1])
groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
print(sum(group.column(int(leaf)).total_uncompressed_size for group in groups for leaf in sys.argv[2:]))
"""


def _sum_column_sizes(path: Path, leaves: list[int]) -> int:
    """Return the uncompressed bytes of some columns, read in a child process.

    On damaged column metadata, pyarrow ends its process: a C++ exception that Cython does not translate.
    """
    command = [sys.executable, "-c", COLUMN_SIZES_SCRIPT, str(path.absolute()), *map(str, leaves)]
    result = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - our own script and a path
    if result.returncode:
        raise ManifestError(f"{path}: cannot be read as Parquet: its column metadata is damaged; write the file again")
    return int(result.stdout)


def _unpacked_size(array: pyarrow.Array) -> int:
    """The bytes of an array in which each different text is held once, were each held wherever it occurs."""
    import pyarrow
    from pyarrow import compute

    if isinstance(array, pyarrow.ListArray | pyarrow.LargeListArray):
        return array.nbytes + _unpacked_size(array.flatten())
    if isinstance(array, pyarrow.DictionaryArray) and not pyarrow.types.is_primitive(array.type.value_type):
        lengths = compute.call_function("binary_length", [array.dictionary])
        return int(compute.call_function("sum", [lengths.take(array.indices)]).as_py() or 0)
    return array.nbytes


def _check_distinct_columns(path: Path, names: list[str]) -> tuple[str, ...]:
    duplicates = sorted(name for name, times in Counter(names).items() if name and times > 1)
    if duplicates:
        raise ManifestError(
            f"{path}: the header names a column twice: {', '.join(to_printable(name) for name in duplicates)}"
        )
    return tuple(names)
