"""A disk that is full or read-only is called that, and neither a collection nor a cache is called damaged for it."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOM = 1_000_000
# Writes to a disk until it fails, in each of several ways; prints what was said.
PROGRAM = """
import json, subprocess, sys
from pathlib import Path
import pyarrow as pa
import torch
from triptych.data.cache import Cache, Shelf
from triptych.contracts import Source
from triptych.errors import TriptychError
from triptych.search.lease import WriteAccess, write_access
from triptych.search.store import Note
from triptych.search.writer import Writer

disk, state = Path(sys.argv[1]), sys.argv[2]
picture = disk.parent / "picture.png"
picture.write_bytes(b"a picture")
cache = Cache(disk / "cache")
cache.keys([Source("image", picture)])
shelf = Shelf(disk / "cache" / "some", 8, "about")
shelf.add([(b"known", torch.zeros(1, 8))])
writer = Writer.create(str(disk / "collection"), Note("space", "fingerprint"), 2, WriteAccess())
schema = writer.store.schema
row = {f.name: pa.nulls(1, f.type) for f in schema}
row |= {"id": ["a"], "number": [0], "vector": pa.array([[0.0, 0.0]], schema.field("vector").type)}
writer.add(pa.table(row))
if state == "read-only":
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
else:
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(512)):
                pass
        except OSError:
            pass

def lock():
    with write_access(str(disk / "collection")):
        pass

said = {}
for name, work in {
    "store, add": lambda: writer.add(pa.table(row)),
    "store, drop": lambda: writer.drop(["a"]),
    "store, lock": lock,
    "cache, features": lambda: shelf.add([(b"new", torch.zeros(100, 8))]),
    "cache, shelf": lambda: Shelf(disk / "cache" / "another", 8, "about"),
    "cache, index": lambda: cache.keys([Source("image", path) for path in map(Path, sys.argv[3:])]),
}.items():
    try:
        work()
        said[name] = "nothing"
    except TriptychError as error:
        said[name] = str(error)
print(json.dumps(said))
"""


@pytest.fixture(scope="module", params=["full", "read-only"])
def said(request, tmp_path_factory):
    """What a program said that wrote to a small disk of its own."""
    folder = tmp_path_factory.mktemp("disk")
    (folder / "disk").mkdir()
    files = [folder / f"{number}.png" for number in range(500)]
    for file in files:
        file.write_bytes(b"some content")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(folder / "disk")]
    private = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*private, *mount], capture_output=True).returncode:
        pytest.skip("mounting a private tmpfs needs user namespaces, which this system does not allow")
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder / "disk"), request.param, *map(str, files)]
    done = subprocess.run(
        [*private, "sh", "-c", f'{shlex.join(mount)} && exec "$@"', "sh", *program],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return request.param, json.loads(done.stdout)


def test_the_true_cause_is_told(said):
    state, messages = said
    cause = {"full": "(No space left on device); make room", "read-only": "(Read-only file system); the file system is"}
    if state == "full":
        assert messages.pop("store, lock") == "nothing", "a lock file takes no room"
    assert {name: message for name, message in messages.items() if cause[state] not in message} == {}
    assert {name: message for name, message in messages.items() if "damaged" in message or "rebuild" in message} == {}
