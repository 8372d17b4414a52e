"""Queries of several parts, filters, excluded items and near-duplicates, against loops over all items."""

import json
import os
import shutil
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from triptych.app.cli import app
from triptych.data import manifest
from triptych.errors import UsageError
from triptych.interfaces import Source
from triptych.search.collection import Collection
from triptych.search.query import EmbeddedQuery, Filter, Query, QueryPart, StoredItem, parse_date
from triptych.search.roots import Roots
from triptych.search.scan import items_from_folder, items_from_rows, query_content_hashes


@pytest.fixture(scope="module")
def manifest_collection(run_dir, synthetic_manifest, tmp_path_factory):
    """A collection of all synthetic data, with captions and columns. Tests must not change it."""
    collection = Collection(tmp_path_factory.mktemp("query") / "collection", run_dir)
    collection.index(
        items_from_rows(manifest.read(synthetic_manifest).rows, collection.space),
        synthetic_manifest,
        show_progress=False,
    )
    return collection


def embed_query(collection, source):
    return collection.space.similarity.query(collection.space.embed_one(source))[0].numpy()


def test_query_parts_are_standardised_weighted_and_negatives_clipped(manifest_collection):
    texts = ["a red bell", "two frogs on the left", "a drum"]
    weights = [1.0, 0.5, -0.8]
    query = Query(tuple(QueryPart(Source("text", t), w) for t, w in zip(texts, weights, strict=True)))
    entries, keys = manifest_collection.sample("image", 1000)
    _, query_keys = manifest_collection.sample("text", 100)
    background = np.array([[float(q @ key) for key in keys] for q in query_keys], np.float64)
    mean, std = background.mean(), background.std()
    expected = {}
    for entry, key in zip(entries, keys, strict=True):
        total = 0.0
        for text, weight in zip(texts, weights, strict=True):
            z = (float(embed_query(manifest_collection, Source("text", text)) @ key) - mean) / std
            total += weight * (z if weight > 0 else max(0.0, z))
        expected[entry.id] = total
    hits = manifest_collection.search(query, ["image"], k=20, fold_duplicates=False)
    assert len(hits) == 20
    best = sorted(expected.values(), reverse=True)[:20]
    assert [hit.score for hit in hits] == pytest.approx(best, abs=1e-3)
    for hit in hits:
        assert hit.score == pytest.approx(expected[hit.id], abs=1e-3)


def test_a_negative_part_lowers_similar_items(manifest_collection):
    plain = manifest_collection.search(Source("text", "a red bell"), ["image"], k=5)
    best_id = plain[0].id
    query = Query((QueryPart(Source("text", "a red bell")), QueryPart(StoredItem(best_id), -2.0)))
    assert best_id not in {hit.id for hit in manifest_collection.search(query, ["image"], k=5)}
    similar_id = manifest_collection.search_similar(best_id, ["image"], k=1)[0].id
    order = [hit.id for hit in manifest_collection.search(query, ["image"], k=80)]
    before = [hit.id for hit in manifest_collection.search(Source("text", "a red bell"), ["image"], k=80)]
    assert order.index(similar_id) > before.index(similar_id)


def test_a_query_by_item_id_equals_one_by_source_and_excludes_the_item(manifest_collection):
    entry = next(e for e in manifest_collection.list_items() if e.source.modality == "audio")
    by_id = manifest_collection.search_similar(entry.id, ["image"], k=5)
    by_file = manifest_collection.search(entry.source, ["image"], k=5)
    assert [h.id for h in by_id] == [h.id for h in by_file]
    assert [h.score for h in by_id] == pytest.approx([h.score for h in by_file], abs=1e-5)
    assert entry.id not in {hit.id for hit in manifest_collection.search_similar(entry.id, ["audio"], k=100)}
    with pytest.raises(UsageError, match="no item 'nobody'"):
        manifest_collection.search_similar("nobody")


@pytest.fixture
def duplicated(collection, files):
    """The collection with two copies of an image, and the image under a path that is not in the collection."""
    image = sorted((files / "images").iterdir())[0]
    shutil.copy(image, files / "copy.png")
    collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    outside = shutil.copy(image, files.parent / "outside.png")
    return collection, image, Source("image", Path(outside))


