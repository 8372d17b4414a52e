"""The items of a collection, on disk or on an object store: one LanceDB table, each change whole or not at all.

The table is the truth; whatever else makes searching quick is derived from it and can be made again.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa

from triptych.errors import CollectionError
from triptych.files import extract_os_error_code, suggest_remedy
from triptych.search.lease import local_folder, summarise_store_error

TABLE, FORMAT_VERSION = "items", 4
METADATA_KEY, NEXT_ROW_ID_KEY = b"triptych", "next_row_id"
Version = tuple[str, int]  # which table, by the word it was made with, and which state of it
SQL_BATCH = 1000  # ids in one condition
VERSION_RETENTION = timedelta(hours=1)  # how long files of old versions stay: another process may still be reading them
# everything a person may see
METADATA_COLUMNS = (
    *("row_id", "id", "modality", "file", "text", "start", "end", "captions"),
    *("origins", "content_hash", "modified_time", "duration", "columns", "provenance"),
)
VECTOR_COLUMNS = ("vector", "embedding", "parts")  # everything a similarity may read


@dataclass(frozen=True)
class CollectionMetadata:
    """What a collection remembers of its space."""

    space_path: str  # where it is
    fingerprint: str
    table_id: str = field(
        default_factory=lambda: secrets.token_hex(8)
    )  # names this table: what is derived belongs to it
    format_version: int = FORMAT_VERSION


class Store:
    """A table of items; readers see the newest whole version when they ask for it."""

    def __init__(self, uri: str, table: Any, metadata: CollectionMetadata) -> None:
        self.uri, self.table, self.metadata = uri, table, metadata

    @staticmethod
    def open(uri: str) -> Store | None:
        """The table in a place; None where there is none, or none yet: another process may be about to make it."""
        folder = local_folder(uri)
        if folder is not None and not (folder / f"{TABLE}.lance").exists():
            return None
        with translate_errors(uri):
            database = connect(uri)
            if TABLE not in database.list_tables().tables:
                return None
            try:
                table = database.open_table(TABLE)
            except (OSError, RuntimeError, ValueError) as error:
                if "was not found" in str(error):
                    return None
                raise
            return Store(uri, table, _read_metadata(uri, table))

    @property
    def version(self) -> Version:
        """Which version is being read; made anew, a table counts from the start again, under another word."""
        return self.metadata.table_id, self.table.version

    @property
    def schema(self) -> pa.Schema:
        """The columns, with their kinds."""
        return self.table.schema

    def refresh(self) -> Version:
        """Read the newest version from now on, also where the table was made anew meanwhile."""
        with translate_errors(self.uri):
            self.table.checkout_latest()
            self.metadata = _read_metadata(self.uri, self.table)
            return self.version

    def count(self, condition: str = "") -> int:
        """How many items there are."""
        with translate_errors(self.uri):
            return self.table.count_rows(condition or None)

    def select_rows(
        self, columns: Sequence[str], condition: str = "", limit: int | None = None, offset: int = 0
    ) -> pa.Table:
        """Some columns of the items that fulfil a condition, in the order of their numbers within each write."""
        with translate_errors(self.uri):
            query = self.table.search().select(list(columns)).limit(limit)
            query = query.where(condition) if condition else query
            return (query.offset(offset) if offset else query).to_arrow()

    def take(self, columns: Sequence[str], row_ids: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Some columns of the items with these numbers, by number."""
        unique_ids, rows = [int(number) for number in row_ids], dict[int, dict[str, Any]]()
        for first in range(0, len(unique_ids), SQL_BATCH):
            condition = f"row_id IN ({', '.join(map(str, unique_ids[first : first + SQL_BATCH]))})"
            batch = self.select_rows(list(dict.fromkeys(["row_id", *columns])), condition).to_pylist()
            rows |= {row["row_id"]: row for row in batch}
        return rows

    def find_next_row_id(self) -> int:
        """The first number that no item has, or had."""
        return max(
            self.recorded_next_row_id, 1 + int(self.select_rows(["row_id"])["row_id"].to_numpy().max(initial=-1))
        )

    @property
    def recorded_next_row_id(self) -> int:
        """The number that was noted as the next one before items were removed."""
        return int((self.schema.field("row_id").metadata or {}).get(NEXT_ROW_ID_KEY.encode(), 0))


REBUILD_COMMAND = "`triptych index FOLDER --space RUN --rebuild`"


@contextmanager
def translate_errors(uri: str) -> Iterator[None]:
    """What the store cannot read or write, as one clear sentence."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError, pa.ArrowException) as error:
        raise CollectionError(f"{uri}: {_describe_error(error, is_remote=local_folder(uri) is None)}") from error


def is_retryable(error: BaseException) -> bool:
    """Whether Lance says that a change failed only because another one came first."""
    return bool(re.search(r"retryable|please retry|too many concurrent writers", str(error), re.IGNORECASE))


def _describe_error(error: BaseException, is_remote: bool) -> str:
    """What is wrong and what to do; a store is called damaged only where nothing else explains the error."""
    detail = re.sub(r",? \S+\.rs:\d+(:\d+)?", "", " ".join(str(error).split()))[
        :200
    ]  # without places in Lance's source
    code = extract_os_error_code(error)
    if code is not None:
        return (
            f"the collection's store cannot be read or written ({os.strerror(code)}); {suggest_remedy(code)}, then run the "
            "same command again: what was stored before is kept"
        )
    if is_retryable(error) or "Incompatible transaction" in str(error):
        return f"another process has changed the collection's store at the same time ({detail}); run the same command again"
    if is_remote and re.search(r'RetryError|Generic \w+ error|store: "', str(error)) and "NoSuchKey" not in str(error):
        return (
            f"the object store cannot be reached, or refuses ({summarise_store_error(error)}); check the address, the network, and "
            "the variables with the credentials"
        )
    return f"the collection's store is damaged ({detail}); rebuild it: {REBUILD_COMMAND}"


def _read_metadata(uri: str, table: Any) -> CollectionMetadata:
    """What a table says of itself."""
    try:
        metadata = CollectionMetadata(**json.loads((table.schema.metadata or {}).get(METADATA_KEY) or b""))
    except (ValueError, TypeError) as error:
        raise CollectionError(f"{uri}: its table was not written by triptych; give another folder") from error
    if metadata.format_version != FORMAT_VERSION:
        raise CollectionError(f"{uri}: made by another version of triptych; rebuild it: {REBUILD_COMMAND}")
    return metadata


def connect(uri: str) -> Any:
    """The LanceDB database in a place."""
    import lancedb  # takes a second to load

    return lancedb.connect(uri)
