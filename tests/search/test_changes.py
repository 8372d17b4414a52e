"""A collection that changes while it is open, and items that several origins have."""

import csv
import json
import os
import shutil
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from triptych.app.cli import app
from triptych.checkpoint import load, save
from triptych.contracts import Source
from triptych.data import manifest
from triptych.errors import CollectionError, UsageError
from triptych.search import gallery
from triptych.search.collection import Collection
from triptych.search.items import items_in, items_of
from triptych.search.query import Where, read_moment

WORDS = Source("text", "a bell")


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch):
    monkeypatch.setattr("triptych.search.collection.LOOK_SECONDS", 0.0)


def index(place, run, files, rebuild=False):
    collection = Collection.create(place, run, rebuild)
    return collection.index(items_in(files, collection.space), files, show=False)


def seen(collection, query, **settings):
    """What is found, with its scores."""
    hits = collection.search(query, k=100, fold=False, include_query=True, **settings)
    return {Path(hit.item).name: round(hit.score, 4) for hit in hits}


def another(world, folder, place=9):
    """A picture of the world that the folder does not have."""
    return shutil.copy(sorted((world.parent / "images").iterdir())[place], folder / "images" / f"zz{place}.png")


def replace_the_last(collection, files, world, run):
    """The file with the highest number goes, and another comes; each is indexed by itself."""
    numbers = {entry.number: entry for entry in collection.entries() if entry.item.source.modality == "image"}
    last = numbers[max(numbers)].item.source.content
    assert isinstance(last, Path)
    last.unlink()
    index(collection.place, run, files)
    new = another(world, files)
    index(collection.place, run, files)
    return Path(new)


@pytest.fixture
def pictures(files):
    """The same folder with nothing after its pictures, so that they have the highest numbers."""
    shutil.rmtree(files / "sounds")
    (files / "note.txt").unlink()
    return files


@pytest.fixture
def reader(pictures, run, tmp_path):
    index(tmp_path / "pictures", run, pictures)
    reader = Collection.open(tmp_path / "pictures")
    assert len(seen(reader, WORDS)) == 5
    return reader


def test_a_number_is_never_used_again(reader, pictures, world, run):
    before = {entry.number for entry in reader.entries()}
    new = replace_the_last(reader, pictures, world, run)
    (number,) = {entry.number for entry in reader.entries()} - before
    assert number > max(before)
    query = Source("image", new)
    assert seen(reader, query) == seen(Collection.open(reader.place), query)
    assert seen(reader, query)[new.name] == pytest.approx(1, abs=1e-3)
    for file in (pictures / "images").iterdir():
        file.unlink()
    shutil.copy(world.parent / "images" / new.name.replace("zz9", "000009"), new)
    index(reader.place, run, pictures)
    assert [entry.number for entry in reader.entries()] == [number]
    new.unlink()
    Collection.create(reader.place, run).index([], pictures, show=False)
    another(world, pictures, 8)
    index(reader.place, run, pictures)
    assert [entry.number for entry in reader.entries()] == [number + 1], "also when nothing was left"


def test_lists_on_disk_do_not_score_a_new_file_as_a_gone_one(reader, pictures, world, run, monkeypatch):
    monkeypatch.setattr(gallery, "PAYS", 2)
    gallery.make_lists(reader.store, "image", reader._lists, np.eye(reader.space.recipe.space.width, dtype=np.float32))
    monkeypatch.setattr(gallery, "STALE", 1.0)  # they stay as they are
    new = replace_the_last(reader, pictures, world, run)
    fresh = Collection.open(reader.place)
    assert seen(fresh, Source("image", new))[new.name] == pytest.approx(1, abs=1e-3)
    assert fresh._galleries["image"][1].lists is not None


def test_made_anew_under_a_reader_it_is_read_anew(collection, files, run, world):
    reader = Collection.open(collection.place)
    where = Where(folder=files / "images")
    assert len(seen(reader, WORDS, where=where)) == 5
    first, second, *_ = sorted((files / "images").iterdir())
    first.unlink()  # the same number of files, and another number each
    another(world, files)
    index(collection.place, run, files, rebuild=True)
    query, fresh = Source("image", second), Collection.open(collection.place)
    assert seen(reader, query) == seen(fresh, query)
    assert seen(reader, query, where=where) == seen(fresh, query, where=where)
    one, other = reader.search(WORDS, k=100), fresh.search(WORDS, k=100)
    assert [hit.relevance for hit in one] == pytest.approx([hit.relevance for hit in other])


def test_made_anew_with_another_space_it_is_not_asked_with_the_old_one(collection, files, run, tmp_path):
    reader = Collection.open(collection.place)
    (entry, *_) = reader.entries()
    changed = load(run)
    next(changed.parameters()).data += 0.1
    save(changed, tmp_path / "other.safetensors")
    index(collection.place, tmp_path / "other.safetensors", files, rebuild=True)
    for ask in (lambda: reader.search(WORDS), lambda: reader.similar(entry.id), lambda: reader.features(entry.id)):
        with pytest.raises(CollectionError, match=r"made anew with another space .*open it again"):
            ask()
    with pytest.raises(CollectionError, match="another space"):
        reader.index(items_in(files, reader.space), files, show=False)
    index(collection.place, run, files, rebuild=True)
    assert seen(reader, WORDS) == seen(Collection.open(collection.place), WORDS)


