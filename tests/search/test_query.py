"""Queries of several parts, filters, copies and similar items: against loops over everything."""

import os
import shutil
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import soundfile

from triptych.contracts import Source
from triptych.data import manifest
from triptych.errors import UsageError
from triptych.search.collection import Collection
from triptych.search.items import contents_of_query, items_in, items_of
from triptych.search.query import Part, Query, Ready, Where


@pytest.fixture(scope="module")
def world_collection(run, world, tmp_path_factory):
    """Everything of the tiny world, with captions and columns. Read only."""
    collection = Collection.create(tmp_path_factory.mktemp("query") / "collection", run)
    collection.index(items_of(manifest.read(world).rows, collection.space), world, show=False)
    return collection


def vector(collection, source):
    return collection.space.similarity.query(collection.space.embed_one(source))[0].numpy()


def test_parts_are_standardised_weighted_and_minus_counts_only_where_it_is_there(world_collection):
    texts = ["a red bell", "two frogs on the left", "a drum"]
    weights = [1.0, 0.5, -0.8]
    query = Query(tuple(Part(Source("text", t), w) for t, w in zip(texts, weights, strict=True)))
    entries, keys = world_collection.sample("image", 1000)
    _, asked_keys = world_collection.sample("text", 100)
    background = np.array([[float(q @ key) for key in keys] for q in asked_keys], np.float64)
    centre, spread = background.mean(), background.std()
    expected = {}
    for entry, key in zip(entries, keys, strict=True):
        total = 0.0
        for text, weight in zip(texts, weights, strict=True):
            z = (float(vector(world_collection, Source("text", text)) @ key) - centre) / spread
            total += weight * (z if weight > 0 else max(0.0, z))
        expected[entry.id] = total
    hits = world_collection.search(query, ["image"], k=20, fold=False)
    assert len(hits) == 20
    best = sorted(expected.values(), reverse=True)[:20]
    assert [hit.score for hit in hits] == pytest.approx(best, abs=1e-3)
    for hit in hits:
        assert hit.score == pytest.approx(expected[hit.id], abs=1e-3)


def test_minus_pushes_down_what_it_names(world_collection):
    plain = world_collection.search(Source("text", "a red bell"), ["image"], k=5)
    named = plain[0].id
    query = Query((Part(Source("text", "a red bell")), Part(named, -2.0)))
    assert named not in {hit.id for hit in world_collection.search(query, ["image"], k=5)}  # what was asked with
    alike = world_collection.similar(named, ["image"], k=1)[0].id
    order = [hit.id for hit in world_collection.search(query, ["image"], k=80)]
    before = [hit.id for hit in world_collection.search(Source("text", "a red bell"), ["image"], k=80)]
    assert order.index(alike) > before.index(alike)


def test_an_item_asks_as_its_source_does_and_is_not_its_own_hit(world_collection):
    entry = next(e for e in world_collection.entries() if e.item.source.modality == "audio")
    by_id = world_collection.similar(entry.id, ["image"], k=5)
    by_file = world_collection.search(entry.item.source, ["image"], k=5)
    assert [h.id for h in by_id] == [h.id for h in by_file]
    assert [h.score for h in by_id] == pytest.approx([h.score for h in by_file], abs=1e-5)
    assert entry.id not in {hit.id for hit in world_collection.similar(entry.id, ["audio"], k=100)}
    with pytest.raises(UsageError, match="no item 'nobody'"):
        world_collection.similar("nobody")


@pytest.fixture
def doubled(collection, files):
    """The collection with two copies of a picture, and the picture under a name that is not in the collection."""
    picture = sorted((files / "images").iterdir())[0]
    shutil.copy(picture, files / "copy.png")
    collection.index(items_in(files, collection.space), files, show=False)
    outside = shutil.copy(picture, files.parent / "outside.png")
    return collection, picture, Source("image", Path(outside))


def test_a_file_of_the_collection_and_its_copies_are_not_hits_of_themselves(doubled):
    collection, picture, outside = doubled
    entries = {Path(str(entry.item.source.content)).name: entry for entry in collection.entries()}
    own = {picture.name, "copy.png"}
    note = f"what was asked with is in the collection itself ({picture.name}, copy.png) and is not shown"
    ready = Ready(collection.space.embed_one(outside), "image", contents_of_query(outside, collection.space))
    for what in (outside, ready, entries["copy.png"].id):
        query = Query((Part(what),))
        assert {Path(hit.item).name for hit in collection.search(query, k=100)} == entries.keys() - own
        together = collection.search(query, k=100, fold=False, include_query=True)
        assert {Path(hit.item).name for hit in together} == entries.keys()
        if isinstance(what, str):  # the other copy is named, not what the person has chosen
            assert collection.note_on_own_items(query) == note.replace(", copy.png", "")
        else:
            assert collection.note_on_own_items(query) == note
    for k in (1, 4):
        assert len(collection.search(outside, ["image"], k)) == k


def test_words_of_the_collection_and_files_that_are_not_in_it_leave_nothing_out(doubled, files):
    collection, _, outside = doubled
    words = Source("text", "two red bells")  # as the note of the folder has it
    assert len(collection.search(words, k=100, fold=False)) == len(collection)
    assert collection.note_on_own_items(words) is None
    changed = Path(outside.content).with_name("changed.png")
    changed.write_bytes(Path(outside.content).read_bytes() + b"x")
    assert len(collection.search(Source("image", changed), k=100, fold=False)) == len(collection)
    assert collection.note_on_own_items(Source("image", changed)) is None


