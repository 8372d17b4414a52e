"""Snapshots of a collection: their caches are bounded and change no hit."""

from triptych.search.collection import Collection
from triptych.search.query import Filter, Query, StoredItem


def test_the_item_cache_is_bounded_and_changes_no_hit(collection, monkeypatch):
    queries = [Query.combine(StoredItem(entry.id)) for entry in collection.list_items()]
    before = [collection.search(query, ["image"], k=1) for query in queries]
    assert [collection.search(query, ["image"], k=1) for query in queries] == before
    again = Collection(collection.folder)
    monkeypatch.setattr("triptych.search.snapshot.MAX_CACHED_ITEMS", 4)
    assert [again.search(query, ["image"], k=1) for query in queries] == before
    assert len(again._load_snapshot()._items) <= 4 < len(collection._load_snapshot()._items)


def test_the_filter_cache_is_bounded_and_changes_no_hit(collection, monkeypatch):
    filters = [Filter(min_duration=seconds / 100) for seconds in range(6)]
    before = [collection.search("a bell", "audio", k=3, item_filter=f) for f in filters]
    again = Collection(collection.folder)
    monkeypatch.setattr("triptych.search.snapshot.MAX_CACHED_FILTERS", 2)
    for _ in range(2):
        assert [again.search("a bell", "audio", k=3, item_filter=f) for f in filters] == before
    assert len(again._load_snapshot()._filtered_row_ids) <= 2