@pytest.mark.parametrize("has_lists", [False, True])
def test_a_filter_reads_what_is_there_now(run, world, tmp_path, has_lists, monkeypatch):
    monkeypatch.setattr(gallery, "PAYS", 2 if has_lists else 1000)
    rows = list(csv.DictReader(world.read_text().splitlines()))[:6]
    pairs = world.parent / "tagged.csv"

    def tagged(tags):
        lines = [{**row, "tag": tag} for row, tag in zip(rows, tags, strict=True)]
        with pairs.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*lines[0]])
            writer.writeheader()
            writer.writerows(lines)
        made = Collection.create(tmp_path / "tags", run)
        made.index(items_of(manifest.read(pairs).rows, made.space), pairs, show=False)

    try:
        tagged("aabbbb")
        reader, where = Collection.open(tmp_path / "tags"), Where(columns={"tag": "a"})
        assert len(seen(reader, WORDS, want=["image"], where=where)) == 2
        tagged("aaaaab")
        assert len(seen(reader, WORDS, want=["image"], where=where)) == 5
    finally:
        pairs.unlink()


def test_what_two_origins_have_keeps_its_captions_and_goes_with_the_last(run, world, tmp_path):
    rows, folder = manifest.read(world).rows[:4], world.parent / "images"
    collection = Collection.create(tmp_path / "collection", run)
    own = {row.image.resolve() for row in rows if row.image}
    items = [item for item in items_in(folder, collection.space) if item.source.content in own]
    assert len(items) == 4

    def indexed(some, origin):
        done = collection.index(some, origin, show=False)
        entries = [entry for entry in collection.entries() if entry.item.source.modality == "image"]
        return done, {entry.item.source.content: entry for entry in entries}

    def of(rows):
        return [item for item in items_of(rows, collection.space) if item.source.modality == "image"]

    _, before = indexed(of(rows), world)
    assert all(entry.item.captions and entry.item.columns for entry in before.values())
    done, after = indexed(items, folder)
    assert (done.added, done.kept, done.dropped) == (0, 4, 0)
    for path, entry in after.items():
        assert entry.item.captions == before[path].item.captions
        assert entry.item.columns == before[path].item.columns
        assert entry.origins == sorted([str(world.resolve()), str(folder.resolve())])
    done, after = indexed(of(rows[1:]), world)  # the folder still has the first
    assert (done.dropped, len(after)) == (0, 4)
    first = after[items[0].source.content]
    assert (first.origins, first.item.captions, first.item.columns) == ([str(folder.resolve())], (), {})
    done, after = indexed(items[2:], folder)  # nobody has the first, the manifest still has the second
    assert (done.dropped, len(after)) == (1, 3)
    assert after[items[1].source.content] == before[items[1].source.content]
    done, _ = indexed(items[2:], folder)
    assert (done.added, done.kept, done.dropped) == (0, 2, 0)


@pytest.mark.parametrize(("until", "count"), [("2001-09-08", 0), ("2001-09-09", 11), ("2001-09-09T01:00", 0)])
def test_until_a_day_is_to_its_end(collection, files, until, count):
    noon = datetime(2001, 9, 9, 12).timestamp()
    for file in files.rglob("*.*"):
        os.utime(file, (noon, noon))
    collection.index(items_in(files, collection.space), files, show=False)
    assert len(seen(collection, WORDS, where=Where(until=read_moment(until)))) == count
    command = ["search", "a bell", "--in", collection.place, "--until", until, "--json", "-k", "50"]
    assert len(json.loads(CliRunner().invoke(app, command).stdout)) == count
    assert len(seen(collection, WORDS, where=Where(since=date(2001, 9, 9), until=date(2001, 9, 9)))) == 11


@pytest.mark.parametrize("written", ["yesterday", "2001-13-01", "", "0001-01-01"])
def test_days_that_are_none(written):
    with pytest.raises(UsageError, match=r"is no day|no file is of that time"):
        _ = Where(since=read_moment(written)).sql


def test_how_a_text_file_began_is_kept_whatever_becomes_of_it(collection, files, run):
    """What is shown of a text is what was embedded: its path may lead elsewhere by now."""
    note = files / "note.txt"
    began = note.read_text().strip()

    def kept() -> set[str | None]:
        reader = Collection.open(collection.place)
        (entry,) = [e for e in reader.entries() if e.item.source.content == note.resolve()]
        (hit,) = [hit for hit in reader.search(WORDS, ["text"]) if hit.id == entry.id]
        return {entry.excerpt, hit.excerpt}

    assert kept() == {began}
    os.utime(note)
    index(collection.place, run, files)  # the same content with another date
    assert kept() == {began}
    note.unlink()
    assert kept() == {began}
    note.write_text("other words")
    index(collection.place, run, files)
    assert kept() == {"other words"}
