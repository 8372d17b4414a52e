"""Indexing: only new and changed items are embedded, and an interruption loses nothing that was stored."""

import os
import shutil
import threading
import time

import pytest
import torch

from triptych.data import manifest
from triptych.errors import CollectionError
from triptych.interfaces import Source
from triptych.search.collection import Collection
from triptych.search.ingest import Ingest
from triptych.search.lease import acquire_write_access
from triptych.search.scan import items_from_folder, items_from_rows
from triptych.search.store import Writer


def test_reindexing_embeds_only_new_and_changed_files(collection, files):
    again = Collection(collection.folder)
    assert again.list_items() == collection.list_items()
    for entry in collection.list_items():
        assert torch.equal(again.load_features(entry.id).embedding, collection.load_features(entry.id).embedding)
    images = sorted((files / "images").iterdir())
    images[0].write_bytes(images[1].read_bytes())  # changed
    images[2].unlink()  # deleted
    shutil.copy(images[3], files / "images" / "new.png")
    result = again.index(items_from_folder(files, again.space), files, show_progress=False)
    assert (result.added, result.unchanged, result.removed) == (2, 9, 1)
    assert len(Collection(collection.folder)) == 11


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
    assert len(Collection(collection.folder)) == 11


def test_indexing_saves_intermediate_results(run_dir, files, tmp_path, monkeypatch):
    monkeypatch.setattr("triptych.search.ingest.ITEMS_PER_CHUNK", 4)
    monkeypatch.setattr("triptych.search.ingest.SAVE_SECONDS", 0.0)
    saves = []
    add = Writer.upsert
    monkeypatch.setattr(Writer, "upsert", lambda self, rows: (saves.append(len(rows)), add(self, rows)))
    collection = Collection(tmp_path / "collection", run_dir)
    collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    assert len(saves) >= 4
    assert sum(saves) == 11


def test_unreadable_files_are_reported_and_the_rest_is_indexed(run_dir, files, tmp_path):
    (files / "broken.wav").write_text("not audio")
    (files / "empty.txt").write_text("")
    collection = Collection(tmp_path / "collection", run_dir)
    result = collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    assert len(collection) == 11
    assert sorted(source.path.name for source in result.failures) == ["broken.wav", "empty.txt"]


def test_interrupted_indexing_keeps_stored_items(run_dir, files, tmp_path, monkeypatch):
    collection = Collection(tmp_path / "collection", run_dir)
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
    again = Collection(tmp_path / "collection")
    result = again.index(items, files, show_progress=False)
    assert result.unchanged > 0
    assert result.unchanged + result.added == 11


def test_nothing_is_embedded_twice(run_dir, files, tmp_path, monkeypatch):
    collection = Collection(tmp_path / "collection", run_dir)
    collection.index(items_from_folder(files, collection.space), files, show_progress=False)

    def fail_if_called(*arguments, **named):
        raise AssertionError("embedded again")

    monkeypatch.setattr("triptych.embedding._iter_inputs", fail_if_called)
    again = Collection(tmp_path / "collection", run_dir)
    assert again.index(items_from_folder(files, again.space), files, show_progress=False).unchanged == 11
    shutil.move(files / "note.txt", files / "moved.txt")  # the same content at another path
    result = again.index(items_from_folder(files, again.space), files, show_progress=False)
    assert (result.added, result.unchanged, result.removed) == (1, 10, 1)


def test_a_search_during_indexing_sees_stored_items(run_dir, files, tmp_path, monkeypatch):
    monkeypatch.setattr("triptych.search.ingest.ITEMS_PER_CHUNK", 2)
    monkeypatch.setattr("triptych.search.ingest.SAVE_SECONDS", 0.0)
    monkeypatch.setattr("triptych.search.collection.REFRESH_SECONDS", 0.0)
    writer = Collection(tmp_path / "collection", run_dir)
    writer.index(items_from_folder(files / "images", writer.space), files / "images", show_progress=False)
    embed, has_started = Ingest._embed, threading.Event()

    def embed_slowly(self, *arguments):
        has_started.set()
        time.sleep(0.15)
        return embed(self, *arguments)

    monkeypatch.setattr(Ingest, "_embed", embed_slowly)
    thread = threading.Thread(
        target=lambda: writer.index(items_from_folder(files, writer.space), files, show_progress=False)
    )
    reader, hit_counts = Collection(tmp_path / "collection"), []
    thread.start()
    has_started.wait(10)
    while thread.is_alive():
        hit_counts.append(len(reader.search(Source("text", "a bell"), k=100, fold_duplicates=False)))
    thread.join()
    hit_counts.append(len(reader.search(Source("text", "a bell"), k=100, fold_duplicates=False)))
    assert hit_counts == sorted(hit_counts)
    assert hit_counts[-1] == 11
    assert len(set(hit_counts)) > 2, "no intermediate version was seen"


