"""The LanceDB table of a collection's items, in a folder or on an object store. Each change is atomic.

All other files of a collection, such as the vector index, are derived from the table and can be rebuilt.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from triptych.errors import CollectionError
from triptych.files import extract_os_error_code, suggest_remedy
from triptych.search.collection_folder import TABLE
from triptych.search.item import make_schema
from triptych.search.lease import WriteAccess, local_folder, summarise_store_error
from triptych.search.query import quote_sql
from triptych.search.roots import Roots, decode_roots, encode_roots

FORMAT_VERSION = 6
METADATA_KEY, NEXT_ROW_ID_KEY = b"triptych", "next_row_id"
ROOTS_KEY, SPACE_KEY = "roots", "space"  # metadata of the column `file` that can change
REBUILD_COMMAND = "`triptych index FOLDER --space RUN --rebuild`"
Version = tuple[str, int]  # the id of the table, and its LanceDB version number
SQL_BATCH = 1000  # maximum number of ids in one SQL condition
VERSION_RETENTION = timedelta(hours=1)  # time for which old versions are kept, for processes that read them
MAX_ATTEMPTS, RETRY_SECONDS = 5, 0.2  # attempts to commit after conflicts; the waiting time doubles each time


@dataclass(frozen=True)
class CollectionMetadata:
    """Metadata of the collection, stored in the schema of its table."""

    space_path: str  # the path or the name of the space
    fingerprint: str  # the fingerprint of the space
    space_revision: str | None = None  # the commit on the Hugging Face hub
    table_id: str = field(default_factory=lambda: secrets.token_hex(8))  # changes when the collection is rebuilt
    format_version: int = FORMAT_VERSION
    backends: str = ""  # what computed the vectors, if not PyTorch in float32; `describe_backends`


class Store:
    """A table of items, opened for reading. `refresh` opens the newest version."""

    def __init__(self, uri: str, table: Any, metadata: CollectionMetadata) -> None:
        self.uri, self.table, self.metadata = uri, table, metadata
        self.moved_roots: dict[str, Path] = {}  # folders of roots for this process, by name
        self._refreshed_at = -math.inf
        self._roots: tuple[object, Roots] = None, Roots()

    @staticmethod
    def open(uri: str) -> Store | None:
        """Open the table at a URI. Return None if there is no table, or if another process is still creating it."""
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
        """The version that is being read. A rebuilt table has another id, and its version numbers start at 1 again."""
        return self.metadata.table_id, self.table.version

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table and their types."""
        return self.table.schema

    @property
    def roots(self) -> Roots:
        """The roots of the collection, with `moved_roots`. The folders are looked up once per change of the roots."""
        record = self.read_record("file", ROOTS_KEY)
        key = record, tuple(self.moved_roots.items())
        if self._roots[0] != key:
            with translate_errors(self.uri):
                stored = decode_roots(json.loads(record or "{}"), local_folder(self.uri))
                moved = {name: path for name, path in self.moved_roots.items() if name in stored.paths}
                self._roots = key, stored.replace(moved)
        return self._roots[1]

    @property
    def space_path(self) -> str:
        """The path or the name of the space, which the user may have changed since the collection was created."""
        return self.read_record("file", SPACE_KEY) or self.metadata.space_path

    def read_record(self, column: str, key: str) -> str | None:
        """Return a value in the metadata of a column; None if there is none."""
        value = (self.schema.field(column).metadata or {}).get(key.encode())
        return None if value is None else value.decode()

    def refresh(self, max_age: float = 0.0) -> Version:
        """Open the newest version, also of a rebuilt table, unless the last refresh was within `max_age` seconds."""
        if time.monotonic() - self._refreshed_at >= max_age:
            with translate_errors(self.uri):
                if self.uri.startswith("memory://"):  # a new connection would open an empty database
                    self.table.checkout_latest()
                else:  # checkout_latest never opens a lower version number, which a rebuilt table may have
                    self.table = connect(self.uri).open_table(TABLE)
                self.metadata = _read_metadata(self.uri, self.table)
            self._refreshed_at = time.monotonic()
        return self.version

    def count(self, condition: str = "") -> int:
        """Return the number of items that satisfy an SQL condition."""
        with translate_errors(self.uri):
            return self.table.count_rows(condition or None)

    def select_rows(self, columns: Sequence[str], condition: str = "", limit: int | None = None) -> pa.Table:
        """Return columns of the items that satisfy an SQL condition. Rows of one write are ordered by row id."""
        with translate_errors(self.uri):
            query = self.table.search().select(list(columns)).limit(limit)
            return (query.where(condition) if condition else query).to_arrow()

    def take(self, columns: Sequence[str], row_ids: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Return columns of the items with these row ids, as a dictionary from row id to row."""
        ids, rows = [str(int(row_id)) for row_id in row_ids], dict[int, dict[str, Any]]()
        for first in range(0, len(ids), SQL_BATCH):
            condition = f"row_id IN ({', '.join(ids[first : first + SQL_BATCH])})"
            batch = self.select_rows(list(dict.fromkeys(["row_id", *columns])), condition).to_pylist()
            rows |= {row["row_id"]: row for row in batch}
        return rows

    def find_next_row_id(self) -> int:
        """Return the smallest row id that is larger than all row ids ever used."""
        max_row_id = int(self.select_rows(["row_id"])["row_id"].to_numpy().max(initial=-1))
        return max(self.recorded_next_row_id, 1 + max_row_id)

    @property
    def recorded_next_row_id(self) -> int:
        """The next row id that was recorded before the last deletion; 0 if there was none."""
        return int(self.read_record("row_id", NEXT_ROW_ID_KEY) or 0)


class Writer:
    """Changes a store while the process has write access. Only this class changes tables."""

    def __init__(self, store: Store, access: WriteAccess) -> None:
        self.store, self._access = store, access
        store.refresh()
        if access.is_takeover:
            self._invalidate_other_commits()

    @staticmethod
    def create(uri: str, metadata: CollectionMetadata, key_dim: int, access: WriteAccess) -> Writer:
        """Create an empty table for keys of `key_dim` dimensions, and return a writer for the table."""
        schema = make_schema(key_dim).with_metadata({METADATA_KEY: json.dumps(asdict(metadata)).encode()})
        access.check()
        with translate_errors(uri):
            return Writer(Store(uri, connect(uri).create_table(TABLE, schema=schema), metadata), access)

    @staticmethod
    def drop_table(uri: str, access: WriteAccess) -> None:
        """Delete the table at a URI, even if it is damaged."""
        access.check()
        folder = local_folder(uri)
        with translate_errors(uri):
            if folder is None:
                connect(uri).drop_table(TABLE, ignore_missing=True)
            elif (folder / f"{TABLE}.lance").exists():
                shutil.rmtree(folder / f"{TABLE}.lance")

    def upsert(self, rows: pa.Table) -> None:
        """Add items in one commit. Stored items with the same ids are replaced."""
        schema = self.store.schema
        typed_rows = rows.select(schema.names).cast(schema)

        def merge() -> None:
            builder = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            # With an index on the ids, Lance would not detect that another process inserts the same ids.
            builder.use_index(False).execute(typed_rows)

        self._commit(merge)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete items by id. The row ids of deleted items are never used again."""
        if not ids:
            return
        next_row_id = self.store.find_next_row_id()
        if next_row_id != self.store.recorded_next_row_id:
            self.set_next_row_id(next_row_id)
        for first in range(0, len(ids), SQL_BATCH):
            condition = f"id IN ({', '.join(map(quote_sql, ids[first : first + SQL_BATCH]))})"
            self._commit(lambda condition=condition: self._table.delete(condition))

    def set_roots(self, roots: Roots) -> None:
        """Store the roots of the collection, unless they are stored already."""
        record = json.dumps(encode_roots(roots, local_folder(self.store.uri)))
        if record != self.store.read_record("file", ROOTS_KEY):
            self._update_record("file", ROOTS_KEY, record)

    def set_space_path(self, space_path: str) -> None:
        """Store another path or name of the same space."""
        if space_path != self.store.space_path:
            self._update_record("file", SPACE_KEY, space_path)

    def set_next_row_id(self, next_row_id: int) -> None:
        """Store the row id that the next item gets."""
        self._update_record("row_id", NEXT_ROW_ID_KEY, str(next_row_id))

    def _update_record(self, column: str, key: str, value: str) -> None:
        metadata_update = {"path": column, "metadata": {key: value}}
        self._commit(lambda: self._table.update_field_metadata(metadata_update))

    def append(self, rows: pa.Table) -> None:
        """Add items that are not in the table in one commit."""
        typed_rows = rows.select(self.store.schema.names).cast(self.store.schema)
        self._commit(lambda: self._table.add(typed_rows))

    def optimize(self) -> None:
        """Compact small files, delete files of old versions, and create the scalar indexes."""
        from lancedb.index import BTree

        self._commit(lambda: self._table.optimize(cleanup_older_than=VERSION_RETENTION))
        with translate_errors(self.store.uri):
            indexed_columns = {index.columns[0] for index in self._table.list_indices()}
        for column in ("row_id", "id", "content_hash"):
            if column not in indexed_columns and self.store.count():
                self._commit(lambda column=column: self._table.create_index(column, config=BTree()))

    @property
    def _table(self) -> Any:
        return self.store.table

    def _commit(self, change: Callable[[], object]) -> None:
        """Commit a change; retry if another process changed the table at the same time."""
        for attempt in range(MAX_ATTEMPTS):
            self._access.check()
            with translate_errors(self.store.uri):
                try:
                    change()
                except (OSError, RuntimeError, ValueError) as error:
                    if attempt + 1 == MAX_ATTEMPTS or not _is_retryable(error):
                        raise
                else:
                    return
            time.sleep(RETRY_SECONDS * 2**attempt)
            self.store.refresh()

    def _invalidate_other_commits(self) -> None:
        """Make Lance reject pending commits of the previous lease holder, which may only have been suspended.

        A commit that restores a version conflicts with every change that started before this commit.
        """
        with translate_errors(self.store.uri):
            before = self._table.version
            self._table.checkout(before)
            self._table.restore()
            restored = self._table.version
            if restored > before + 1:  # another process committed in between: keep that commit
                self._table.checkout(restored - 1)
                self._table.restore()
        self.store.refresh()


@contextmanager
def translate_errors(uri: str) -> Iterator[None]:
    """Convert errors of the store to a CollectionError that suggests a remedy."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError, pa.ArrowException) as error:
        raise CollectionError(f"{uri}: {_describe_error(error, is_remote=local_folder(uri) is None)}") from error


def connect(uri: str) -> Any:
    """Connect to the LanceDB database at a URI."""
    import lancedb  # slow to import

    return lancedb.connect(uri)


def _is_retryable(error: BaseException) -> bool:
    """Return whether Lance reports that a change failed only because of a concurrent change."""
    return bool(re.search(r"retryable|please retry|too many concurrent writers", str(error), re.IGNORECASE))


def _describe_error(error: BaseException, is_remote: bool) -> str:
    """Describe an error and its remedy. A store is called damaged only if the error has no other known cause."""
    # Remove the locations in Lance's source code.
    detail = re.sub(r",? \S+\.rs:\d+(:\d+)?", "", " ".join(str(error).split()))[:200]
    code = extract_os_error_code(error)
    if code is not None:
        return (
            f"the collection's store cannot be read or written ({os.strerror(code)}); {suggest_remedy(code)}, then run "
            "the same command again: no stored items are lost"
        )
    if _is_retryable(error) or "Incompatible transaction" in str(error):
        return f"another process changed the collection's store at the same time ({detail}); run the same command again"
    if is_remote and re.search(r'RetryError|Generic \w+ error|store: "', str(error)) and "NoSuchKey" not in str(error):
        return (
            f"the object store is unreachable or denies access ({summarise_store_error(error)}); check the URI, the "
            "network and the credentials in the environment"
        )
    return f"the collection's store is damaged ({detail}); rebuild it: {REBUILD_COMMAND}"


def _read_metadata(uri: str, table: Any) -> CollectionMetadata:
    schema = table.schema
    record = (schema.metadata or {}).get(METADATA_KEY)
    if record is None:
        raise CollectionError(f"{uri}: the table there was not written by triptych; give another folder")
    try:
        metadata = CollectionMetadata(**json.loads(record))
        expected = make_schema(schema.field("vector").type.list_size)
        if metadata.format_version == FORMAT_VERSION and schema.names == expected.names:
            return metadata
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise CollectionError(
        f"{uri}: made by an earlier version of triptych; index again: {REBUILD_COMMAND}; cached features are reused"
    )
