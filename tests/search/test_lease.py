"""Write access: a lease on an object store, its expiry, and URIs that cannot be written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.search.s3_server import BUCKET, s3_server
from triptych.errors import CollectionError
from triptych.search import lease
from triptych.search.collection import Collection
from triptych.search.lease import Lease, acquire_write_access
from triptych.search.scan import items_from_folder
from triptych.search.store import Store

TIMEOUT_SECONDS = 120


HOLD_PROGRAM = """
import os, sys, time
from triptych.search.lease import acquire_write_access
with acquire_write_access(sys.argv[1]):
    print("acquired", os.getpid(), flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_the_lease_of_a_killed_process_expires(s3, tmp_path, monkeypatch):
    uri = f"{s3}/{tmp_path.name}"
    command, environment = (
        [sys.executable, "-c", HOLD_PROGRAM, uri],
        os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as holder:
        try:
            assert holder.stdout
            word, pid = holder.stdout.readline().split()
            assert word == "acquired"
        finally:
            holder.send_signal(signal.SIGKILL)
    message = rf"process {pid} on .* is indexing into this collection; wait .* If .* killed, run .* again in \d+ s"
    with pytest.raises(CollectionError, match=message), acquire_write_access(uri):
        pass
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.0)
    with acquire_write_access(uri) as access:
        assert access.is_takeover
    with acquire_write_access(uri) as access:
        assert not access.is_takeover, "the lease was released"


@pytest.mark.slow
def test_a_lease_is_renewed(s3, tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.2)
    held_lease = Lease(f"{s3}/{tmp_path.name}")
    held_lease.acquire()
    try:
        first, deadline = held_lease._read_current(), time.monotonic() + TIMEOUT_SECONDS
        assert first
        while (now := held_lease._read_current()) is not None and now.renewed_at == first.renewed_at:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        held_lease.release()
    assert (last := held_lease._read_current()) is not None
    assert last.is_released
    assert len(held_lease._list_lease_paths()) == 1


@pytest.mark.slow
def test_a_store_without_conditional_writes_is_not_written(run_dir, files, monkeypatch):
    with s3_server("ignore-conditions") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        collection = Collection(f"s3://{BUCKET}/collection", run_dir)
        with pytest.raises(CollectionError, match=r"ignores conditional writes .* can be searched, but not changed"):
            collection.index(items_from_folder(files, collection.space), files, show_progress=False)
        assert Store.open(f"s3://{BUCKET}/collection") is None, "a table was written"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://no-such-bucket/collection", r"the object store cannot be written \(NoSuchBucket\); check the URI"),
        ("s3+ddb://bucket/collection", "can be searched, but not changed .* s3://, gs:// or az://"),
    ],
)
def test_an_unwritable_uri_raises(s3, uri, message):
    with pytest.raises(CollectionError, match=message), acquire_write_access(uri):
        pass


def test_local_folder_of_a_uri(tmp_path):
    assert lease.local_folder(str(tmp_path)) == lease.local_folder(tmp_path.as_uri()) == Path(tmp_path)
    assert lease.local_folder("s3://bucket/collection") is None
