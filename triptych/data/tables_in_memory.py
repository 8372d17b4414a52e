"""Read the rows of Python data: tables of pandas, polars and Arrow, Hugging Face datasets, lists of dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from os import PathLike
from typing import Any, Protocol, TypeAlias

from triptych.data.datasets.hf import BATCH_ROWS, find_media_columns, infer_roles, to_manifest_row
from triptych.data.datasets.splits import SPLIT_ALIASES
from triptych.data.manifest_problems import to_printable
from triptych.data.row_parser import is_known_column
from triptych.errors import ManifestError, TriptychError, UsageError

HUB_PREFIX = "hf:"  # a dataset on the Hugging Face hub, such as hf:mnist
FORMS = (
    "a manifest, a table of pandas, polars or Arrow, a Hugging Face dataset, a dictionary of splits, or an iterable of "
    "dictionaries"
)


class ArrowStream(Protocol):
    """An object with the Arrow C stream interface, such as a pyarrow.Table or a DuckDB relation."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


# The path of a manifest or "hf:NAME"; a pandas.DataFrame, polars.DataFrame or Arrow table; a datasets.Dataset; an
# iterable of dictionaries with the columns of a manifest; or a dictionary from split names to these, such as a
# datasets.DatasetDict.
DataLike: TypeAlias = str | PathLike[str] | Mapping[str, Any] | Iterable[Any] | ArrowStream


def is_manifest_path(data: object) -> bool:
    """Return whether data is the path of a manifest, and not Python data or the name of a dataset on the hub."""
    return isinstance(data, str | PathLike) and not str(data).startswith(HUB_PREFIX)


def is_hf_data(data: object) -> bool:
    """Return whether data is a Hugging Face dataset, a dictionary of such datasets, or the name of one on the hub."""
    if isinstance(data, Mapping):
        return any(is_hf_data(part) for part in data.values())
    if isinstance(data, str):
        return data.startswith(HUB_PREFIX)
    return hasattr(data, "with_format") and hasattr(data, "features")


def iter_rows(data: DataLike) -> Iterator[dict[str, Any]]:
    """Yield the rows of Python data as dictionaries with the columns of a manifest.

    Args:
        data: Python data, not the path of a manifest; see `DataLike`.

    Yields:
        One dictionary per row. The names of the columns are not checked.

    Raises:
        ManifestError: A row is not a dictionary, or the iteration over the data raised an exception.
        UsageError: The data has another type, or a dataset on the hub cannot be loaded.

    Example:
        >>> list(iter_rows({"validation": [{"audio": "dog.wav", "text": "a dog barks"}]}))
        [{'audio': 'dog.wav', 'text': 'a dog barks', 'split': 'valid'}]
    """
    number = 0
    try:
        for number, row in enumerate(_iter_splits(data), start=1):  # noqa: B007 - used in the error message
            yield {str(name): cell for name, cell in row.items()}
    except TriptychError:
        raise
    except Exception as error:  # the data is an object of the user, which may raise any exception
        reason = to_printable(f"{type(error).__name__}: {error}", 300)
        raise ManifestError(f"reading data failed after {number} rows ({reason})") from error


def _iter_splits(data: Any) -> Iterator[Mapping[Any, Any]]:
    if isinstance(data, str):
        data = _load_from_hub(data.removeprefix(HUB_PREFIX))
    if not isinstance(data, Mapping):
        yield from _iter_table(data, "data")
        return
    if all(is_known_column(str(name)) for name in data):
        raise UsageError("data is a dictionary of columns; give a table such as pandas.DataFrame(data)")
    for name, part in data.items():
        split = SPLIT_ALIASES.get(str(name).lower(), str(name))
        yield from ({**row, "split": split} for row in _iter_table(part, f"data[{name!r}]"))


def _iter_table(table: Any, name: str) -> Iterator[Mapping[Any, Any]]:
    for number, row in enumerate(_iter_any(table, name), start=1):
        if not isinstance(row, Mapping):
            need = "need a dictionary with the columns of a manifest, such as audio and text"
            raise ManifestError(f"{name}, row {number}: {type(row).__name__}; {need}")
        yield row


def _iter_any(table: Any, name: str) -> Iterator[Any]:
    if is_hf_data(table):
        yield from _iter_hf_dataset(table)
    elif hasattr(table, "to_dict") and hasattr(table, "notna"):  # pandas
        if not table.columns.is_unique:
            raise ManifestError(f"{name}: duplicate columns; the columns are {', '.join(map(str, table.columns))}")
        yield from table.astype(object).where(table.notna(), None).to_dict("records")
    elif hasattr(table, "iter_rows"):  # polars
        yield from table.iter_rows(named=True)
    elif hasattr(table, "__arrow_c_stream__"):
        import pyarrow

        for batch in pyarrow.RecordBatchReader.from_stream(table):
            yield from batch.to_pylist()
    elif isinstance(table, Iterable) and not isinstance(table, str | bytes | Mapping):
        yield from table
    else:
        raise UsageError(f"{name} is {type(table).__name__}; give {FORMS}")


def _iter_hf_dataset(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a dataset. Audio and images are not decoded: their cells have the keys "bytes" and "path"."""
    roles = None
    for table in dataset.with_format("arrow").iter(batch_size=BATCH_ROWS):
        if roles is None and find_media_columns(table.schema):
            roles = infer_roles(table.schema, "data")
        yield from (to_manifest_row(row, roles) if roles else row for row in table.to_pylist())


def _load_from_hub(name: str) -> Any:
    try:
        datasets = import_module("datasets")  # an optional dependency
    except ImportError as error:
        raise UsageError(f"hf:{name} needs the package datasets: pip install 'triptych[datasets]'") from error
    try:
        return datasets.load_dataset(name)
    except Exception as error:  # of the network, of the hub, or of the dataset
        reason = to_printable(f"{type(error).__name__}: {error}", 300)
        hint = "check the name and the connection, or give the result of datasets.load_dataset as data"
        raise UsageError(f"hf:{name} cannot be loaded ({reason}); {hint}") from error
