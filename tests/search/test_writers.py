"""Several processes that change one collection: nothing is lost, nothing is there twice."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from tests.search.s3_server import BUCKET, s3_server
from triptych.errors import CollectionError
from triptych.search import lease
from triptych.search.collection import Collection
from triptych.search.items import items_in
from triptych.search.lease import Lease, WriteAccess, write_access
from triptych.search.store import Note, Store
from triptych.search.writer import Writer

pytestmark = pytest.mark.slow

WRITERS, PATIENCE = 4, 120
FORK = """
import os, sys, time
import lancedb

def together(work):
    "Several processes that begin at the same moment; forked, as libraries take long to load."
    ready, start = os.pipe()
    children = []
    for number in range(int(sys.argv[1])):
        children.append(os.fork())
        if children[-1] == 0:
            os.close(start)
            os.read(ready, 1)
            try:
                work(number)
            except BaseException as error:
                print("failed", repr(error), flush=True)
                os._exit(1)
            os._exit(0)
    os.close(start)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""
INDEX = """
import torch
torch.set_num_threads(1)
from pathlib import Path
from triptych.errors import CollectionError
from triptych.search import ingest
from triptych.search.collection import Collection
from triptych.search.items import items_in
ingest.CHUNK, ingest.SAVE_SECONDS = 8, 0.0
run, into, *folders = sys.argv[2:]

def work(number):
    folder = Path(folders[number])
    while True:
        try:
            collection = Collection.create(into, run)
            collection.index(items_in(folder, collection.space), folder, show=False)
            return
        except CollectionError as error:
            if "is indexing into it" not in str(error):
                raise
            os.write(1, f"{error}\\n".encode())  # in one piece
            time.sleep(0.2)

together(work)
"""
MERGE = """
import pyarrow as pa
from triptych.search.lease import WriteAccess
from triptych.search.store import Store
from triptych.search.writer import Writer

def work(number):
    writer = Writer(Store.open(sys.argv[2]), WriteAccess())
    for first in range(0, 60, 10):
        ids = [str(i) for i in range(first, first + 10)]
        columns = {f.name: pa.nulls(10, f.type) for f in writer.store.schema}
        columns |= {"id": ids, "vector": pa.array([[0.0, 0.0]] * 10, writer.store.schema.field("vector").type)}
        writer.add(pa.table(columns))

together(work)
"""
HOLD = """
import os, sys, time
from triptych.search.lease import write_access
with write_access(sys.argv[2]):
    print("held", os.getpid(), flush=True)
    time.sleep(600)
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", program, str(WRITERS), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def finished(process: subprocess.Popen[str]) -> str:
    with process:
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def s3():
    """An object store that honours conditions, with an empty bucket."""
    with s3_server() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}"


@pytest.fixture(params=["folder", "object store"])
def place(request, tmp_path):
    if request.param == "folder":
        return str(tmp_path / "collection")
    return f"{request.getfixturevalue('s3')}/{tmp_path.name}"


def empty(place: str) -> Writer:
    """A new table, and what changes it without asking whether it may."""
    return Writer.create(place, Note("space", "fingerprint"), 2, WriteAccess())


def row(writer: Writer, name: str) -> pa.Table:
    schema = writer.store.schema
    columns = {field.name: pa.nulls(1, field.type) for field in schema}
    vector = pa.array([[0.0, 0.0]], schema.field("vector").type)
    return pa.table(columns | {"id": [name], "number": [writer.store.next_number()], "vector": vector})


def ids(place: str) -> list[str]:
    store = Store.open(place)
    assert store
    return sorted(store.rows(["id"])["id"].to_pylist())


def test_four_processes_index_at_once(run, files, place, tmp_path, monkeypatch):
    """Two index the same folder, two others a part of it each; whoever is refused comes again."""
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    said = finished(start(FORK + INDEX, run, place, files, files, files / "images", files / "sounds"))
    collection = Collection.open(place)
    rows = collection.store.rows(["id", "number", "origins"]).to_pylist() if collection.store else []
    wanted = {item.id for item in items_in(files, collection.space)}
    assert Counter(row["id"] for row in rows) == dict.fromkeys(wanted, 1)
    assert len({row["number"] for row in rows}) == len(rows)
    assert Counter(len(row["origins"]) for row in rows) == {2: 10, 1: 1}, "what a process has stored was lost"
    refusal = rf"{place}: (process \d+ on \S+|another process) is indexing into it; wait until it is done.*"
    assert [line for line in said.splitlines() if not re.fullmatch(refusal, line)] == []


def test_even_without_a_lock_merges_of_the_same_ids_double_nothing(tmp_path):
    """Also where an index on the ids would let Lance overlook that another process inserts them."""
    place = str(tmp_path / "collection")
    writer = empty(place)
    writer.add(row(writer, "first"))
    writer.tidy()
    assert "id" in {index.columns[0] for index in writer.store.table.list_indices()}
    finished(start(FORK + MERGE, place))
    assert ids(place) == sorted(["first", *map(str, range(60))])


def test_the_lease_of_a_killed_process_runs_out(s3, tmp_path, monkeypatch):
    place = f"{s3}/{tmp_path.name}"
    with start(HOLD, place) as holder:
        try:
            assert holder.stdout
            word, pid = holder.stdout.readline().split()
            assert word == "held"
        finally:
            holder.send_signal(signal.SIGKILL)
    refusal = rf"process {pid} on .* is indexing into it; wait .* If that process is dead, run this again in \d+ s"
    with pytest.raises(CollectionError, match=refusal), write_access(place):
        pass
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.0)
    with write_access(place) as access:
        assert access.is_takeover
    with write_access(place) as access:
        assert not access.is_takeover, "the lease was given back"


def test_a_holder_that_was_stopped_too_long_can_write_no_more(s3, tmp_path, monkeypatch):
    place = f"{s3}/{tmp_path.name}"
    with write_access(place) as stopped:
        first = Writer.create(place, Note("space", "fingerprint"), 2, stopped)
        first.add(row(first, "kept"))
        late = Writer(first.store, WriteAccess())  # as if it had been stopped between its check and its commit
        monkeypatch.setattr(lease, "LEASE_SECONDS", 0.0)
        with write_access(place) as access:
            store = Store.open(place)
            assert store
            second = Writer(store, access)
            with pytest.raises(CollectionError, match="has taken over while this process was stopped"):
                first.add(row(first, "refused by the lease"))
            with pytest.raises(CollectionError, match="another process has changed the collection's store"):
                late.add(row(late, "refused by the table"))
            second.add(row(second, "new"))
        second.store.refresh()
    assert ids(place) == ["kept", "new"]


def test_a_commit_just_before_the_takeover_is_kept(tmp_path, monkeypatch):
    place = str(tmp_path / "collection")
    before = empty(place)
    before.add(row(before, "first"))
    store = Store.open(place)
    assert store
    restore = type(store.table).restore

    def restore_later(table, *arguments):
        monkeypatch.undo()
        before.add(row(before, "between"))
        restore(table, *arguments)

    monkeypatch.setattr(type(store.table), "restore", restore_later)
    Writer(store, WriteAccess(is_takeover=True))
    assert ids(place) == ["between", "first"]
    with pytest.raises(CollectionError, match="another process has changed"):
        before.add(row(before, "late"))


def test_a_lease_is_renewed(s3, tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.2)
    held = Lease(f"{s3}/{tmp_path.name}")
    held.acquire()
    try:
        first, deadline = held._highest(), time.monotonic() + PATIENCE
        assert first
        while (now := held._highest()) is not None and now.renewed == first.renewed:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        held.release()
    assert (last := held._highest()) is not None
    assert last.is_released
    assert len(held._paths()) == 1


def test_a_store_that_ignores_conditions_is_not_written(run, files, monkeypatch):
    with s3_server("ignore-conditions") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        collection = Collection.create(f"s3://{BUCKET}/collection", run)
        with pytest.raises(CollectionError, match=r"ignores conditional writes .* it can be searched, but not written"):
            collection.index(items_in(files, collection.space), files, show=False)
        assert Store.open(f"s3://{BUCKET}/collection") is None, "something was written"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("s3://no-such-bucket/collection", r"the object store cannot be written \(NoSuchBucket\); check the address"),
        ("s3+ddb://bucket/collection", "can be searched, but not written .* s3://, gs:// or az://"),
    ],
)
def test_an_address_that_cannot_be_written_says_why(s3, address, message):
    with pytest.raises(CollectionError, match=message), write_access(address):
        pass


@contextmanager
def failing(writer: Writer, monkeypatch, errors: list[Exception]):
    """The next deletions fail, each with one of these errors."""
    delete = type(writer.store.table).delete

    def delete_or_fail(table, where):
        if errors:
            raise errors.pop(0)
        delete(table, where)

    with monkeypatch.context() as patch:
        patch.setattr(type(writer.store.table), "delete", delete_or_fail)
        patch.setattr("triptych.search.writer.PAUSE", 0.0)
        yield


def test_what_lance_calls_retryable_is_tried_again(tmp_path, monkeypatch):
    writer = empty(str(tmp_path / "collection"))
    writer.add(row(writer, "gone"))
    conflict = RuntimeError("lance error: Retryable commit conflict for version 3: preempted by another transaction")
    with failing(writer, monkeypatch, [conflict, conflict]):
        writer.drop(["gone"])
    assert ids(writer.store.place) == []
    with (
        failing(writer, monkeypatch, [conflict] * 9),
        pytest.raises(CollectionError, match="another process has changed the collection's store at the same time"),
    ):
        writer.drop(["gone"])


def test_a_place_is_a_folder_or_an_address(tmp_path):
    assert lease.local_folder(str(tmp_path)) == lease.local_folder(tmp_path.as_uri()) == Path(tmp_path)
    assert lease.local_folder("s3://bucket/collection") is None


def test_a_collection_of_an_earlier_form_is_refused_and_rebuilt(run, files, tmp_path, monkeypatch):
    place = str(tmp_path / "collection")
    with monkeypatch.context() as patch:
        patch.setattr("triptych.search.store.FORM", 2)
        Writer.create(place, Note("space", "fingerprint", form=2), 2, WriteAccess())
    with pytest.raises(CollectionError, match=r"made by another version of triptych; rebuild it: .* --rebuild"):
        Collection.open(place)
    anew = Collection.create(place, run, rebuild=True)
    assert anew.index(items_in(files, anew.space), files, show=False).added == 11
