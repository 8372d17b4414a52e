"""The items of a collection, on disk or on an object store: one LanceDB table, each change whole or not at all.

The table is the truth; whatever else makes searching quick is derived from it and can be made again.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from triptych.errors import CollectionError
from triptych.search.query import quoted

TABLE, FORM = "items", 2
NOTE, NEXT = b"triptych", "next"
Version = tuple[str, int]  # which table, by the word it was made with, and which state of it
MANY = 1000  # ids in one condition
KEEP = timedelta(hours=1)  # how long files of old versions stay: another process may still be reading them
# everything a person may see
FACTS = (
    *("number", "id", "modality", "file", "text", "start", "end", "captions"),
    *("origins", "content", "date", "duration", "columns", "claims"),
)
SCORING = ("vector", "embedding", "parts")  # everything a similarity may read


@dataclass(frozen=True)
class Note:
    """What a collection remembers of its space."""

    space: str  # where it is
    fingerprint: str
    made: str = field(default_factory=lambda: secrets.token_hex(8))  # names this table: what is derived belongs to it
    form: int = FORM


class Store:
    """A table of items; readers see the newest whole version when they ask for it."""

    def __init__(self, place: str, table: Any, note: Note) -> None:
        self.place, self._table, self.note = place, table, note

    @staticmethod
    def create(place: str, note: Note, width: int) -> Store:
        """A new, empty table for keys of a width."""
        schema = pa.schema(
            [
                ("number", pa.int64()),  # counts up, is never used again; what comes next is noted here before items go
                ("id", pa.string()),
                ("modality", pa.string()),
                ("file", pa.string()),
                ("text", pa.string()),
                ("start", pa.float64()),
                ("end", pa.float64()),
                ("captions", pa.list_(pa.string())),
                ("origins", pa.list_(pa.string())),
                ("claims", pa.string()),  # what each origin says of the item, where there are several
                ("content", pa.string()),
                ("date", pa.float64()),
                ("duration", pa.float64()),
                ("columns", pa.list_(pa.string())),  # name=value
                ("facts", pa.string()),  # a hash of what is known of the item beside its content
                ("vector", pa.list_(pa.float32(), width)),  # the similarity's key
                ("embedding", pa.binary()),  # float32, where the key does not tell it
                ("parts", pa.large_binary()),  # float16, where the similarity reads them
            ]
        ).with_metadata({NOTE: json.dumps(asdict(note)).encode()})
        with guarded(place):
            return Store(place, _connect(place).create_table(TABLE, schema=schema), note)

    @staticmethod
    def open(place: str) -> Store | None:
        """The table in a place; None where there is none."""
        if "://" not in place and not (Path(place) / f"{TABLE}.lance").exists():
            return None
        with guarded(place):
            database = _connect(place)
            if TABLE not in database.list_tables().tables:
                return None
            table = database.open_table(TABLE)
            return Store(place, table, _note(place, table))

    @staticmethod
    def remove(place: str) -> None:
        """Remove the table in a place, whatever state it is in."""
        if "://" not in place:
            shutil.rmtree(Path(place) / f"{TABLE}.lance", ignore_errors=True)
        else:
            with guarded(place):
                _connect(place).drop_table(TABLE, ignore_missing=True)

    @property
    def version(self) -> Version:
        """Which version is being read; made anew, a table counts from the start again, under another word."""
        return self.note.made, self._table.version

    @property
    def schema(self) -> pa.Schema:
        """The columns, with their kinds."""
        return self._table.schema

    def refresh(self) -> Version:
        """Read the newest version from now on, also where the table was made anew meanwhile."""
        with guarded(self.place):
            self._table.checkout_latest()
            self.note = _note(self.place, self._table)
            return self.version

    def count(self, where: str = "") -> int:
        """How many items there are."""
        with guarded(self.place):
            return self._table.count_rows(where or None)

    def rows(self, columns: Sequence[str], where: str = "", limit: int | None = None, skip: int = 0) -> pa.Table:
        """Some columns of the items that fulfil a condition, in the order of their numbers within each write."""
        with guarded(self.place):
            asked = self._table.search().select(list(columns)).limit(limit)
            asked = asked.where(where) if where else asked
            return (asked.offset(skip) if skip else asked).to_arrow()

    def numbered(self, columns: Sequence[str], numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Some columns of the items with these numbers, by number."""
        listed, found = [int(number) for number in numbers], dict[int, dict[str, Any]]()
        for first in range(0, len(listed), MANY):
            condition = f"number IN ({', '.join(map(str, listed[first : first + MANY]))})"
            some = self.rows(list(dict.fromkeys(["number", *columns])), condition).to_pylist()
            found |= {row["number"]: row for row in some}
        return found

    def add(self, rows: pa.Table, known: bool) -> None:
        """Add items in one whole step; known says that some of their ids are here already, and are replaced."""
        with guarded(self.place):
            if known:
                merge = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                merge.execute(rows)
            else:
                self._table.add(rows)

    def next_number(self) -> int:
        """The first number that no item has, or had."""
        return max(self._noted, 1 + int(self.rows(["number"])["number"].to_numpy().max(initial=-1)))

    @property
    def _noted(self) -> int:
        return int((self.schema.field("number").metadata or {}).get(NEXT.encode(), 0))

    def drop(self, ids: Sequence[str]) -> None:
        """Remove items by id; their numbers are gone for good."""
        if not ids:
            return
        after = self.next_number()
        with guarded(self.place):
            if after != self._noted:
                self._table.update_field_metadata({"path": "number", "metadata": {NEXT: str(after)}})
            for first in range(0, len(ids), MANY):
                self._table.delete(f"id IN ({', '.join(map(quoted, ids[first : first + MANY]))})")

    def tidy(self) -> None:
        """Put many small files together, and remove those no reader needs any more."""
        from lancedb.index import BTree

        with guarded(self.place):
            self._table.optimize(cleanup_older_than=KEEP)
            names = {index.columns[0] for index in self._table.list_indices()}
            for column in ("number", "id"):
                if column not in names and self._table.count_rows():
                    self._table.create_index(column, config=BTree())


REBUILD = "`triptych index FOLDER --space RUN --rebuild`"


@contextmanager
def guarded(place: str) -> Iterator[None]:
    """What the store cannot read or write, as one clear sentence."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        raise CollectionError(
            f"{place}: the collection's store is damaged or cannot be reached ({why[:200]}); rebuild it: {REBUILD}"
        ) from error


def _note(place: str, table: Any) -> Note:
    """What a table says of itself."""
    try:
        note = Note(**json.loads((table.schema.metadata or {}).get(NOTE) or b""))
    except (ValueError, TypeError) as error:
        raise CollectionError(f"{place}: its table was not written by triptych; give another folder") from error
    if note.form != FORM:
        raise CollectionError(f"{place}: made by another version of triptych; rebuild it: {REBUILD}")
    return note


def _connect(place: str) -> Any:
    import lancedb  # takes a second to load

    return lancedb.connect(place)
