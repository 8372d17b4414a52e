"""The items of a collection that are in a query, and that a search therefore excludes from its hits."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from triptych.interfaces import Source
from triptych.search.query import EmbeddedQuery, QueryPart, StoredItem, quote_sql
from triptych.search.scan import query_content_hashes
from triptych.search.snapshot import Snapshot

NOTE_TEXT_LENGTH, NOTE_MAX_NAMES = 40, 3  # maximum numbers of characters of a text and of items in a note
RowLoader = Callable[[str, Sequence[str]], dict[str, Any]]  # returns columns of the row of an item id


def find_query_rows(snapshot: Snapshot, parts: Sequence[QueryPart], load_row: RowLoader) -> set[int]:
    """Return the row ids of the items with the content of a query part. For a file, include all of its segments."""
    item_hashes, file_hashes = set[str](), set[str]()
    for value in (part.value for part in parts):
        if isinstance(value, StoredItem):
            item_hashes.add(load_row(value.id, ["content_hash"])["content_hash"])
        elif isinstance(value, EmbeddedQuery):
            file_hashes |= value.content_hashes
        else:
            is_whole_file = value.start is None and value.end is None
            (file_hashes if is_whole_file else item_hashes).update(query_content_hashes(value, snapshot.space))
    if not item_hashes | file_hashes:
        return set()
    hashes = ", ".join(map(quote_sql, sorted(item_hashes | file_hashes)))
    row_ids: list[int] = snapshot.filter_row_ids(f"content_hash IN ({hashes})").tolist()
    items = snapshot.load_items(row_ids)
    matches = [items[row_id] for row_id in row_ids if row_id in items]
    segments = [item for item in matches if item.content_hash in file_hashes and item.source.start is not None]
    for modality, location in {(item.source.modality, item.location) for item in segments}:
        same_file = f"modality = {quote_sql(modality)} AND file = {quote_sql(location or '')}"
        row_ids += snapshot.filter_row_ids(same_file).tolist()
    return set(row_ids)


def describe_excluded_items(snapshot: Snapshot, parts: Sequence[QueryPart], load_row: RowLoader) -> str | None:
    """Return a sentence that names the items in a query, without the items given by id; None if there are none."""
    row_ids = sorted(find_query_rows(snapshot, parts, load_row))
    items = snapshot.load_items(row_ids)
    query_ids = {part.value.id for part in parts if isinstance(part.value, StoredItem)}
    excluded = [items[row_id] for row_id in row_ids if row_id in items and items[row_id].id not in query_ids]
    names = list(dict.fromkeys(_display_name(item.source) for item in excluded))
    if not names:
        return None
    more = f" and {len(names) - NOTE_MAX_NAMES} more" if len(names) > NOTE_MAX_NAMES else ""
    return f"the query is in the collection ({', '.join(names[:NOTE_MAX_NAMES])}{more}) and is not shown"


def _display_name(source: Source) -> str:
    return source.content.name if isinstance(source.content, Path) else repr(str(source.content)[:NOTE_TEXT_LENGTH])
