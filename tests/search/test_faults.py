"""What must not break a collection: kills at any moment, damage on disk, two at once, a search while indexing."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from typer.testing import CliRunner

from triptych.app.cli import app
from triptych.contracts import Source
from triptych.errors import CollectionError
from triptych.search.collection import Collection
from triptych.search.ingest import Ingest
from triptych.search.items import items_in
from triptych.search.lease import write_access
from triptych.search.store import FACTS

KILLS = 4
# Forks after torch is loaded, so that a child begins at once; the store's own threads start only in the child.
CHILD = """
import os, sys, time
from pathlib import Path
import lancedb, torch
torch.set_num_threads(1)
from triptych.search import ingest
from triptych.search.collection import Collection
from triptych.search.items import items_in
from triptych.search.lease import write_access
folder, run, into = map(Path, sys.argv[1:])
ingest.CHUNK, ingest.SAVE_SECONDS = 8, 0.0
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        collection = Collection.create(into, run)
        print("started", os.getpid(), flush=True)
        collection.index(items_in(folder, collection.space), folder, show=False)
        os._exit(0)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


def contents(folder):
    """Everything a collection holds, without the order in which it came."""
    store = Collection.open(folder).store
    assert store is not None
    rows = sorted(store.rows([*FACTS, "vector"]).to_pylist(), key=lambda row: row["id"])
    assert len({row["id"] for row in rows}) == len(rows), "an item twice"
    keep = [name for name in FACTS if name != "number"]
    return [[row[name] for name in keep] for row in rows], np.array([row["vector"] for row in rows])


def assert_same(one, other):
    """The same items with the same vectors, but for the last digits: those depend on what stood beside in a batch."""
    assert one[0] == other[0]
    np.testing.assert_allclose(one[1], other[1], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed_it_equals_one_built_in_peace(run, world, tmp_path, monkeypatch):
    folder, war, peace = world.parent, tmp_path / "war", tmp_path / "peace"
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(folder), str(run), str(war)]
    rng, sizes = random.Random(0), []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    ) as server:
        assert server.stdin
        assert server.stdout
        for kill in range(KILLS + 1):
            server.stdin.write("go\n")
            word, pid = server.stdout.readline().split()
            assert word == "started"
            if kill < KILLS:
                time.sleep(rng.uniform(0.0, 0.3))
                with suppress(ProcessLookupError):  # what was left to do may be done by now
                    os.kill(int(pid), signal.SIGKILL)
            assert server.stdout.readline().strip() == "ended"
            sizes.append(len(Collection.open(war)) if (war / "items.lance").exists() else 0)
        server.stdin.close()
    assert sizes == sorted(sizes), "nothing stored is lost"
    assert sizes[0] < sizes[-1] == 160, "killed before it was done"
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "another cache"))
    collection = Collection.create(peace, run)
    collection.index(items_in(folder, collection.space), folder, show=False)
    assert_same(contents(war), contents(peace))


def test_nothing_is_embedded_twice(run, files, tmp_path, monkeypatch):
    collection = Collection.create(tmp_path / "collection", run)
    collection.index(items_in(files, collection.space), files, show=False)

    def never(*arguments, **named):
        raise AssertionError("embedded again")

    monkeypatch.setattr("triptych.space.Space._fresh", never)
    again = Collection.create(tmp_path / "collection", run)
    assert again.index(items_in(files, again.space), files, show=False).kept == 11
    shutil.move(files / "note.txt", files / "moved.txt")  # the content is known, only its place is new
    done = again.index(items_in(files, again.space), files, show=False)
    assert (done.added, done.kept, done.dropped) == (1, 10, 1)


