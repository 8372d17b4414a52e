"""Errors on a full or read-only disk name the disk; they do not report a damaged collection or cache."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

DISK_BYTES = 1_000_000
# Writes to a disk in several ways until it fails; prints the error messages.
PROGRAM = """
import json, subprocess, sys
from pathlib import Path
import pyarrow as pa
import torch
from triptych.data.cache import Cache, FeatureStore
from triptych.interfaces import Source
from triptych.errors import TriptychError
from triptych.search.lease import WriteAccess, acquire_write_access
from triptych.search.store import CollectionMetadata
from triptych.search.store import Writer

disk, state = Path(sys.argv[1]), sys.argv[2]
image = disk.parent / "image.png"
image.write_bytes(b"a image")
cache = Cache(disk / "cache")
cache.content_keys([Source("image", image)])
features = FeatureStore(disk / "cache" / "some", 8, "about")
features.add([(b"known", torch.zeros(1, 8))])
writer = Writer.create(str(disk / "collection"), CollectionMetadata("space", "fingerprint"), 2, WriteAccess())
schema = writer.store.schema
row = {f.name: pa.nulls(1, f.type) for f in schema}
row |= {"id": ["a"], "row_id": [0], "vector": pa.array([[0.0, 0.0]], schema.field("vector").type)}
writer.upsert(pa.table(row))
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
    with acquire_write_access(str(disk / "collection")):
        pass

messages = {}
for name, work in {
    "store, add": lambda: writer.upsert(pa.table(row)),
    "store, drop": lambda: writer.delete(["a"]),
    "store, lock": lock,
    "cache, features": lambda: features.add([(b"new", torch.zeros(100, 8))]),
    "cache, features": lambda: FeatureStore(disk / "cache" / "another", 8, "about"),
    "cache, index": lambda: cache.content_keys([Source("image", path) for path in map(Path, sys.argv[3:])]),
}.items():
    try:
        work()
        messages[name] = "nothing"
    except TriptychError as error:
        messages[name] = str(error)
print(json.dumps(messages))
"""


@pytest.fixture(scope="module", params=["full", "read-only"])
def messages_by_state(request, tmp_path_factory):
    """The error messages of a program that writes to a small private disk."""
    folder = tmp_path_factory.mktemp("disk")
    (folder / "disk").mkdir()
    files = [folder / f"{index}.png" for index in range(500)]
    for file in files:
        file.write_bytes(b"some content")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder / "disk")]
    unshare = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, *mount], capture_output=True).returncode:
        pytest.skip("mounting a private tmpfs needs user namespaces, which this system does not allow")
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder / "disk"), request.param, *map(str, files)]
    done = subprocess.run(
        [*unshare, "sh", "-c", f'{shlex.join(mount)} && exec "$@"', "sh", *program],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return request.param, json.loads(done.stdout)


def test_errors_name_the_disk_as_the_cause(messages_by_state):
    state, messages = messages_by_state
    cause = {
        "full": "(No space left on device); free disk space",
        "read-only": "(Read-only file system); the file system is",
    }
    if state == "full":
        assert messages.pop("store, lock") == "nothing", "a lock file needs no space"
    assert {name: message for name, message in messages.items() if cause[state] not in message} == {}
    assert {name: message for name, message in messages.items() if "damaged" in message or "rebuild" in message} == {}
