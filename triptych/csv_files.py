"""Write and read CSV files without formula injection: cells that look like formulas are escaped."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

# Spreadsheet programs execute a cell that starts with one of the characters below as a formula. An untrusted caption
# could therefore open links or start programs. `escape_cell` puts an apostrophe before the cell. `escape_cell` adds an
# apostrophe even if the cell already starts with apostrophes. Removing one apostrophe therefore always restores the
# original cell.
FORMULA_PATTERN = re.compile(r"'*(\s*[=+\-@＝＋－＠]|[\t\r\n])")
NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+|inf|nan)(e[+-]?\d+)?", re.IGNORECASE)


def escape_cell(value: Any) -> Any:
    """Return the value; add an apostrophe in front if a spreadsheet program would execute the text as a formula."""
    if isinstance(value, str) and FORMULA_PATTERN.match(value) and not NUMBER_PATTERN.fullmatch(value):
        return f"'{value}"
    return value


def unescape_cell(cell: str) -> str:
    """Return the original text of an escaped cell."""
    return cell[1:] if cell.startswith("'") and FORMULA_PATTERN.match(cell) else cell


def write_rows(file: IO[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a header and rows to a file opened with newline=""; a column that a row lacks becomes an empty cell."""
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    # csv.writer quotes cells with \n, but not cells with a single \r, at which csv.reader also ends a line.
    quoting_writer = csv.DictWriter(file, columns, restval="", lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    for row in rows:
        cells = {name: escape_cell(value) for name, value in row.items()}
        has_carriage_return = any(isinstance(cell, str) and "\r" in cell for cell in cells.values())
        (quoting_writer if has_carriage_return else writer).writerow(cells)


def format_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Format a header and rows as the text of a CSV file."""
    buffer = io.StringIO()
    write_rows(buffer, columns, rows)
    return buffer.getvalue()


def read_rows(file: IO[str]) -> list[dict[str, str]]:
    """Read the rows of a CSV file that `write_rows` wrote; the file must be opened with newline=""."""
    return [
        {name: unescape_cell(cell) for name, cell in row.items() if isinstance(cell, str)}
        for row in csv.DictReader(file)
    ]
