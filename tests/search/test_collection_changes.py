"""A collection that changes while it is open."""

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from triptych.checkpoint import load, save
from triptych.data import manifest
from triptych.errors import CollectionError
from triptych.interfaces import Source
from triptych.search import index as search_index
from triptych.search.collection import Collection
from triptych.search.query import Filter
from triptych.search.scan import items_from_folder, items_from_rows

TEXT_QUERY = Source("text", "a bell")


@pytest.fixture(autouse=True)
def refresh_on_every_search(monkeypatch):
    monkeypatch.setattr("triptych.search.collection.REFRESH_SECONDS", 0.0)


def index_folder(uri, run, files, rebuild=False):
    collection = Collection(uri, run, rebuild=rebuild)
    return collection.index(items_from_folder(files, collection.space), files, show_progress=False)


def search_scores(collection, query, **settings):
    """Return the scores of all hits by file name."""
    hits = collection.search(query, k=100, fold_duplicates=False, include_query=True, **settings)
    return {Path(hit.source.content).name: round(hit.score, 4) for hit in hits}


def copy_new_image(synthetic_manifest, folder, position=9):
    """Copy an image of the synthetic data that the folder does not contain."""
    image = sorted((synthetic_manifest.parent / "images").iterdir())[position]
    return shutil.copy(image, folder / "images" / f"zz{position}.png")


def replace_newest_image(collection, files, synthetic_manifest, run):
    """Delete the file with the highest row id and index, then add another one and index."""
    by_row_id = {entry.row_id: entry for entry in collection.list_items() if entry.source.modality == "image"}
    last = by_row_id[max(by_row_id)].source.content
    assert isinstance(last, Path)
    last.unlink()
    index_folder(collection.uri, run, files)
    new = copy_new_image(synthetic_manifest, files)
    index_folder(collection.uri, run, files)
    return Path(new)


@pytest.fixture
def image_folder(files):
    """The folder with images only, so that they have the highest row ids."""
    shutil.rmtree(files / "audio")
    (files / "note.txt").unlink()
    return files


@pytest.fixture
def reader(image_folder, run_dir, tmp_path):
    index_folder(tmp_path / "images", run_dir, image_folder)
    reader = Collection(tmp_path / "images")
    assert len(search_scores(reader, TEXT_QUERY)) == 5
    return reader


def test_row_ids_are_never_reused(reader, image_folder, synthetic_manifest, run_dir):
    before = {entry.row_id for entry in reader.list_items()}
    new = replace_newest_image(reader, image_folder, synthetic_manifest, run_dir)
    (row_id,) = {entry.row_id for entry in reader.list_items()} - before
    assert row_id > max(before)
    query = Source("image", new)
    assert search_scores(reader, query) == search_scores(Collection(reader.uri), query)
    assert search_scores(reader, query)[new.name] == pytest.approx(1, abs=1e-3)
    for file in (image_folder / "images").iterdir():
        file.unlink()
    shutil.copy(synthetic_manifest.parent / "images" / new.name.replace("zz9", "000009"), new)
    index_folder(reader.uri, run_dir, image_folder)
    assert [entry.row_id for entry in reader.list_items()] == [row_id]
    new.unlink()
    Collection(reader.uri, run_dir).index([], image_folder, show_progress=False)
    copy_new_image(synthetic_manifest, image_folder, 8)
    index_folder(reader.uri, run_dir, image_folder)
    assert [entry.row_id for entry in reader.list_items()] == [row_id + 1], "also after the collection was empty"


def test_an_ivf_index_on_disk_does_not_score_a_new_file_as_a_removed_one(
    reader, image_folder, synthetic_manifest, run_dir, monkeypatch
):
    monkeypatch.setattr(search_index, "MIN_INDEXED_KEYS", 2)
    search_index.build_ivf_index(
        reader.store, "image", reader._index_folder, np.eye(reader.space.recipe.space.embed_dim, dtype=np.float32)
    )
    monkeypatch.setattr(search_index, "MAX_UNINDEXED_FRACTION", 1.0)  # the index is not rebuilt
    new = replace_newest_image(reader, image_folder, synthetic_manifest, run_dir)
    fresh = Collection(reader.uri)
    assert search_scores(fresh, Source("image", new))[new.name] == pytest.approx(1, abs=1e-3)
    assert fresh._load_snapshot().load_gallery("image").ivf_index is not None


