"""Collections: search equals a plain scan, only what changed is embedded, and another space is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from triptych.checkpoint import load, save
from triptych.contracts import Source
from triptych.data import manifest
from triptych.data.loader import source_of
from triptych.errors import CollectionError, MediaError
from triptych.search.collection import Collection
from triptych.search.index import nearest
from triptych.search.ingest import Ingest
from triptych.search.items import Item, items_in, items_of, moments
from triptych.search.query import Part, Query, Ready
from triptych.search.writer import Writer


def test_every_file_finds_itself_first(collection):
    assert len(collection) == 11
    for entry in collection.entries():
        source = entry.item.source
        hit = collection.search(source, [source.modality], k=3, include_query=True)[0]
        assert hit.item == str(source.content)
        assert hit.score == pytest.approx(1.0, abs=1e-5)


def test_scores_are_the_spaces_own_similarity(collection):
    query = Source("text", "a green frog")
    hits = collection.search(query, k=100)
    assert len(hits) == 11
    space = collection.space
    for hit in hits:
        other = next(e.item.source for e in collection.entries() if str(e.item.source.content) == hit.item)
        score = space.similarity(space.embed_one(query), space.embed_one(other)).item()
        assert hit.score == pytest.approx(score, abs=1e-5)


def test_what_is_embedded_already_finds_the_same(collection):
    words = Source("text", "two red bells")
    ready = Query((Part(Ready(collection.space.embed_one(words), "text")),))
    assert collection.search(ready, k=5) == collection.search(words, k=5) != []


def test_hits_of_all_wanted_kinds_come_most_relevant_first(collection):
    hits = collection.search(Source("text", "a bell"), ["image", "audio"], k=10)
    assert sorted(h.modality for h in hits) == ["audio"] * 5 + ["image"] * 5
    assert [h.relevance for h in hits] == sorted((h.relevance for h in hits), reverse=True)
    for modality in ("image", "audio"):
        scores = [h.score for h in hits if h.modality == modality]
        assert scores == sorted(scores, reverse=True)
    assert collection.search(Source("text", "a bell"), ["image", "audio"], k=2) == hits[:2]


def test_it_comes_back_as_it_was_and_embeds_only_what_is_new(collection, files):
    again = Collection.open(collection.folder)
    assert [e.item for e in again.entries()] == [e.item for e in collection.entries()]
    for entry in collection.entries():
        assert torch.equal(again.features(entry.id).embedding, collection.features(entry.id).embedding)
    images = sorted((files / "images").iterdir())
    images[0].write_bytes(images[1].read_bytes())  # changed
    images[2].unlink()  # gone
    shutil.copy(images[3], files / "images" / "new.png")
    done = again.index(items_in(files, again.space), files, show=False)
    assert (done.added, done.kept, done.dropped) == (2, 9, 1)
    assert len(Collection.open(collection.folder)) == 11


def test_two_folders_share_a_collection(collection, files, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(next((files / "images").iterdir()), other / "again.png")
    done = collection.index(items_in(other, collection.space), other, show=False)
    assert (done.added, done.kept, done.dropped) == (1, 0, 0)
    assert len(collection) == 12
    (other / "again.png").unlink()
    done = collection.index(items_in(other, collection.space), other, show=False)
    assert (done.added, done.kept, done.dropped) == (0, 0, 1)
    assert len(Collection.open(collection.folder)) == 11


def test_a_file_of_several_rows_is_one_item_with_all_captions(run, files, tmp_path):
    picture = next((files / "images").iterdir())
    items = [Item(Source("image", picture), ("a bell",)), Item(Source("image", picture), ("one bell", "a bell"))]
    collection = Collection.create(tmp_path / "collection", run)
    collection.index(items, files, show=False)
    assert [e.item.captions for e in collection.entries()] == [("a bell", "one bell")]
    collection.index([Item(Source("image", picture), ("renamed",))], files, show=False)
    hits = Collection.open(tmp_path / "collection").search(Source("image", picture), k=5, include_query=True)
    assert [hit.captions for hit in hits] == [("renamed",)]


def test_what_was_shown_before_is_shown_as_it_is_now(run, files, tmp_path, monkeypatch):
    picture = next((files / "images").iterdir())
    collection = Collection.create(tmp_path / "collection", run)
    collection.index([Item(Source("image", picture), ("a bell",))], files, show=False)
    reader = Collection.open(tmp_path / "collection")
    assert [hit.captions for hit in reader.search(Source("image", picture), include_query=True)] == [("a bell",)]
    collection.index([Item(Source("image", picture), ("renamed",))], files, show=False)
    monkeypatch.setattr("triptych.search.collection.LOOK_SECONDS", 0.0)
    assert [hit.captions for hit in reader.search(Source("image", picture), include_query=True)] == [("renamed",)]


def test_what_is_kept_in_memory_has_an_end_and_changes_no_hit(collection, monkeypatch):
    queries = [Query((Part(entry.id),)) for entry in collection.entries()]
    before = [collection.search(query, ["image"], k=1) for query in queries]
    assert [collection.search(query, ["image"], k=1) for query in queries] == before
    again = Collection.open(collection.folder)
    monkeypatch.setattr("triptych.search.collection.KEPT", 4)
    assert [again.search(query, ["image"], k=1) for query in queries] == before
    assert len(again._entries[1]) <= 4 < len(collection._entries[1])


def test_work_is_saved_on_the_way(run, files, tmp_path, monkeypatch):
    monkeypatch.setattr("triptych.search.ingest.CHUNK", 4)
    monkeypatch.setattr("triptych.search.ingest.SAVE_SECONDS", 0.0)
    saves = []
    add = Writer.add
    monkeypatch.setattr(Writer, "add", lambda self, rows: (saves.append(len(rows)), add(self, rows)))
    collection = Collection.create(tmp_path / "collection", run)
    collection.index(items_in(files, collection.space), files, show=False)
    assert len(saves) >= 4
    assert sum(saves) == 11


def test_broken_files_are_listed_and_the_rest_is_found(run, files, tmp_path):
    (files / "broken.wav").write_text("no sound")
    (files / "empty.txt").write_text("")
    collection = Collection.create(tmp_path / "collection", run)
    done = collection.index(items_in(files, collection.space), files, show=False)
    assert len(collection) == 11
    assert sorted(Path(source.content).name for source in done.failures) == ["broken.wav", "empty.txt"]


def test_interrupted_work_is_kept(run, files, tmp_path, monkeypatch):
    collection = Collection.create(tmp_path / "collection", run)
    items = list(items_in(files, collection.space))
    monkeypatch.setattr("triptych.search.ingest.CHUNK", 3)
    embed, calls = Ingest._embed, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return embed(self, *arguments)

    monkeypatch.setattr(Ingest, "_embed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        collection.index(items, files, show=False)
    monkeypatch.setattr(Ingest, "_embed", embed)
    again = Collection.open(tmp_path / "collection")
    done = again.index(items, files, show=False)
    assert done.kept > 0
    assert done.kept + done.added == 11


def test_a_manifest_brings_its_captions(run, world, tmp_path):
    rows = manifest.read(world).rows[:4]
    collection = Collection.create(tmp_path / "collection", run)
    collection.index(items_of(rows, collection.space), world, show=False)
    picture = source_of(rows[0], "image")
    hit = collection.search(picture, ["image"], k=1, include_query=True)[0]
    assert hit.captions == rows[0].texts
    texts = {h.item for h in collection.search(picture, ["text"], k=100)}
    assert texts == {text for row in rows for text in row.texts}


def test_long_sounds_become_moments(run, tmp_path):
    pitch = np.repeat([200, 900, 2500], [80_000, 80_000, 40_000])
    soundfile.write(tmp_path / "long.wav", 0.3 * np.sin(2 * np.pi * pitch * np.arange(200_000) / 8000), 8000)
    found = list(moments(Item(Source("audio", tmp_path / "long.wav")), load(run)))
    assert [(i.source.start, i.source.end) for i in found] == [(0, 10), (10, 20), (15, 25)]
    collection = Collection.create(tmp_path / "collection", run)
    collection.index(found, tmp_path, show=False)
    hit = collection.search(found[1].source, ["audio"], k=1, include_query=True)[0]
    assert (hit.start, hit.end) == (10, 20)


def test_another_space_is_refused(run, collection, tmp_path):
    changed = load(run)
    next(changed.parameters()).data += 0.1
    save(changed, tmp_path / "other.safetensors")
    with pytest.raises(CollectionError, match="was made with another space"):
        Collection.create(collection.folder, tmp_path / "other.safetensors")


def test_folders_that_are_no_collection_are_named(run, tmp_path):
    with pytest.raises(CollectionError, match="no collection here; make one with `triptych index"):
        Collection.open(tmp_path)
    (tmp_path / "items.parquet").write_text("no")
    with pytest.raises(CollectionError, match="earlier version"):
        Collection.open(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(CollectionError, match="holds other things"):
        Collection.create(tmp_path / "other", run)


def test_a_query_that_cannot_be_read_is_an_error(collection, tmp_path):
    with pytest.raises(MediaError, match="no such sound file"):
        collection.search(Source("audio", tmp_path / "missing.wav"))
    with pytest.raises(MediaError, match="holds no words"):
        collection.search(Source("text", "  "))


@pytest.mark.parametrize("k", [1, 3, 50])
def test_nearest_is_a_sorted_scan_with_ties_in_order(k):
    keys = np.random.default_rng(0).integers(-2, 3, (30, 2)).astype(np.float32)
    query = np.array([1.0, 0.5], np.float32)
    order, scores = nearest(query, keys, k)
    expected = sorted(range(30), key=lambda i: (-float(keys[i] @ query), i))[:k]
    assert order.tolist() == expected
    assert scores.tolist() == [float(keys[i] @ query) for i in expected]
