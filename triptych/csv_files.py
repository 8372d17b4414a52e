"""CSV files as we write them: no cell is a formula to a spreadsheet program, and reading gives back the original."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

# Spreadsheet programs compute a cell that starts with one of these, so a caption from somebody else could open links or
# start programs. Such a cell gets an apostrophe in front, as people type it there themselves; so does one that starts
# with apostrophes before such a character, so that one apostrophe can be taken away again without a doubt.
FORMULA_PATTERN = re.compile(r"'*(\s*[=+\-@＝＋－＠]|[\t\r\n])")
NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+|inf|nan)(e[+-]?\d+)?", re.IGNORECASE)


def escape_cell(value: Any) -> Any:
    """A value as it is written: text that a spreadsheet program would compute gets an apostrophe in front."""
    if isinstance(value, str) and FORMULA_PATTERN.match(value) and not NUMBER_PATTERN.fullmatch(value):
        return f"'{value}"
    return value


def unescape_cell(cell: str) -> str:
    """The text that `protect_cell` was given."""
    return cell[1:] if cell.startswith("'") and FORMULA_PATTERN.match(cell) else cell


def write_rows(file: IO[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a header and rows to a file opened with newline=""; a row without a column has an empty cell there."""
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    # The module puts quotes around the characters of its own line end only, but reads a lone \r as a line end, too.
    quoting_writer = csv.DictWriter(file, columns, restval="", lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    for row in rows:
        cells = {name: escape_cell(value) for name, value in row.items()}
        has_carriage_return = any(isinstance(cell, str) and "\r" in cell for cell in cells.values())
        (quoting_writer if has_carriage_return else writer).writerow(cells)


def format_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A header and rows as the text of a CSV file."""
    buffer = io.StringIO()
    write_rows(buffer, columns, rows)
    return buffer.getvalue()


def read_rows(file: IO[str]) -> list[dict[str, str]]:
    """The rows of a file that `write_rows` wrote, opened with newline=""."""
    return [
        {name: unescape_cell(cell) for name, cell in row.items() if isinstance(cell, str)}
        for row in csv.DictReader(file)
    ]
