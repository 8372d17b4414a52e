"""Rows as Arrow and pandas tables, and as text."""

import doctest
import sys

import pyarrow
import pytest

from triptych import result_tables
from triptych.errors import UsageError
from triptych.result_tables import format_table, rows_to_arrow, rows_to_pandas

ROWS = [{"name": "a", "value": 1.5}, {"name": "b", "count": 2}]
COLUMNS = ["name", "value", "count"]


def test_doctests():
    outcome = doctest.testmod(result_tables)
    assert outcome.attempted
    assert not outcome.failed


def test_arrow_and_pandas_have_the_same_rows():
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    table = rows_to_arrow(ROWS, COLUMNS)
    assert table.to_pylist() == [{"name": "a", "value": 1.5, "count": None}, {"name": "b", "value": None, "count": 2}]
    pandas.testing.assert_frame_equal(table.to_pandas(), rows_to_pandas(ROWS, COLUMNS), check_dtype=False)


def test_types_do_not_depend_on_the_rows():
    table = rows_to_arrow([], COLUMNS, {"name": "string", "value": "float64", "count": "int64"})
    assert table.schema.types == [pyarrow.string(), pyarrow.float64(), pyarrow.int64()]
    assert table.num_rows == 0


def test_without_pandas_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        rows_to_pandas(ROWS, COLUMNS)


def test_text_is_aligned():
    lines = format_table(["a", "bb"], [["long", "1"], ["x", "100"]]).splitlines()
    assert lines == ["a      bb", "long    1", "x     100"]
