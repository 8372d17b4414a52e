"""Write and read CSV files without formula injection: cells that look like formulas are escaped."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

# Spreadsheet programs execute a cell that starts with one of these characters, so an untrusted caption could open links
# or start programs. `escape_cell` puts an apostrophe before the cell. If the cell already has apostrophes before the
# character, one more is added, so that removing one apostrophe always restores the original cell.
FORMULA_PATTERN = re.compile(r"'*(\s*[=+\-@＝＋－＠]|[\t\r\n])")
NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+|inf|nan)(e[+-]?\d+)?", re.IGNORECASE)


def escape_cell(value: Any) -> Any:
    """Return the value, with an apostrophe in front if a spreadsheet program would execute the text."""
    if isinstance(value, str) and FORMULA_PATTERN.match(value) and not NUMBER_PATTERN.fullmatch(value):
        return f"'{value}"
    return value


def unescape_cell(cell: str) -> str:
    """Return the original text of an escaped cell."""
    return cell[1:] if cell.startswith("'") and FORMULA_PATTERN.match(cell) else cell


def write_rows(file: IO[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a header and rows to a file opened with newline=""; columns missing from a row become empty cells."""
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    # csv.writer quotes only cells with its line terminator \n, but csv.reader also ends a line at a single \r.
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