def test_a_reader_reloads_a_rebuilt_collection(collection, files, run_dir, synthetic_manifest):
    reader = Collection(collection.uri)
    item_filter = Filter(folder=files / "images")
    assert len(search_scores(reader, TEXT_QUERY, item_filter=item_filter)) == 5
    first, second, *_ = sorted((files / "images").iterdir())
    first.unlink()  # the same number of files, with other row ids
    copy_new_image(synthetic_manifest, files)
    index_folder(collection.uri, run_dir, files, rebuild=True)
    query, fresh = Source("image", second), Collection(collection.uri)
    assert search_scores(reader, query) == search_scores(fresh, query)
    assert search_scores(reader, query, item_filter=item_filter) == search_scores(fresh, query, item_filter=item_filter)
    relevance, expected = ([hit.relevance for hit in c.search(TEXT_QUERY, k=100)] for c in (reader, fresh))
    assert relevance == pytest.approx(expected)


def test_a_collection_rebuilt_with_another_space_rejects_old_readers(collection, files, run_dir, tmp_path):
    reader = Collection(collection.uri)
    (entry, *_) = reader.list_items()
    changed = load(run_dir)
    next(changed.parameters()).data += 0.1
    save(changed, tmp_path / "other.safetensors")
    index_folder(collection.uri, tmp_path / "other.safetensors", files, rebuild=True)
    for query_collection in (
        lambda: reader.search(TEXT_QUERY),
        lambda: reader.search_similar(entry.id),
        lambda: reader.load_features(entry.id),
    ):
        with pytest.raises(CollectionError, match=r"rebuilt with another space .*open the collection again"):
            query_collection()
    with pytest.raises(CollectionError, match="another space"):
        reader.index(items_from_folder(files, reader.space), files, show_progress=False)
    index_folder(collection.uri, run_dir, files, rebuild=True)
    assert search_scores(reader, TEXT_QUERY) == search_scores(Collection(collection.uri), TEXT_QUERY)


@pytest.mark.parametrize("has_index", [False, True])
def test_a_filter_reads_current_metadata(run_dir, synthetic_manifest, tmp_path, has_index, monkeypatch):
    monkeypatch.setattr(search_index, "MIN_INDEXED_KEYS", 2 if has_index else 1000)
    rows = list(csv.DictReader(synthetic_manifest.read_text().splitlines()))[:6]
    pairs = synthetic_manifest.parent / "tagged.csv"

    def index_with_tags(tags):
        lines = [{**row, "tag": tag} for row, tag in zip(rows, tags, strict=True)]
        with pairs.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*lines[0]])
            writer.writeheader()
            writer.writerows(lines)
        collection = Collection(tmp_path / "tags", run_dir)
        collection.index(items_from_rows(manifest.read(pairs).rows, collection.space), pairs, show_progress=False)

    try:
        index_with_tags("aabbbb")
        reader, item_filter = Collection(tmp_path / "tags"), Filter(columns={"tag": "a"})
        assert len(search_scores(reader, TEXT_QUERY, modality="image", item_filter=item_filter)) == 2
        index_with_tags("aaaaab")
        assert len(search_scores(reader, TEXT_QUERY, modality="image", item_filter=item_filter)) == 5
    finally:
        pairs.unlink()


def test_the_excerpt_of_a_text_file_is_that_of_the_indexed_content(collection, files, run_dir):
    """The displayed text is the embedded one: the file may have changed since."""
    note = files / "note.txt"
    excerpt = note.read_text().strip()

    def stored_excerpts() -> set[str | None]:
        reader = Collection(collection.uri)
        (entry,) = [e for e in reader.list_items() if e.source.content == note.resolve()]
        (hit,) = [hit for hit in reader.search(TEXT_QUERY, ["text"]) if hit.id == entry.id]
        return {entry.excerpt, hit.item.excerpt}

    assert stored_excerpts() == {excerpt}
    os.utime(note)
    index_folder(collection.uri, run_dir, files)  # the same content with another modification time
    assert stored_excerpts() == {excerpt}
    note.unlink()
    assert stored_excerpts() == {excerpt}
    note.write_text("other words")
    index_folder(collection.uri, run_dir, files)
    assert stored_excerpts() == {"other words"}


def test_a_snapshot_is_replaced_with_the_version_of_the_store(collection, files, run_dir, synthetic_manifest):
    reader = Collection(collection.uri)
    item_filter = Filter(folder=files / "images")
    reader.search(TEXT_QUERY, item_filter=item_filter)
    first = reader._load_snapshot()
    reader.search(TEXT_QUERY, item_filter=item_filter)
    assert reader._load_snapshot() is first
    copy_new_image(synthetic_manifest, files)
    index_folder(collection.uri, run_dir, files)
    assert len(search_scores(reader, TEXT_QUERY, item_filter=item_filter)) == 6
    second = reader._load_snapshot()
    assert second.version > first.version
    assert second.load_gallery("audio") is first.load_gallery("audio"), "unchanged keys are reused"
    assert len(first.load_gallery("image")) == 5
    index_folder(collection.uri, run_dir, files, rebuild=True)
    assert reader._load_snapshot().load_gallery("audio") is not second.load_gallery("audio"), "row ids are new"