def test_search_excludes_the_query_file_and_its_duplicates(duplicated):
    collection, image, outside = duplicated
    entries = {Path(str(entry.source.content)).name: entry for entry in collection.list_items()}
    query_names = {image.name, "copy.png"}
    note = f"the query is in the collection ({image.name}, copy.png) and is not shown"
    embedded_query = EmbeddedQuery(collection.space.embed_one(outside), query_content_hashes(outside, collection.space))
    for value in (outside, embedded_query, StoredItem(entries["copy.png"].id)):
        query = Query((QueryPart(value),))
        assert {hit.source.path.name for hit in collection.search(query, k=100)} == entries.keys() - query_names
        all_hits = collection.search(query, k=100, fold_duplicates=False, include_query=True)
        assert {hit.source.path.name for hit in all_hits} == entries.keys()
        if isinstance(value, StoredItem):  # the note names the other copy, not the given item
            assert collection.describe_excluded_items(query) == note.replace(", copy.png", "")
        else:
            assert collection.describe_excluded_items(query) == note
    for k in (1, 4):
        assert len(collection.search(outside, ["image"], k)) == k


def test_text_queries_and_unknown_files_exclude_nothing(duplicated, files):
    collection, _, outside = duplicated
    text = Source("text", "two red bells")  # the content of note.txt
    assert len(collection.search(text, k=100, fold_duplicates=False)) == len(collection)
    assert collection.describe_excluded_items(text) is None
    changed = Path(outside.content).with_name("changed.png")
    changed.write_bytes(Path(outside.content).read_bytes() + b"x")
    assert len(collection.search(Source("image", changed), k=100, fold_duplicates=False)) == len(collection)
    assert collection.describe_excluded_items(Source("image", changed)) is None


def test_a_long_query_file_is_excluded_with_all_its_segments(run_dir, tmp_path):
    folder, rate = tmp_path / "long", 8000
    folder.mkdir()
    for name, pitch in (("low.wav", 200), ("high.wav", 2500)):
        soundfile.write(folder / name, 0.3 * np.sin(2 * np.pi * pitch * np.arange(25 * rate) / rate), rate)
    collection = Collection(tmp_path / "collection", run_dir)
    collection.index(items_from_folder(folder, collection.space), folder, show_progress=False)
    assert len(collection) == 6
    hits = collection.search(Source("audio", folder / "low.wav"), k=10, fold_duplicates=False)
    assert {hit.source.path.name for hit in hits} == {"high.wav"}
    segment = next(entry for entry in collection.list_items() if entry.source.start == 10)
    for query in (segment.source, Query.combine(StoredItem(segment.id))):  # excludes only this segment
        hits = collection.search(query, k=10, fold_duplicates=False)
        assert {hit.id for hit in hits} == {entry.id for entry in collection.list_items()} - {segment.id}


def test_filters_equal_a_loop(collection, files):
    old = sorted((files / "audio").iterdir())[0]
    os.utime(old, (1e9, 1e9))
    collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    query = Source("text", "a bell")

    def search_ids(item_filter):
        return {hit.id for hit in collection.search(query, k=100, item_filter=item_filter, fold_duplicates=False)}

    entries = collection.list_items()
    lengths = sorted(e.duration for e in entries if e.duration is not None)
    assert len(lengths) == 5
    middle = lengths[2]
    assert search_ids(Filter(folder=files / "images")) == {e.id for e in entries if e.source.modality == "image"}
    assert search_ids(Filter(folder=files / "imag")) == set()
    assert search_ids(Filter(min_duration=middle)) == {e.id for e in entries if (e.duration or -1) >= middle}
    assert search_ids(Filter(max_duration=middle)) == {e.id for e in entries if e.duration and e.duration <= middle}
    is_old = {e.id for e in entries if e.source.content == old}
    assert len(is_old) == 1
    assert search_ids(Filter(until=datetime(2002, 1, 1))) == is_old
    assert search_ids(Filter(since=datetime(2002, 1, 1))) == {e.id for e in entries} - is_old


