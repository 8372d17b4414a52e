"""Collections: scores and order of hits, spaces and folders that do not fit, and URIs."""

from pathlib import Path

import pytest

from triptych.checkpoint import load, save
from triptych.errors import CollectionError, MediaError
from triptych.interfaces import Source
from triptych.search.collection import Collection
from triptych.search.item import Item
from triptych.search.query import EmbeddedQuery, Query, QueryPart
from triptych.search.scan import items_from_folder


def test_every_file_is_its_own_best_hit(collection):
    assert len(collection) == 11
    for entry in collection.list_items():
        source = entry.source
        hit = collection.search(source, [source.modality], k=3, include_query=True)[0]
        assert hit.source == source
        assert hit.score == pytest.approx(1.0, abs=1e-5)


def test_scores_are_the_similarity_of_the_space(collection):
    query = Source("text", "a green frog")
    hits = collection.search(query, k=100)
    assert len(hits) == 11
    space = collection.space
    for hit in hits:
        score = space.similarity(space.embed_one(query), space.embed_one(hit.source)).item()
        assert hit.score == pytest.approx(score, abs=1e-5)


def test_an_embedded_query_gives_the_same_hits(collection):
    source = Source("text", "two red bells")
    embedded_query = Query((QueryPart(EmbeddedQuery(collection.space.embed_one(source))),))
    assert collection.search(embedded_query, k=5) == collection.search(source, k=5) != []


def test_hits_of_several_modalities_are_sorted_by_relevance(collection):
    hits = collection.search(Source("text", "a bell"), ["image", "audio"], k=10)
    assert sorted(h.source.modality for h in hits) == ["audio"] * 5 + ["image"] * 5
    assert [h.relevance for h in hits] == sorted((h.relevance for h in hits), reverse=True)
    for modality in ("image", "audio"):
        scores = [h.score for h in hits if h.source.modality == modality]
        assert scores == sorted(scores, reverse=True)
    assert collection.search(Source("text", "a bell"), ["image", "audio"], k=2) == hits[:2]


def test_an_open_reader_sees_new_captions(run_dir, files, tmp_path, monkeypatch):
    image = next((files / "images").iterdir())
    collection = Collection(tmp_path / "collection", run_dir)
    collection.index([Item(Source("image", image), ("a bell",))], files, show_progress=False)
    reader = Collection(tmp_path / "collection")
    assert [hit.item.captions for hit in reader.search(Source("image", image), include_query=True)] == [("a bell",)]
    collection.index([Item(Source("image", image), ("renamed",))], files, show_progress=False)
    monkeypatch.setattr("triptych.search.collection.REFRESH_SECONDS", 0.0)
    assert [hit.item.captions for hit in reader.search(Source("image", image), include_query=True)] == [("renamed",)]


def test_another_space_raises(run_dir, collection, tmp_path):
    changed = load(run_dir)
    next(changed.parameters()).data += 0.1
    save(changed, tmp_path / "other.safetensors")
    with pytest.raises(CollectionError, match="made with another space"):
        Collection(collection.folder, tmp_path / "other.safetensors")


def test_folders_that_are_not_collections_raise(run_dir, tmp_path):
    with pytest.raises(CollectionError, match="no collection here; create one with `triptych index"):
        Collection(tmp_path)
    (tmp_path / "items.parquet").write_text("no")
    with pytest.raises(CollectionError, match="earlier version"):
        Collection(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("text")
    with pytest.raises(CollectionError, match="contains other files"):
        Collection(tmp_path / "other", run_dir)


def test_an_unreadable_query_raises(collection, tmp_path):
    with pytest.raises(MediaError, match="no such audio file"):
        collection.search(Source("audio", tmp_path / "missing.wav"))
    with pytest.raises(MediaError, match=r"the text .*is empty"):
        collection.search(Source("text", "  "))


def test_a_collection_can_be_at_an_object_store_uri(run_dir, files, tmp_path):
    collection = Collection("memory://triptych-test", run_dir)
    result = collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    assert result.added == len(collection) == 11
    assert collection.search(Source("text", "a bell"), k=3)
    uri = f"file://{tmp_path}/elsewhere"
    Collection(uri, run_dir).index(items_from_folder(files, collection.space), files, show_progress=False)
    assert len(Collection(uri)) == 11
    assert Path(tmp_path / "elsewhere").is_dir()
