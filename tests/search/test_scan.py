"""The items of folders and manifests, and the reasons why files are not indexed."""

import os
import shutil
from collections import Counter

import numpy as np
import pytest
import soundfile

from triptych.checkpoint import load
from triptych.data import manifest
from triptych.data.loader import source_of
from triptych.errors import CollectionError
from triptych.interfaces import Source
from triptych.search.collection import NOT_INDEXED_FILE, Collection
from triptych.search.item import Item
from triptych.search.scan import (
    LINKED_FOLDER,
    NON_UTF8_NAME,
    NOT_A_FILE,
    UNSUPPORTED_FORMAT,
    SkippedPath,
    items_from_folder,
    items_from_rows,
    split_into_segments,
    write_not_indexed,
)


@pytest.fixture
def messy_folder(files):
    """The folder with unsupported formats, paths that are not UTF-8, links and a pipe."""
    names = "a.svg", "b.SVG", "c.psd", "LICENSE", "v1.2 final notes", "Thumbs.db", ".DS_Store", "tab\tline\n.psd"
    for name in names:
        (files / name).write_text("x")
    odd = files / os.fsdecode(b"odd \xff")
    odd.mkdir()
    shutil.copy(files / "images" / "000000.png", odd / "inside.png")
    shutil.copy(files / "images" / "000000.png", files / os.fsdecode(b"odd \xfe.png"))
    (files / "gone.png").symlink_to("nowhere.png")
    (files / "linked").symlink_to("images")
    os.mkfifo(files / "pipe.wav")
    return files


def test_every_skipped_file_has_a_reason(run_dir, messy_folder, tmp_path):
    skipped = []
    collection = Collection(messy_folder / "collection", run_dir)
    items = list(items_from_folder(messy_folder, collection.space, skipped))
    assert collection.index(items, messy_folder, show_progress=False).added == len(items) == 11
    assert Counter((path.reason, path.extension) for path in skipped) == {
        (UNSUPPORTED_FORMAT, ".svg"): 2,
        (UNSUPPORTED_FORMAT, ".psd"): 2,
        (UNSUPPORTED_FORMAT, ".bin"): 1,
        (UNSUPPORTED_FORMAT, "no extension"): 2,
        (NON_UTF8_NAME, ".png"): 2,
        (NOT_A_FILE, ".png"): 1,
        (NOT_A_FILE, ".wav"): 1,
        (LINKED_FOLDER, "folder"): 1,
    }
    again = []
    list(items_from_folder(messy_folder, collection.space, again, exclude=collection.folder))
    assert set(again) == set(skipped), "files of the collection are not listed"


def test_files_of_a_modality_that_the_space_lacks_are_skipped(run_dir, files):
    space, skipped = load(run_dir), []
    del space.encoders["audio"]
    assert "audio" not in space.modalities
    list(items_from_folder(files, space, skipped))
    assert Counter(path.reason for path in skipped) == {"the space has no audio encoder": 5, UNSUPPORTED_FORMAT: 1}


def test_the_not_indexed_file_is_replaced_and_removed(run_dir, messy_folder, tmp_path):
    skipped = []
    (messy_folder / "broken.wav").write_text("not audio")
    collection = Collection(tmp_path / "collection", run_dir)
    result = collection.index(
        items_from_folder(messy_folder, collection.space, skipped), messy_folder, show_progress=False
    )
    assert write_not_indexed(collection.not_indexed_path, result.failures, skipped)
    head, *lines = (tmp_path / "collection" / NOT_INDEXED_FILE).read_text().splitlines()
    assert head == "file\treason"
    reasons = dict(line.split("\t") for line in lines)
    assert len(reasons) == len(skipped) + 1
    assert reasons[str(messy_folder / "broken.wav")].startswith("cannot be read as audio")
    assert reasons[f"{messy_folder}/tab\\tline\\n.psd"] == UNSUPPORTED_FORMAT
    assert reasons[f"{messy_folder}/odd \\xff/inside.png"] == NON_UTF8_NAME
    write_not_indexed(collection.not_indexed_path, {}, skipped[:1])
    assert len(collection.not_indexed_path.read_text().splitlines()) == 2
    assert not write_not_indexed(collection.not_indexed_path, {}, [])
    assert not collection.not_indexed_path.exists()


def test_stale_temporary_files_are_ignored_and_removed(run_dir, files, tmp_path):
    folder = tmp_path / "collection"
    collection = Collection(folder, run_dir)
    collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    write_not_indexed(
        collection.not_indexed_path, {Source("text", "a\nb"): "why"}, [SkippedPath(files / "x.psd", UNSUPPORTED_FORMAT)]
    )
    (folder / f".{NOT_INDEXED_FILE}.0123abcd.part").write_text("incomplete")
    Collection(folder, run_dir, rebuild=True)
    (folder / "thesis.tex").write_text("text")
    with pytest.raises(CollectionError, match="contains other files"):
        Collection(folder, run_dir, rebuild=True)
    assert write_not_indexed(collection.not_indexed_path, {}, [SkippedPath(files / "x.psd", UNSUPPORTED_FORMAT)])
    assert not list(folder.glob(".*.part"))


def test_an_object_store_collection_has_its_not_indexed_file_in_the_local_cache(run_dir):
    collection = Collection("memory://triptych-not-indexed", run_dir)
    assert collection.not_indexed_path.is_relative_to(collection.cache.folder)
    other = Collection("memory://triptych-another", run_dir)
    assert other.not_indexed_path != collection.not_indexed_path


def test_items_of_a_manifest_have_its_captions(run_dir, synthetic_manifest, tmp_path):
    rows = manifest.read(synthetic_manifest).rows[:4]
    collection = Collection(tmp_path / "collection", run_dir)
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
    collection = Collection(tmp_path / "collection", run_dir)
    collection.index(segments, tmp_path, show_progress=False)
    hit = collection.search(segments[1].source, ["audio"], k=1, include_query=True)[0]
    assert (hit.source.start, hit.source.end) == (10, 20)
