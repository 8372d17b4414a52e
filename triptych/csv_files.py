"""Write and read CSV files without formula injection: cells that look like formulas are escaped."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

# Spreadsheet programs execute a cell that starts with one of these characters, so an untrusted caption could open links
# or start programs. Such a cell is prefixed with an apostrophe. A cell that already has apostrophes before such a
# character gets one more, so that removing one apostrophe restores the original.
FORMULA_PATTERN = re.compile(r"'*(\s*[=+\-@＝＋－＠]|[\t\r\n])")
NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+|inf|nan)(e[+-]?\d+)?", re.IGNORECASE)


def escape_cell(value: Any) -> Any:
    """Return a value for writing: text that a spreadsheet program would execute is prefixed with an apostrophe."""
    if isinstance(value, str) and FORMULA_PATTERN.match(value) and not NUMBER_PATTERN.fullmatch(value):
        return f"'{value}"
    return value


def unescape_cell(cell: str) -> str:
    """Return the original text of an escaped cell."""
    return cell[1:] if cell.startswith("'") and FORMULA_PATTERN.match(cell) else cell


def write_rows(file: IO[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a header and rows to a file opened with newline=""; missing columns become empty cells."""
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    # csv quotes only its own line terminator, but its reader takes a single \r as a line end as well.
    quoting_writer = csv.DictWriter(file, columns, restval="", lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    for row in rows:
        cells = {name: escape_cell(value) for name, value in row.items()}
        has_carriage_return = any(isinstance(cell, str) and "\r" in cell for cell in cells.values())
        (quoting_writer if has_carriage_return else writer).writerow(cells)


def format_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a header and rows as the text of a CSV file."""
    buffer = io.StringIO()
    write_rows(buffer, columns, rows)
    return buffer.getvalue()


def read_rows(file: IO[str]) -> list[dict[str, str]]:
    """Read the rows of a file that `write_rows` wrote, opened with newline=""."""
    return [
        {name: unescape_cell(cell) for name, cell in row.items() if isinstance(cell, str)}
        for row in csv.DictReader(file)
    ]
