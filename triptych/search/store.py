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
from triptych.files import os_error_code, remedy
from triptych.search.lease import local_folder, reason

TABLE, FORM = "items", 3
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
        self.place, self.table, self.note = place, table, note

    @staticmethod
    def open(place: str) -> Store | None:
        """The table in a place; None where there is none, or none yet: another process may be about to make it."""
        folder = local_folder(place)
        if folder is not None and not (folder / f"{TABLE}.lance").exists():
            return None
        with guarded(place):
            database = connect(place)
            if TABLE not in database.list_tables().tables:
                return None
            try:
                table = database.open_table(TABLE)
            except (OSError, RuntimeError, ValueError) as error:
                if "was not found" in str(error):
                    return None
                raise
            return Store(place, table, _note(place, table))

    @property
    def version(self) -> Version:
        """Which version is being read; made anew, a table counts from the start again, under another word."""
        return self.note.made, self.table.version

    @property
    def schema(self) -> pa.Schema:
        """The columns, with their kinds."""
        return self.table.schema

    def refresh(self) -> Version:
        """Read the newest version from now on, also where the table was made anew meanwhile."""
        with guarded(self.place):
            self.table.checkout_latest()
            self.note = _note(self.place, self.table)
            return self.version

    def count(self, where: str = "") -> int:
        """How many items there are."""
        with guarded(self.place):
            return self.table.count_rows(where or None)

    def rows(self, columns: Sequence[str], where: str = "", limit: int | None = None, skip: int = 0) -> pa.Table:
        """Some columns of the items that fulfil a condition, in the order of their numbers within each write."""
        with guarded(self.place):
            asked = self.table.search().select(list(columns)).limit(limit)
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

    def next_number(self) -> int:
        """The first number that no item has, or had."""
        return max(self.noted_number, 1 + int(self.rows(["number"])["number"].to_numpy().max(initial=-1)))

    @property
    def noted_number(self) -> int:
        """The number that was noted as the next one before items were removed."""
        return int((self.schema.field("number").metadata or {}).get(NEXT.encode(), 0))


REBUILD = "`triptych index FOLDER --space RUN --rebuild`"


@contextmanager
def guarded(place: str) -> Iterator[None]:
    """What the store cannot read or write, as one clear sentence."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError, pa.ArrowException) as error:
        raise CollectionError(f"{place}: {_explained(error, is_remote=local_folder(place) is None)}") from error


def is_retryable(error: BaseException) -> bool:
    """Whether Lance says that a change failed only because another one came first."""
    return bool(re.search(r"retryable|please retry|too many concurrent writers", str(error), re.IGNORECASE))


def _explained(error: BaseException, is_remote: bool) -> str:
    """What is wrong and what to do; a store is called damaged only where nothing else explains the error."""
    why = re.sub(r",? \S+\.rs:\d+(:\d+)?", "", " ".join(str(error).split()))[:200]  # without places in Lance's source
    code = os_error_code(error)
    if code is not None:
        return (
            f"the collection's store cannot be read or written ({os.strerror(code)}); {remedy(code)}, then run the "
            "same command again: what was stored before is kept"
        )
    if is_retryable(error) or "Incompatible transaction" in str(error):
        return (
            f"another process has changed the collection's store at the same time ({why}); run the same command again"
        )
    if is_remote and re.search(r'RetryError|Generic \w+ error|store: "', str(error)) and "NoSuchKey" not in str(error):
        return (
            f"the object store cannot be reached, or refuses ({reason(error)}); check the address, the network, and "
            "the variables with the credentials"
        )
    return f"the collection's store is damaged ({why}); rebuild it: {REBUILD}"


def _note(place: str, table: Any) -> Note:
    """What a table says of itself."""
    try:
        note = Note(**json.loads((table.schema.metadata or {}).get(NOTE) or b""))
    except (ValueError, TypeError) as error:
        raise CollectionError(f"{place}: its table was not written by triptych; give another folder") from error
    if note.form != FORM:
        raise CollectionError(f"{place}: made by another version of triptych; rebuild it: {REBUILD}")
    return note


def connect(place: str) -> Any:
    """The LanceDB database in a place."""
    import lancedb  # takes a second to load

    return lancedb.connect(place)
