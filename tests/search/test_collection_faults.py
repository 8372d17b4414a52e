"""Collections after killed indexing processes and damage on disk."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
from typer.testing import CliRunner

from triptych.app.cli import app
from triptych.errors import CollectionError
from triptych.interfaces import Source
from triptych.search.collection import Collection
from triptych.search.item import METADATA_COLUMNS
from triptych.search.scan import items_from_folder

NUM_KILLS = 4
# Forks after torch is imported, so that a child starts at once; the threads of LanceDB start only in the child.
INDEX_PROGRAM = """
import os, sys, time
from pathlib import Path
import lancedb, torch
torch.set_num_threads(1)
from triptych.search import ingest
from triptych.search.collection import Collection
from triptych.search.scan import items_from_folder
folder, run, uri = map(Path, sys.argv[1:])
ingest.ITEMS_PER_CHUNK, ingest.SAVE_SECONDS = 8, 0.0
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        collection = Collection(uri, run)
        print("started", os.getpid(), flush=True)
        collection.index(items_from_folder(folder, collection.space), folder, show_progress=False)
        os._exit(0)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


def read_contents(folder):
    """Return the metadata and vectors of all items, in an order that does not depend on the indexing."""
    store = Collection(folder).store
    assert store is not None
    rows = sorted(store.select_rows([*METADATA_COLUMNS, "vector"]).to_pylist(), key=lambda row: row["id"])
    assert len({row["id"] for row in rows}) == len(rows), "duplicate ids"
    columns = [name for name in METADATA_COLUMNS if name != "row_id"]
    return [[row[name] for name in columns] for row in rows], np.array([row["vector"] for row in rows])


def assert_same_contents(one, other):
    """Check that the items are equal and the vectors equal up to rounding, which depends on the batch."""
    assert one[0] == other[0]
    np.testing.assert_allclose(one[1], other[1], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_an_index_killed_and_resumed_equals_an_uninterrupted_one(run_dir, synthetic_manifest, tmp_path, monkeypatch):
    folder, interrupted, uninterrupted = synthetic_manifest.parent, tmp_path / "interrupted", tmp_path / "uninterrupted"
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", INDEX_PROGRAM, str(folder), str(run_dir), str(interrupted)]
    rng, sizes = random.Random(0), []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    ) as server:
        assert server.stdin
        assert server.stdout
        for kill in range(NUM_KILLS + 1):
            server.stdin.write("go\n")
            word, pid = server.stdout.readline().split()
            assert word == "started"
            if kill < NUM_KILLS:
                time.sleep(rng.uniform(0.0, 0.3))
                with suppress(ProcessLookupError):  # it may have finished
                    os.kill(int(pid), signal.SIGKILL)
            assert server.stdout.readline().strip() == "ended"
            sizes.append(len(Collection(interrupted)) if (interrupted / "items.lance").exists() else 0)
        server.stdin.close()
    assert sizes == sorted(sizes), "stored items were lost"
    assert sizes[0] < sizes[-1] == 160, "no process was killed before it had finished"
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "another cache"))
    collection = Collection(uninterrupted, run_dir)
    collection.index(items_from_folder(folder, collection.space), folder, show_progress=False)
    assert_same_contents(read_contents(interrupted), read_contents(uninterrupted))


def damage_store(folder, damage):
    store = folder / "items.lance"
    if damage == "manifest":
        for file in (store / "_versions").iterdir():
            file.write_bytes(b"no")
    elif damage == "data":
        for file in (store / "data").iterdir():
            file.write_bytes(file.read_bytes()[:100])
    elif damage == "missing data":
        shutil.rmtree(store / "data")
    elif damage == "emptied":
        for file in sorted(store.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()


@pytest.mark.parametrize("damage", ["manifest", "data", "missing data", "emptied"])
def test_a_damaged_store_raises_and_is_rebuilt_from_the_cache(collection, files, run_dir, damage, monkeypatch):
    before = read_contents(collection.folder)
    damage_store(collection.folder, damage)
    with pytest.raises(CollectionError, match=r"rebuild it|no collection here"):
        Collection(collection.folder).search(Source("text", "a bell"))
    monkeypatch.setattr("triptych.embedding._iter_inputs", lambda *a: pytest.fail("the encoder ran"))
    rebuilt = Collection(collection.folder, run_dir, rebuild=True)
    assert rebuilt.index(items_from_folder(files, rebuilt.space), files, show_progress=False).added == 11
    assert_same_contents(read_contents(collection.folder), before)


def test_the_rebuild_option_repairs_a_damaged_store(collection, files, run_dir):
    before = read_contents(collection.folder)
    damage_store(collection.folder, "manifest")
    command = ["index", str(files), "--space", str(run_dir), "--collection", str(collection.folder)]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, CollectionError)
    assert "--rebuild" in str(result.exception)
    assert CliRunner().invoke(app, [*command, "--rebuild"]).exit_code == 0
    assert_same_contents(read_contents(collection.folder), before)
