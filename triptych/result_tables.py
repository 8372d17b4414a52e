"""Results as tables: conversion of rows to Arrow and pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from triptych.errors import UsageError

if TYPE_CHECKING:
    import pyarrow


def rows_to_arrow(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], types: Mapping[str, str] | None = None
) -> pyarrow.Table:
    """Return a pyarrow.Table with these columns; a cell that a row lacks is null.

    `types` has the Arrow types of columns, such as "int64". By default, the types follow from the values.

    Example:
        >>> rows_to_arrow([{"query": "text", "R@1": 0.5}, {"query": "image"}], ["query", "R@1"]).to_pydict()
        {'query': ['text', 'image'], 'R@1': [0.5, None]}
    """
    import pyarrow

    types = types or {}
    return pyarrow.table({name: pyarrow.array([row.get(name) for row in rows], types.get(name)) for name in columns})


def rows_to_pandas(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Return a pandas.DataFrame with these columns. Raise UsageError if pandas is not installed."""
    return import_pandas().DataFrame.from_records([dict(row) for row in rows], columns=list(columns))


def import_pandas() -> Any:
    """Import pandas, which is an optional dependency. Raise UsageError if pandas is not installed."""
    try:
        return import_module("pandas")
    except ImportError as error:
        raise UsageError("to_pandas needs pandas: pip install pandas; to_dict works without pandas") from error


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table of strings: the first column is aligned to the left, the others to the right.

    Example:
        >>> print(format_table(["direction", "R@1"], [["text → image", "50.0"]]))
        direction      R@1
        text → image  50.0
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(cells))
        for cells in (list(zip(line, widths, strict=True)) for line in (header, *rows))
    ]
    return "\n".join(line.rstrip() for line in lines)
