"""Read CSV, JSONL and Parquet files into numbered rows of raw cells. `row_parser` interprets the cells."""

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
MAX_ROWS = 10_000_000  # a small Parquet file can claim billions of rows
# Limits against decompression bombs: a Parquet file may unpack to MAX_EXPANSION times the size of the file, plus
# BASE_BYTES and BASE_BYTES_PER_ROW for short texts that repeat, but never to more than MAX_UNPACKED_BYTES.
MAX_UNPACKED_BYTES = 2_000_000_000
MAX_EXPANSION = 100
BASE_BYTES, BASE_BYTES_PER_ROW = 10_000_000, 1_000


@dataclass(frozen=True)
class RawTable:
    """The raw rows of a table, and a problem for each row that could not be read.

    Row numbers are spreadsheet rows in a CSV file (the header is row 1), lines in a JSONL file, and rows counted from 1
    in a Parquet file.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[int, dict[str, Any]], ...]
    problems: tuple[ManifestProblem, ...]
    has_only_strings: bool  # true for CSV, in which a list is written as JSON in a cell


def read_table(path: Path, is_wanted: Callable[[str], bool]) -> RawTable:
    """Read a table; the extension selects the format. From a Parquet file, only the wanted columns are read."""
    suffix = path.suffix.lower()
    if suffix not in TABLE_EXTENSIONS:
        raise ManifestError(f"{path}: a manifest must end in {', '.join(TABLE_EXTENSIONS)}; found {suffix!r}")
    try:
        if path.stat().st_size == 0:
            raise ManifestError(f"{path}: the file is empty")
        return _read_parquet(path, is_wanted) if suffix == ".parquet" else _read_text(path, suffix)
    except (OSError, ValueError) as error:
        # A path with a null byte raises ValueError.
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
        raise ManifestError(f"{path}: line {_line_number(raw, offset)} has a null byte; save the table as UTF-8 text")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # `error.object` lacks the byte order mark, but this does not change the line number.
        byte, line = error.object[error.start], _line_number(error.object, error.start)
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
            message = f"has {len(cells)} cells, the header has {len(columns)}; put cells with commas in double quotes"
            problems.append(ManifestProblem("error", "ragged row", number, None, message))
    return RawTable(columns, tuple(rows), tuple(problems), has_only_strings=True)


def _csv_records(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    # Without `strict`, an unclosed quote would turn the rest of the file into one caption without an error.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    number = 0
    try:
        for number, cells in enumerate(reader, start=1):
            if cells:  # skip blank lines, but count them, as spreadsheets do
                yield number, cells
    except csv.Error as error:
        # The quotes are wrong, or a cell exceeds the csv module's limit of 131,072 characters.
        raise ManifestError(
            f"{path}: row {number + 1} (line {reader.line_num}) is broken: {error}; is a double quote left open?"
        ) from error


def _read_jsonl(text: str) -> RawTable:
    rows: list[tuple[int, dict[str, Any]]] = []
    problems: list[ManifestProblem] = []
    # splitlines() would also split at characters such as U+2028, which JSON strings may contain.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append((number, _parse_object(line)))
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
            message = f"is not a JSON object: {to_printable(reason)}"
            problems.append(ManifestProblem("error", "broken line", number, None, message))
    columns = dict.fromkeys(name for _, cells in rows for name in cells)
    return RawTable(tuple(columns), tuple(rows), tuple(problems), has_only_strings=False)


def _parse_object(line: str) -> dict[str, Any]:
    value = json.loads(line, object_pairs_hook=_reject_duplicate_keys)
    if not isinstance(value, dict):
        raise ValueError(f"this is a {type(value).__name__}; write one {{…}} per line")  # noqa: TRY004 - caught above
    return value


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    cells = dict(pairs)
    if len(cells) < len(pairs):
        duplicate, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"duplicate key {duplicate!r}")
    return cells


def _read_parquet(path: Path, is_wanted: Callable[[str], bool]) -> RawTable:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            if (num_rows := file.metadata.num_rows) > MAX_ROWS:
                raise ManifestError(f"{path}: has {num_rows:,} rows; at most {MAX_ROWS:,} are allowed: split the file")
            columns = _check_distinct_columns(path, list(file.schema_arrow.names))
            names = [name for name in columns if is_wanted(name)]
            _check_unpacked_size(path, file, names)
            table = file.read(columns=names)
        # zip(strict=True) detects damaged files in which columns differ in length.
        values = zip(*(column.to_pylist() for column in table.columns), strict=True)
        rows = [(number, dict(zip(table.column_names, cells, strict=True))) for number, cells in enumerate(values, 1)]
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise ManifestError(f"{path}: cannot be read as Parquet: {to_printable(error)}") from error
    return RawTable(columns, tuple(rows), (), has_only_strings=False)


def _check_unpacked_size(path: Path, file: parquet.ParquetFile, names: list[str]) -> None:
    """Raise a ManifestError for a Parquet file that unpacks to far more bytes than its size."""
    metadata = file.metadata
    max_bytes = MAX_EXPANSION * path.stat().st_size + BASE_BYTES + BASE_BYTES_PER_ROW * metadata.num_rows
    max_bytes = min(MAX_UNPACKED_BYTES, max_bytes)
    leaf_paths = [file.schema.column(i).path for i in range(len(file.schema))]
    leaves = [i for i, leaf in enumerate(leaf_paths) if leaf.split(".")[0] in names]
    # Check the sum over all columns first: the metadata of single columns is not safe to read in this process.
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if size > max_bytes:
        size = _sum_column_sizes(path, leaves)
    if size <= max_bytes:  # the dictionary-encoded columns fit into memory
        size = _sum_decoded_sizes(path, names, [leaf_paths[i] for i in leaves])
    if size > max_bytes:
        raise ManifestError(
            f"{path}: unpacks to {size:,} bytes; at most {max_bytes:,} for this file size: save the table as .jsonl"
        )


COLUMN_SIZES_SCRIPT = """
import sys
from pyarrow import parquet
metadata = parquet.read_metadata(sys.argv[1])
groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
print(sum(group.column(int(leaf)).total_uncompressed_size for group in groups for leaf in sys.argv[2:]))
"""


def _sum_column_sizes(path: Path, leaves: list[int]) -> int:
    """Return the total uncompressed size of some columns in bytes, read in a child process.

    Damaged column metadata raises a C++ exception that Cython does not translate, which would end this process.
    """
    command = [sys.executable, "-c", COLUMN_SIZES_SCRIPT, str(path.absolute()), *map(str, leaves)]
    result = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - our own script and a path
    if result.returncode:
        raise ManifestError(f"{path}: cannot be read as Parquet: its column metadata is damaged; write the file again")
    return int(result.stdout)


def _sum_decoded_sizes(path: Path, names: list[str], leaf_paths: list[str]) -> int:
    """Return the total decoded size of some columns in bytes, computed from their dictionary-encoded form."""
    from pyarrow import parquet

    with parquet.ParquetFile(path, read_dictionary=leaf_paths) as file:
        return sum(_unpacked_size(chunk) for column in file.read(columns=names).columns for chunk in column.chunks)


def _unpacked_size(array: pyarrow.Array) -> int:
    """Return the decoded size of a dictionary-encoded array in bytes."""
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
        raise ManifestError(f"{path}: duplicate column: {', '.join(to_printable(name) for name in duplicates)}")
    return tuple(names)