def damage(folder, what):
    store = folder / "items.lance"
    if what == "manifest":
        for file in (store / "_versions").iterdir():
            file.write_bytes(b"no")
    elif what == "data":
        for file in (store / "data").iterdir():
            file.write_bytes(file.read_bytes()[:100])
    elif what == "missing data":
        shutil.rmtree(store / "data")
    elif what == "emptied":
        for file in sorted(store.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()


@pytest.mark.parametrize("what", ["manifest", "data", "missing data", "emptied"])
def test_a_damaged_store_is_named_and_rebuilt_from_the_cache(collection, files, run, what, monkeypatch):
    before = contents(collection.folder)
    damage(collection.folder, what)
    with pytest.raises(CollectionError, match=r"rebuild it|no collection here"):
        Collection.open(collection.folder).search(Source("text", "a bell"))
    monkeypatch.setattr("triptych.space.Space._fresh", lambda *a: pytest.fail("the encoder ran"))
    rebuilt = Collection.create(collection.folder, run, rebuild=True)
    assert rebuilt.index(items_in(files, rebuilt.space), files, show=False).added == 11
    assert_same(contents(collection.folder), before)


def test_the_command_rebuilds(collection, files, run):
    before = contents(collection.folder)
    damage(collection.folder, "manifest")
    command = ["index", str(files), "--space", str(run), "--into", str(collection.folder)]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, CollectionError)
    assert "--rebuild" in str(result.exception)
    assert CliRunner().invoke(app, [*command, "--rebuild"]).exit_code == 0
    assert_same(contents(collection.folder), before)


def test_a_search_while_indexing_finds_what_is_stored(run, files, tmp_path, monkeypatch):
    monkeypatch.setattr("triptych.search.ingest.CHUNK", 2)
    monkeypatch.setattr("triptych.search.ingest.SAVE_SECONDS", 0.0)
    monkeypatch.setattr("triptych.search.collection.LOOK_SECONDS", 0.0)
    writer = Collection.create(tmp_path / "collection", run)
    writer.index(items_in(files / "images", writer.space), files / "images", show=False)
    embed, going = Ingest._embed, threading.Event()

    def slowly(self, *arguments):
        going.set()
        time.sleep(0.15)
        return embed(self, *arguments)

    monkeypatch.setattr(Ingest, "_embed", slowly)
    thread = threading.Thread(target=lambda: writer.index(items_in(files, writer.space), files, show=False))
    reader, seen = Collection.open(tmp_path / "collection"), []
    thread.start()
    going.wait(10)
    while thread.is_alive():
        seen.append(len(reader.search(Source("text", "a bell"), k=100, fold=False)))
    thread.join()
    seen.append(len(reader.search(Source("text", "a bell"), k=100, fold=False)))
    assert seen == sorted(seen)
    assert seen[-1] == 11
    assert len(set(seen)) > 2, "some were found on the way"


def test_two_cannot_index_at_once(collection, files):
    other = Collection.open(collection.folder)
    refusal = f"process {os.getpid()} on .* is indexing into it; wait until it is done"
    with write_access(collection.place), pytest.raises(CollectionError, match=refusal):
        other.index(items_in(files, other.space), files, show=False)


def test_a_file_that_can_no_longer_be_read_is_no_longer_found(collection, files):
    sound = next((files / "sounds").iterdir())
    sound.write_bytes(b"no sound")
    done = collection.index(items_in(files, collection.space), files, show=False)
    assert [str(source.content) for source in done.failures] == [str(sound.resolve())]
    assert len(collection) == 10


def test_captions_and_dates_change_without_embedding(collection, files, monkeypatch):
    before = {e.id: e.number for e in collection.entries()}
    picture = next((files / "images").iterdir())
    os.utime(picture, (1e9, 1e9))
    with monkeypatch.context() as patch:
        patch.setattr("triptych.space.Space._fresh", lambda *a: pytest.fail("the encoder ran"))
        collection.index(items_in(files, collection.space), files, show=False)
    entry = next(e for e in collection.entries() if e.item.source.content == picture.resolve())
    assert entry.date == 1e9
    assert {e.id: e.number for e in collection.entries()} == before
    assert len(collection.search(Source("image", picture), ["image"], k=1)) == 1