def test_any_manifest_column_can_be_filtered(run_dir, synthetic_manifest, tmp_path):
    rows = manifest.read(synthetic_manifest).rows[:3]
    lines = ["audio,text,split,recorder's name"]
    lines += [f"{row.audio},caption {i},{'test' if i else 'train'},o'neil {i % 2}" for i, row in enumerate(rows)]
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    collection = Collection(tmp_path / "collection", run_dir)
    table = manifest.read(tmp_path / "pairs.csv", allow_outside=True)
    collection.index(items_from_rows(table.rows, collection.space), tmp_path, show_progress=False)
    query = Source("text", "a bell")
    hits = collection.search(
        query, ["text"], item_filter=Filter(columns={"split": "test", "recorder's name": "o'neil 0"})
    )
    assert [hit.source.content for hit in hits] == ["caption 2"]
    assert hits[0].item.columns["recorder's name"] == ("o'neil 0",)
    assert collection.search(query, item_filter=Filter(columns={"split": "tes"})) == []


def test_duplicates_are_folded_into_the_first_hit(collection, files):
    image = sorted((files / "images").iterdir())[0]
    shutil.copy(image, files / "images" / "copy.png")
    collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    hits = collection.search(Source("image", image), ["image"], k=10, include_query=True)
    assert len(hits) == 5
    names = {collection.load_item(name).source.content for name in (hits[0].id, *hits[0].duplicates)}
    assert names == {image.resolve(), (files / "images" / "copy.png").resolve()}
    unfolded = collection.search(Source("image", image), ["image"], k=10, fold_duplicates=False, include_query=True)
    assert len(unfolded) == 6


def test_folded_duplicates_do_not_reduce_the_number_of_hits(collection, files):
    """More items are ranked than requested, so folded copies leave enough hits."""
    images = sorted((files / "images").iterdir())
    for name in ("copy.png", "copy-2.png"):
        shutil.copy(images[0], files / "images" / name)
    collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    hits = collection.search(Source("image", images[0]), ["image"], k=2, include_query=True)
    assert [len(hit.duplicates) for hit in hits] == [2, 0]
    unfolded = collection.search(Source("image", images[0]), ["image"], 4, fold_duplicates=False, include_query=True)
    assert hits[1].id == unfolded[3].id


@pytest.mark.parametrize("weight", [0, float("nan"), float("inf")])
def test_invalid_weights_raise(weight):
    with pytest.raises(UsageError, match="weight"):
        QueryPart(Source("text", "a"), weight)


def test_empty_queries_and_invalid_filters_raise():
    with pytest.raises(UsageError, match="empty query"):
        Query(())
    with pytest.raises(UsageError, match="min_duration"):
        Filter(min_duration=-1)


@pytest.mark.parametrize(("until", "count"), [("2001-09-08", 0), ("2001-09-09", 11), ("2001-09-09T01:00", 0)])
def test_until_includes_the_whole_day(collection, files, until, count):
    noon = datetime(2001, 9, 9, 12).timestamp()
    for file in files.rglob("*.*"):
        os.utime(file, (noon, noon))
    collection.index(items_from_folder(files, collection.space), files, show_progress=False)

    def count_hits(item_filter):
        return len(collection.search(Source("text", "a bell"), k=100, item_filter=item_filter, fold_duplicates=False))

    assert count_hits(Filter(until=parse_date(until))) == count
    command = ["search", "a bell", "--collection", collection.uri, "--until", until, "--json", "-k", "50"]
    assert len(json.loads(CliRunner().invoke(app, command).stdout)) == count
    assert count_hits(Filter(since=date(2001, 9, 9), until=date(2001, 9, 9))) == 11


@pytest.mark.parametrize("date_text", ["yesterday", "2001-13-01", "", "0001-01-01"])
def test_invalid_dates_are_rejected(date_text):
    with pytest.raises(UsageError, match=r"is not a date|out of range"):
        _ = Filter(since=parse_date(date_text)).to_sql(Roots())
