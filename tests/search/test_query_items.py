"""Items that are in the query: segments of a query file, and the sentence that names them."""

from triptych.interfaces import Source
from triptych.search.query import Query, StoredItem
from triptych.search.query_items import describe_excluded_items, find_query_rows


def test_items_with_the_content_of_a_query_are_found_under_any_name(collection, files, tmp_path):
    image = min((files / "images").iterdir())
    (tmp_path / "copy.png").write_bytes(image.read_bytes())
    snapshot, (item,) = (
        collection._load_snapshot(),
        [item for item in collection.list_items() if item.source.content == image],
    )
    by_file = Query.combine(Source("image", tmp_path / "copy.png")).parts
    by_id = Query.combine(StoredItem(item.id)).parts
    assert find_query_rows(snapshot, by_file, collection._load_row) == {item.row_id}
    assert find_query_rows(snapshot, by_id, collection._load_row) == {item.row_id}
    assert find_query_rows(snapshot, Query.combine("two red bells").parts, collection._load_row) == set()
    sentence = describe_excluded_items(snapshot, by_file, collection._load_row)
    assert sentence == f"the query is in the collection ({image.name}) and is not shown"
    assert describe_excluded_items(snapshot, by_id, collection._load_row) is None


def test_all_segments_of_a_moved_query_file_are_found(run_dir, files, tmp_path):
    from triptych.search.collection import Collection
    from triptych.search.item import Item

    audio = min((files / "audio").iterdir())
    collection = Collection(tmp_path / "segments", run_dir)
    segments = [Item(Source("audio", audio, start, start + 0.5)) for start in (0.0, 0.5)]
    collection.index(segments, files, show_progress=False)
    (tmp_path / "files").mkdir()
    moved = audio.rename(tmp_path / "files" / audio.name)
    snapshot = collection._load_snapshot()
    hashes = {item.content_hash for item in collection.list_items()}
    assert len(hashes) == 2
    part = Query.combine(Source("audio", moved, 0.0, 0.5)).parts
    assert len(find_query_rows(snapshot, part, collection._load_row)) == 1