def test_a_long_file_of_the_collection_is_left_out_with_all_its_moments(run, tmp_path):
    folder, rate = tmp_path / "long", 8000
    folder.mkdir()
    for name, pitch in (("low.wav", 200), ("high.wav", 2500)):
        soundfile.write(folder / name, 0.3 * np.sin(2 * np.pi * pitch * np.arange(25 * rate) / rate), rate)
    collection = Collection.create(tmp_path / "collection", run)
    collection.index(items_in(folder, collection.space), folder, show=False)
    assert len(collection) == 6
    hits = collection.search(Source("audio", folder / "low.wav"), k=10, fold=False)
    assert {Path(hit.item).name for hit in hits} == {"high.wav"}
    moment = next(entry for entry in collection.entries() if entry.item.source.start == 10)
    for one in (moment.item.source, Query((Part(moment.id),))):  # of a moment, only this moment
        hits = collection.search(one, k=10, fold=False)
        assert {hit.id for hit in hits} == {entry.id for entry in collection.entries()} - {moment.id}


def test_filters_are_those_of_a_loop(collection, files):
    old = sorted((files / "sounds").iterdir())[0]
    os.utime(old, (1e9, 1e9))
    collection.index(items_in(files, collection.space), files, show=False)
    query = Source("text", "a bell")

    def found(where):
        return {hit.id for hit in collection.search(query, k=100, where=where, fold=False)}

    entries = collection.entries()
    lengths = sorted(e.item.duration for e in entries if e.item.duration is not None)
    assert len(lengths) == 5
    middle = lengths[2]
    assert found(Where(folder=files / "images")) == {e.id for e in entries if e.item.source.modality == "image"}
    assert found(Where(folder=files / "imag")) == set()
    assert found(Where(longer=middle)) == {e.id for e in entries if (e.item.duration or -1) >= middle}
    assert found(Where(shorter=middle)) == {e.id for e in entries if e.item.duration and e.item.duration <= middle}
    is_old = {e.id for e in entries if e.item.source.content == old}
    assert len(is_old) == 1
    assert found(Where(until=datetime(2002, 1, 1))) == is_old
    assert found(Where(since=datetime(2002, 1, 1))) == {e.id for e in entries} - is_old


def test_columns_of_the_manifest_filter_also_those_we_know_nothing_of(run, world, tmp_path):
    rows = manifest.read(world).rows[:3]
    lines = ["audio,text,split,recorder's name"]
    lines += [f"{row.audio},caption {i},{'test' if i else 'train'},o'neil {i % 2}" for i, row in enumerate(rows)]
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    collection = Collection.create(tmp_path / "collection", run)
    table = manifest.read(tmp_path / "pairs.csv", allow_outside=True)
    collection.index(items_of(table.rows, collection.space), tmp_path, show=False)
    query = Source("text", "a bell")
    hits = collection.search(query, ["text"], where=Where(columns={"split": "test", "recorder's name": "o'neil 0"}))
    assert [hit.item for hit in hits] == ["caption 2"]
    assert hits[0].columns["recorder's name"] == ("o'neil 0",)
    assert collection.search(query, where=Where(columns={"split": "tes"})) == []


def test_copies_are_folded_into_the_first_and_can_be_listed(collection, files):
    picture = sorted((files / "images").iterdir())[0]
    shutil.copy(picture, files / "images" / "copy.png")
    collection.index(items_in(files, collection.space), files, show=False)
    hits = collection.search(Source("image", picture), ["image"], k=10, include_query=True)
    assert len(hits) == 5
    names = {collection.item(name).item.source.content for name in (hits[0].id, *hits[0].copies)}
    assert names == {picture.resolve(), (files / "images" / "copy.png").resolve()}
    unfolded = collection.search(Source("image", picture), ["image"], k=10, fold=False, include_query=True)
    assert len(unfolded) == 6


def test_folded_copies_leave_as_many_hits_as_are_asked_for(collection, files):
    """More items are fetched than are listed: copies of the best one do not use up the places of the others."""
    pictures = sorted((files / "images").iterdir())
    for name in ("copy.png", "copy-2.png"):
        shutil.copy(pictures[0], files / "images" / name)
    collection.index(items_in(files, collection.space), files, show=False)
    hits = collection.search(Source("image", pictures[0]), ["image"], k=2, include_query=True)
    assert [len(hit.copies) for hit in hits] == [2, 0]
    unfolded = collection.search(Source("image", pictures[0]), ["image"], 4, fold=False, include_query=True)
    assert hits[1].id == unfolded[3].id


@pytest.mark.parametrize("weight", [0, float("nan"), float("inf")])
def test_weights_that_are_none_are_refused(weight):
    with pytest.raises(UsageError, match="weight"):
        Part(Source("text", "a"), weight)


def test_empty_queries_and_wrong_limits_are_refused():
    with pytest.raises(UsageError, match="empty query"):
        Query(())
    with pytest.raises(UsageError, match="longer"):
        Where(longer=-1)


def test_a_collection_lives_on_an_object_store_path(run, files, tmp_path):
    collection = Collection.create("memory://triptych-test", run)
    done = collection.index(items_in(files, collection.space), files, show=False)
    assert done.added == len(collection) == 11
    assert collection.search(Source("text", "a bell"), k=3)
    where = f"file://{tmp_path}/elsewhere"
    Collection.create(where, run).index(items_in(files, collection.space), files, show=False)
    assert len(Collection.open(where)) == 11
    assert Path(tmp_path / "elsewhere").is_dir()
