"""What indexing leaves out: every file with its reason, none without a word."""

import os
import shutil
from collections import Counter

import pytest

from triptych.checkpoint import load
from triptych.contracts import Source
from triptych.errors import CollectionError
from triptych.search.collection import NOT_INDEXED, Collection
from triptych.search.items import FORMAT, LINK, NAME, SPECIAL, Skipped, items_in
from triptych.search.not_indexed import write_list


@pytest.fixture
def messy(files):
    """The user's folder with formats nobody here reads, names that are not UTF-8, and things that are no files."""
    names = "a.heic", "b.HEIC", "c.psd", "LICENSE", "v1.2 final notes", "Thumbs.db", ".DS_Store", "tab\tline\n.psd"
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


def test_whatever_is_passed_over_is_told_with_its_reason(run, messy, tmp_path):
    skipped = []
    collection = Collection.create(messy / "collection", run)
    items = list(items_in(messy, collection.space, skipped))
    assert collection.index(items, messy, show=False).added == len(items) == 11
    assert Counter((one.reason, one.ending) for one in skipped) == {
        (FORMAT, ".heic"): 2,
        (FORMAT, ".psd"): 2,
        (FORMAT, ".bin"): 1,
        (FORMAT, "without an ending"): 2,
        (NAME, ".png"): 2,
        (SPECIAL, ".png"): 1,
        (SPECIAL, ".wav"): 1,
        (LINK, "folder"): 1,
    }
    again = []
    list(items_in(messy, collection.space, again, except_for=collection.folder))
    assert set(again) == set(skipped), "the collection's own files are none of the user's"


def test_files_of_a_modality_that_the_space_lacks_are_told(run, files):
    space, skipped = load(run), []
    del space.encoders["audio"]
    assert "audio" not in space.modalities
    list(items_in(files, space, skipped))
    assert Counter(one.reason for one in skipped) == {"this space has no audio": 5, FORMAT: 1}


def test_the_list_is_whole_replaced_and_removed(run, messy, tmp_path):
    skipped = []
    (messy / "broken.wav").write_text("no sound")
    collection = Collection.create(tmp_path / "collection", run)
    done = collection.index(items_in(messy, collection.space, skipped), messy, show=False)
    assert write_list(collection.not_indexed, done.failures, skipped)
    head, *lines = (tmp_path / "collection" / NOT_INDEXED).read_text().splitlines()
    assert head == "file\treason"
    reasons = dict(line.split("\t") for line in lines)
    assert len(reasons) == len(skipped) + 1
    assert reasons[str(messy / "broken.wav")].startswith("cannot be read as sound")
    assert reasons[f"{messy}/tab\\tline\\n.psd"] == FORMAT
    assert reasons[f"{messy}/odd \\xff/inside.png"] == NAME
    write_list(collection.not_indexed, {}, skipped[:1])
    assert len(collection.not_indexed.read_text().splitlines()) == 2
    assert not write_list(collection.not_indexed, {}, [])
    assert not collection.not_indexed.exists()


def test_a_list_that_was_being_written_is_no_hindrance(run, files, tmp_path):
    folder = tmp_path / "collection"
    collection = Collection.create(folder, run)
    collection.index(items_in(files, collection.space), files, show=False)
    write_list(collection.not_indexed, {Source("text", "a\nb"): "why"}, [Skipped(files / "x.psd", FORMAT)])
    (folder / f".{NOT_INDEXED}.0123abcd.part").write_text("half of a list")
    Collection.create(folder, run, rebuild=True)
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(CollectionError, match="holds other things"):
        Collection.create(folder, run, rebuild=True)
    assert write_list(collection.not_indexed, {}, [Skipped(files / "x.psd", FORMAT)])
    assert not list(folder.glob(".*.part"))


def test_a_collection_on_an_object_store_has_its_list_on_this_machine(run):
    collection = Collection.create("memory://triptych-not-indexed", run)
    assert collection.not_indexed.is_relative_to(collection.cache.folder)
    other = Collection.create("memory://triptych-another", run)
    assert other.not_indexed != collection.not_indexed
