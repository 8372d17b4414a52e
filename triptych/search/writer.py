"""Every change of a collection's table: whole or not at all, and only by the process that has the right to it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from triptych.search.lease import WriteAccess, local_folder
from triptych.search.query import quote_sql
from triptych.search.store import (
    METADATA_KEY,
    NEXT_ROW_ID_KEY,
    SQL_BATCH,
    TABLE,
    VERSION_RETENTION,
    CollectionMetadata,
    Store,
    connect,
    is_retryable,
    translate_errors,
)

MAX_ATTEMPTS, RETRY_SECONDS = (
    5,
    0.2,
)  # at a commit that Lance calls retryable; seconds before the second one, then twice as long
PRIMARY_KEY = {"lance-schema:unenforced-primary-key": "true"}  # Lance detects that two merges insert the same id


class Writer:
    """Changes one store, for as long as the process has the right to."""

    def __init__(self, store: Store, access: WriteAccess) -> None:
        self.store, self._access = store, access
        store.refresh()
        if access.is_takeover:
            self._invalidate_other_commits()

    @staticmethod
    def create(uri: str, metadata: CollectionMetadata, key_dim: int, access: WriteAccess) -> Writer:
        """Changes a new, empty table for keys of a width."""
        schema = pa.schema(
            [
                ("row_id", pa.int64()),  # counts up, is never used again; what comes next is noted here before items go
                pa.field("id", pa.string(), nullable=False, metadata=PRIMARY_KEY),
                ("modality", pa.string()),
                ("file", pa.string()),
                ("text", pa.string()),
                ("start", pa.float64()),
                ("end", pa.float64()),
                ("captions", pa.list_(pa.string())),
                ("origins", pa.list_(pa.string())),
                ("provenance", pa.string()),  # what each origin says of the item, where there are several
                ("content_hash", pa.string()),
                ("modified_time", pa.float64()),
                ("duration", pa.float64()),
                ("columns", pa.list_(pa.string())),  # name=value
                ("metadata_hash", pa.string()),  # a hash of what is known of the item beside its content
                ("vector", pa.list_(pa.float32(), key_dim)),  # the similarity's key
                ("embedding", pa.binary()),  # float32, where the key does not tell it
                ("parts", pa.large_binary()),  # float16, where the similarity reads them
            ]
        ).with_metadata({METADATA_KEY: json.dumps(asdict(metadata)).encode()})
        access.check()
        with translate_errors(uri):
            return Writer(Store(uri, connect(uri).create_table(TABLE, schema=schema), metadata), access)

    @staticmethod
    def drop_table(uri: str, access: WriteAccess) -> None:
        """Remove the table in a place, whatever state it is in."""
        access.check()
        folder = local_folder(uri)
        with translate_errors(uri):
            if folder is None:
                connect(uri).drop_table(TABLE, ignore_missing=True)
            elif (folder / f"{TABLE}.lance").exists():
                shutil.rmtree(folder / f"{TABLE}.lance")

    def upsert(self, rows: pa.Table) -> None:
        """Add items in one whole step; those whose ids are here already are replaced."""
        schema = self.store.schema
        typed_rows = rows.select(schema.names).cast(schema)

        def merge() -> None:
            builder = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            # By way of an index on the ids, Lance would not notice that another process inserts the same ones.
            builder.use_index(False).execute(typed_rows)

        self._commit(merge)

    def delete(self, ids: Sequence[str]) -> None:
        """Remove items by id; their numbers are gone for good."""
        if not ids:
            return
        next_row_id = self.store.find_next_row_id()
        if next_row_id != self.store.recorded_next_row_id:
            metadata_update = {"path": "row_id", "metadata": {NEXT_ROW_ID_KEY: str(next_row_id)}}
            self._commit(lambda: self._table.update_field_metadata(metadata_update))
        for first in range(0, len(ids), SQL_BATCH):
            condition = f"id IN ({', '.join(map(quote_sql, ids[first : first + SQL_BATCH]))})"
            self._commit(lambda condition=condition: self._table.delete(condition))

    def optimize(self) -> None:
        """Put many small files together, and remove those no reader needs any more."""
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
        """Change the table once; where another program has changed it at the same moment, try again."""
        for attempt in range(MAX_ATTEMPTS):
            self._access.check()
            with translate_errors(self.store.uri):
                try:
                    change()
                except (OSError, RuntimeError, ValueError) as error:
                    if attempt + 1 == MAX_ATTEMPTS or not is_retryable(error):
                        raise
                else:
                    return
            time.sleep(RETRY_SECONDS * 2**attempt)
            self.store.refresh()

    def _invalidate_other_commits(self) -> None:
        """Make Lance refuse whatever a holder before us, who may only have been stopped for a while, is yet to commit.

        A version that restores an earlier one conflicts with every change that was begun before it.
        """
        with translate_errors(self.store.uri):
            version_before = self._table.version
            self._table.checkout(version_before)
            self._table.restore()
            restored_version = self._table.version
            if restored_version > version_before + 1:  # a commit came between: it is kept
                self._table.checkout(restored_version - 1)
                self._table.restore()
        self.store.refresh()
