"""Collections: search equals a plain scan, only what changed is embedded, and another space is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from triptych.checkpoint import load, save
from triptych.data import manifest
from triptych.data.loader import source_of
from triptych.errors import CollectionError, MediaError
from triptych.interfaces import Source
from triptych.search.collection import Collection
from triptych.search.index import search_exact
from triptych.search.ingest import Ingest
from triptych.search.item import Item
from triptych.search.query import EmbeddedQuery, Query, QueryPart
from triptych.search.scan import items_from_folder, items_from_rows, split_into_segments
from triptych.search.store import Writer


def test_every_file_is_its_own_best_hit(collection):
    assert len(collection) == 11
    for entry in collection.list_items():
        source = entry.source
        hit = collection.search(source, [source.modality], k=3, include_query=True)[0]
        assert hit.source == source
        assert hit.score == pytest.approx(1.0, abs=1e-5)


def test_scores_are_the_spaces_own_similarity(collection):
    query = Source("text", "a green frog")
    hits = collection.search(query, k=100)
    assert len(hits) == 11
    space = collection.space
    for hit in hits:
        other = next(e.source for e in collection.list_items() if str(e.source.content) == str(hit.source.content))
        score = space.similarity(space.embed_one(query), space.embed_one(other)).item()
        assert hit.score == pytest.approx(score, abs=1e-5)


def test_an_embedded_query_gives_the_same_hits(collection):
    source = Source("text", "two red bells")
    embedded_query = Query((QueryPart(EmbeddedQuery(collection.space.embed_one(source), "text")),))
    assert collection.search(embedded_query, k=5) == collection.search(source, k=5) != []


def test_hits_of_several_modalities_are_sorted_by_relevance(collection):
    hits = collection.search(Source("text", "a bell"), ["image", "audio"], k=10)
    assert sorted(h.source.modality for h in hits) == ["audio"] * 5 + ["image"] * 5
    assert [h.relevance for h in hits] == sorted((h.relevance for h in hits), reverse=True)
    for modality in ("image", "audio"):
        scores = [h.score for h in hits if h.source.modality == modality]
        assert scores == sorted(scores, reverse=True)
    assert collection.search(Source("text", "a bell"), ["image", "audio"], k=2) == hits[:2]


def test_reindexing_embeds_only_new_and_changed_files(collection, files):
    again = Collection.open(collection.folder)
    assert again.list_items() == collection.list_items()
    for entry in collection.list_items():
        assert torch.equal(again.load_features(entry.id).embedding, collection.load_features(entry.id).embedding)
    images = sorted((files / "images").iterdir())
    images[0].write_bytes(images[1].read_bytes())  # changed
    images[2].unlink()  # gone
    shutil.copy(images[3], files / "images" / "new.png")
    result = again.index(items_from_folder(files, again.space), files, show_progress=False)
    assert (result.added, result.unchanged, result.removed) == (2, 9, 1)
    assert len(Collection.open(collection.folder)) == 11


def test_two_folders_share_a_collection(collection, files, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(next((files / "images").iterdir()), other / "again.png")
    result = collection.index(items_from_folder(other, collection.space), other, show_progress=False)
    assert (result.added, result.unchanged, result.removed) == (1, 0, 0)
    assert len(collection) == 12
    (other / "again.png").unlink()
    result = collection.index(items_from_folder(other, collection.space), other, show_progress=False)
    assert (result.added, result.unchanged, result.removed) == (0, 0, 1)
    assert len(Collection.open(collection.folder)) == 11


def test_a_file_of_several_rows_is_one_item_with_all_captions(run_dir, files, tmp_path):
    image = next((files / "images").iterdir())
    items = [Item(Source("image", image), ("a bell",)), Item(Source("image", image), ("one bell", "a bell"))]
    collection = Collection.create(tmp_path / "collection", run_dir)
    collection.index(items, files, show_progress=False)
    assert [e.captions for e in collection.list_items()] == [("a bell", "one bell")]
    collection.index([Item(Source("image", image), ("renamed",))], files, show_progress=False)
    hits = Collection.open(tmp_path / "collection").search(Source("image", image), k=5, include_query=True)
    assert [hit.item.captions for hit in hits] == [("renamed",)]


def test_an_open_reader_sees_new_captions(run_dir, files, tmp_path, monkeypatch):
    image = next((files / "images").iterdir())
    collection = Collection.create(tmp_path / "collection", run_dir)
    collection.index([Item(Source("image", image), ("a bell",))], files, show_progress=False)
    reader = Collection.open(tmp_path / "collection")
    assert [hit.item.captions for hit in reader.search(Source("image", image), include_query=True)] == [("a bell",)]
    collection.index([Item(Source("image", image), ("renamed",))], files, show_progress=False)
    monkeypatch.setattr("triptych.search.collection.REFRESH_SECONDS", 0.0)
    assert [hit.item.captions for hit in reader.search(Source("image", image), include_query=True)] == [("renamed",)]


def test_the_item_cache_is_bounded_and_changes_no_hit(collection, monkeypatch):
    queries = [Query((QueryPart(entry.id),)) for entry in collection.list_items()]
    before = [collection.search(query, ["image"], k=1) for query in queries]
    assert [collection.search(query, ["image"], k=1) for query in queries] == before
    again = Collection.open(collection.folder)
    monkeypatch.setattr("triptych.search.collection.MAX_CACHED_ITEMS", 4)
    assert [again.search(query, ["image"], k=1) for query in queries] == before
    assert len(again._load_snapshot()._items) <= 4 < len(collection._load_snapshot()._items)


def test_indexing_saves_intermediate_results(run_dir, files, tmp_path, monkeypatch):
    monkeypatch.setattr("triptych.search.ingest.ITEMS_PER_CHUNK", 4)
    monkeypatch.setattr("triptych.search.ingest.SAVE_SECONDS", 0.0)
    saves = []
    add = Writer.upsert
    monkeypatch.setattr(Writer, "upsert", lambda self, rows: (saves.append(len(rows)), add(self, rows)))
    collection = Collection.create(tmp_path / "collection", run_dir)
    collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    assert len(saves) >= 4
    assert sum(saves) == 11


def test_unreadable_files_are_reported_and_the_rest_is_indexed(run_dir, files, tmp_path):
    (files / "broken.wav").write_text("no sound")
    (files / "empty.txt").write_text("")
    collection = Collection.create(tmp_path / "collection", run_dir)
    result = collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    assert len(collection) == 11
    assert sorted(Path(source.content).name for source in result.failures) == ["broken.wav", "empty.txt"]


def test_interrupted_indexing_keeps_stored_items(run_dir, files, tmp_path, monkeypatch):
    collection = Collection.create(tmp_path / "collection", run_dir)
    items = list(items_from_folder(files, collection.space))
    monkeypatch.setattr("triptych.search.ingest.ITEMS_PER_CHUNK", 3)
    embed, calls = Ingest._embed, []

    def interrupt_third_call(self, *arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return embed(self, *arguments)

    monkeypatch.setattr(Ingest, "_embed", interrupt_third_call)
    with pytest.raises(KeyboardInterrupt):
        collection.index(items, files, show_progress=False)
    monkeypatch.setattr(Ingest, "_embed", embed)
    again = Collection.open(tmp_path / "collection")
    result = again.index(items, files, show_progress=False)
    assert result.unchanged > 0
    assert result.unchanged + result.added == 11


def test_items_of_a_manifest_have_its_captions(run_dir, synthetic_manifest, tmp_path):
    rows = manifest.read(synthetic_manifest).rows[:4]
    collection = Collection.create(tmp_path / "collection", run_dir)
    collection.index(items_from_rows(rows, collection.space), synthetic_manifest, show_progress=False)
    image = source_of(rows[0], "image")
    hit = collection.search(image, ["image"], k=1, include_query=True)[0]
    assert hit.item.captions == rows[0].texts
    texts = {str(h.source.content) for h in collection.search(image, ["text"], k=100)}
    assert texts == {text for row in rows for text in row.texts}


def test_long_audio_is_split_into_segments(run_dir, tmp_path):
    pitch = np.repeat([200, 900, 2500], [80_000, 80_000, 40_000])
    soundfile.write(tmp_path / "long.wav", 0.3 * np.sin(2 * np.pi * pitch * np.arange(200_000) / 8000), 8000)
    segments = list(split_into_segments(Item(Source("audio", tmp_path / "long.wav")), load(run_dir)))
    assert [(i.source.start, i.source.end) for i in segments] == [(0, 10), (10, 20), (15, 25)]
    collection = Collection.create(tmp_path / "collection", run_dir)
    collection.index(segments, tmp_path, show_progress=False)
    hit = collection.search(segments[1].source, ["audio"], k=1, include_query=True)[0]
    assert (hit.source.start, hit.source.end) == (10, 20)


def test_another_space_raises(run_dir, collection, tmp_path):
    changed = load(run_dir)
    next(changed.parameters()).data += 0.1
    save(changed, tmp_path / "other.safetensors")
    with pytest.raises(CollectionError, match="made with another space"):
        Collection.create(collection.folder, tmp_path / "other.safetensors")


def test_folders_that_are_not_collections_raise(run_dir, tmp_path):
    with pytest.raises(CollectionError, match="no collection here; create one with `triptych index"):
        Collection.open(tmp_path)
    (tmp_path / "items.parquet").write_text("no")
    with pytest.raises(CollectionError, match="earlier version"):
        Collection.open(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(CollectionError, match="contains other files"):
        Collection.create(tmp_path / "other", run_dir)


def test_an_unreadable_query_raises(collection, tmp_path):
    with pytest.raises(MediaError, match="no such audio file"):
        collection.search(Source("audio", tmp_path / "missing.wav"))
    with pytest.raises(MediaError, match=r"the text .*is empty"):
        collection.search(Source("text", "  "))


@pytest.mark.parametrize("k", [1, 3, 50])
def test_search_exact_is_a_sorted_scan_with_ties_in_order(k):
    keys = np.random.default_rng(0).integers(-2, 3, (30, 2)).astype(np.float32)
    query = np.array([1.0, 0.5], np.float32)
    order, scores = search_exact(query, keys, k)
    expected = sorted(range(30), key=lambda i: (-float(keys[i] @ query), i))[:k]
    assert order.tolist() == expected
    assert scores.tolist() == [float(keys[i] @ query) for i in expected]