def test_two_processes_cannot_index_at_once(collection, files):
    other = Collection(collection.folder)
    message = f"process {os.getpid()} on .* is indexing into this collection; wait until that process has ended"
    with acquire_write_access(collection.uri), pytest.raises(CollectionError, match=message):
        other.index(items_from_folder(files, other.space), files, show_progress=False)


def test_a_file_that_becomes_unreadable_is_removed(collection, files):
    audio = next((files / "audio").iterdir())
    audio.write_bytes(b"not audio")
    result = collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    assert [str(source.content) for source in result.failures] == [str(audio.resolve())]
    assert len(collection) == 10


def test_metadata_is_updated_without_embedding(collection, files, monkeypatch):
    before = {e.id: e.row_id for e in collection.list_items()}
    image = next((files / "images").iterdir())
    os.utime(image, (1e9, 1e9))
    with monkeypatch.context() as patch:
        patch.setattr("triptych.embedding._iter_inputs", lambda *a: pytest.fail("the encoder ran"))
        collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    entry = next(e for e in collection.list_items() if e.source.content == image.resolve())
    assert entry.modified_time == 1e9
    assert {e.id: e.row_id for e in collection.list_items()} == before
    assert len(collection.search(Source("image", image), ["image"], k=1)) == 1


def test_an_item_of_two_origins_keeps_its_captions_until_the_last_origin_drops_it(
    run_dir, synthetic_manifest, tmp_path
):
    rows, folder = manifest.read(synthetic_manifest).rows[:4], synthetic_manifest.parent / "images"
    collection, root = Collection(tmp_path / "collection", run_dir), synthetic_manifest.parent.name
    image_paths = {row.image.resolve() for row in rows if row.image}
    items = [item for item in items_from_folder(folder, collection.space) if item.source.content in image_paths]
    assert len(items) == 4

    def index_origin(new_items, origin):
        result = collection.index(new_items, origin, show_progress=False)
        entries = [entry for entry in collection.list_items() if entry.source.modality == "image"]
        return result, {entry.source.content: entry for entry in entries}

    def image_items(rows):
        return [item for item in items_from_rows(rows, collection.space) if item.source.modality == "image"]

    _, before = index_origin(image_items(rows), synthetic_manifest)
    assert all(entry.captions and entry.columns for entry in before.values())
    result, after = index_origin(items, folder)
    assert (result.added, result.unchanged, result.removed) == (0, 4, 0)
    for path, entry in after.items():
        assert entry.captions == before[path].captions
        assert entry.columns == before[path].columns
        assert entry.origins == [f"{root}/images", f"{root}/{synthetic_manifest.name}"]
    result, after = index_origin(image_items(rows[1:]), synthetic_manifest)  # the folder still contains the first
    assert (result.removed, len(after)) == (0, 4)
    first = after[items[0].source.content]
    assert (first.origins, first.captions, first.columns) == ([f"{root}/images"], (), {})
    result, after = index_origin(
        items[2:], folder
    )  # no origin contains the first, the manifest still contains the second
    assert (result.removed, len(after)) == (1, 3)
    assert after[items[1].source.content] == before[items[1].source.content]
    result, _ = index_origin(items[2:], folder)
    assert (result.added, result.unchanged, result.removed) == (0, 2, 0)


def test_the_result_reports_the_seconds_of_each_phase(run_dir, files, tmp_path):
    collection, started = Collection(str(tmp_path / "timed"), run_dir), time.perf_counter()
    result = collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    elapsed = time.perf_counter() - started
    assert set(result.seconds) == {"scanning", "embedding", "storing"}
    assert all(seconds > 0 for seconds in result.seconds.values())
    assert sum(result.seconds.values()) <= elapsed
