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
FORMULA = re.compile(r"'*(\s*[=+\-@＝＋－＠]|[\t\r\n])")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+|inf|nan)(e[+-]?\d+)?", re.IGNORECASE)


def protect_cell(value: Any) -> Any:
    """A value as it is written: text that a spreadsheet program would compute gets an apostrophe in front."""
    if isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def restore_cell(cell: str) -> str:
    """The text that `protect_cell` was given."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def write_rows(file: IO[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a header and rows to a file opened with newline=""; a row without a column has an empty cell there."""
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    # The module puts quotes around the characters of its own line end only, but reads a lone \r as a line end, too.
    quoting = csv.DictWriter(file, columns, restval="", lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    for row in rows:
        cells = {name: protect_cell(value) for name, value in row.items()}
        ends_line = any(isinstance(cell, str) and "\r" in cell for cell in cells.values())
        (quoting if ends_line else writer).writerow(cells)


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A header and rows as the text of a CSV file."""
    text = io.StringIO()
    write_rows(text, columns, rows)
    return text.getvalue()


def read_rows(file: IO[str]) -> list[dict[str, str]]:
    """The rows of a file that `write_rows` wrote, opened with newline=""."""
    return [
        {name: restore_cell(cell) for name, cell in row.items() if isinstance(cell, str)}
        for row in csv.DictReader(file)
    ]
