"""The table: concurrent writers lose and duplicate nothing, and tables of other formats are rejected."""

import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import pyarrow as pa
import pytest

from triptych.errors import CollectionError
from triptych.search import lease
from triptych.search.collection import Collection
from triptych.search.item import make_schema
from triptych.search.lease import WriteAccess, acquire_write_access
from triptych.search.scan import items_from_folder
from triptych.search.store import CollectionMetadata, Store, Writer, connect

NUM_WRITERS, TIMEOUT_SECONDS = 4, 120
FORK_PROGRAM = """
import os, sys, time
import lancedb

def run_concurrently(work):
    "Run several processes that start at the same time; forked, because importing the libraries is slow."
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
INDEX_PROGRAM = """
import torch
torch.set_num_threads(1)
from pathlib import Path
from triptych.errors import CollectionError
from triptych.search import ingest
from triptych.search.collection import Collection
from triptych.search.scan import items_from_folder
ingest.ITEMS_PER_CHUNK, ingest.SAVE_SECONDS = 8, 0.0
run, uri, *folders = sys.argv[2:]

def work(number):
    folder = Path(folders[number])
    while True:
        try:
            collection = Collection(uri, run)
            collection.index(items_from_folder(folder, collection.space), folder, show_progress=False)
            return
        except CollectionError as error:
            if "is indexing into this collection" not in str(error):
                raise
            os.write(1, f"{error}\\n".encode())  # in one write
            time.sleep(0.2)

run_concurrently(work)
"""
MERGE_PROGRAM = """
import pyarrow as pa
from triptych.search.lease import WriteAccess
from triptych.search.store import Store, Writer

def work(number):
    writer = Writer(Store.open(sys.argv[2]), WriteAccess())
    for first in range(0, 60, 10):
        ids = [str(i) for i in range(first, first + 10)]
        columns = {f.name: pa.nulls(10, f.type) for f in writer.store.schema}
        columns |= {"id": ids, "vector": pa.array([[0.0, 0.0]] * 10, writer.store.schema.field("vector").type)}
        writer.upsert(pa.table(columns))

run_concurrently(work)
"""


def start_program(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", program, str(NUM_WRITERS), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def wait_for(process: subprocess.Popen[str]) -> str:
    with process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, output
    return output


@pytest.fixture(params=["folder", "object store"])
def uri(request, tmp_path):
    if request.param == "folder":
        return str(tmp_path / "collection")
    return f"{request.getfixturevalue('s3')}/{tmp_path.name}"


def create_table(uri: str) -> Writer:
    """Create a table and a writer that does not check its lease."""
    return Writer.create(uri, CollectionMetadata("space", "fingerprint"), 2, WriteAccess())


def make_row(writer: Writer, item_id: str) -> pa.Table:
    schema = writer.store.schema
    columns = {field.name: pa.nulls(1, field.type) for field in schema}
    vector = pa.array([[0.0, 0.0]], schema.field("vector").type)
    return pa.table(columns | {"id": [item_id], "row_id": [writer.store.find_next_row_id()], "vector": vector})


def read_ids(uri: str) -> list[str]:
    store = Store.open(uri)
    assert store
    return sorted(store.select_rows(["id"])["id"].to_pylist())


@pytest.mark.slow
def test_four_processes_index_at_once(run_dir, files, uri, tmp_path, monkeypatch):
    """Two index the same folder, two others a subfolder each; each retries until it has write access."""
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    output = wait_for(
        start_program(FORK_PROGRAM + INDEX_PROGRAM, run_dir, uri, files, files, files / "images", files / "audio")
    )
    collection = Collection(uri)
    rows = collection.store.select_rows(["id", "row_id", "origins"]).to_pylist() if collection.store else []
    expected_files = {item.file for item in items_from_folder(files, collection.space)}
    assert Counter(item.file for item in collection.list_items()) == dict.fromkeys(expected_files, 1)
    assert len({row["row_id"] for row in rows}) == len(rows)
    assert Counter(len(row["origins"]) for row in rows) == {2: 10, 1: 1}, "items of a process were lost"
    message = rf"{uri}: (process \d+ on \S+|another process) is indexing into this collection; wait until .*"
    assert [line for line in output.splitlines() if not re.fullmatch(message, line)] == []


@pytest.mark.slow
def test_concurrent_upserts_without_a_lock_insert_no_duplicates(tmp_path):
    """Also with an index on the ids, with which Lance would not detect concurrent inserts."""
    uri = str(tmp_path / "collection")
    writer = create_table(uri)
    writer.upsert(make_row(writer, "first"))
    writer.optimize()
    assert "id" in {index.columns[0] for index in writer.store.table.list_indices()}
    wait_for(start_program(FORK_PROGRAM + MERGE_PROGRAM, uri))
    assert read_ids(uri) == sorted(["first", *map(str, range(60))])


@pytest.mark.slow
def test_a_process_that_lost_its_lease_cannot_write(s3, tmp_path, monkeypatch):
    uri = f"{s3}/{tmp_path.name}"
    with acquire_write_access(uri) as stopped:
        first = Writer.create(uri, CollectionMetadata("space", "fingerprint"), 2, stopped)
        first.upsert(make_row(first, "kept"))
        late = Writer(first.store, WriteAccess())  # as if it had been suspended between its check and its commit
        monkeypatch.setattr(lease, "LEASE_SECONDS", 0.0)
        with acquire_write_access(uri) as access:
            store = Store.open(uri)
            assert store
            second = Writer(store, access)
            with pytest.raises(CollectionError, match="has taken over while this process was suspended"):
                first.upsert(make_row(first, "rejected by the lease"))
            with pytest.raises(CollectionError, match="another process changed the collection's store"):
                late.upsert(make_row(late, "rejected by the table"))
            second.upsert(make_row(second, "new"))
        second.store.refresh()
    assert read_ids(uri) == ["kept", "new"]


@pytest.mark.slow
def test_a_commit_just_before_the_takeover_is_kept(tmp_path, monkeypatch):
    uri = str(tmp_path / "collection")
    before = create_table(uri)
    before.upsert(make_row(before, "first"))
    store = Store.open(uri)
    assert store
    restore = type(store.table).restore

    def restore_later(table, *arguments):
        monkeypatch.undo()
        before.upsert(make_row(before, "between"))
        restore(table, *arguments)

    monkeypatch.setattr(type(store.table), "restore", restore_later)
    Writer(store, WriteAccess(is_takeover=True))
    assert read_ids(uri) == ["between", "first"]
    with pytest.raises(CollectionError, match="another process changed"):
        before.upsert(make_row(before, "late"))


@contextmanager
def fail_deletions(writer: Writer, monkeypatch, errors: list[Exception]):
    """Make the next deletions fail, each with one of these errors."""
    delete = type(writer.store.table).delete

    def delete_or_fail(table, where):
        if errors:
            raise errors.pop(0)
        delete(table, where)

    with monkeypatch.context() as patch:
        patch.setattr(type(writer.store.table), "delete", delete_or_fail)
        patch.setattr("triptych.search.store.RETRY_SECONDS", 0.0)
        yield


def test_retryable_conflicts_are_retried(tmp_path, monkeypatch):
    writer = create_table(str(tmp_path / "collection"))
    writer.upsert(make_row(writer, "gone"))
    conflict = RuntimeError("lance error: Retryable commit conflict for version 3: preempted by another transaction")
    with fail_deletions(writer, monkeypatch, [conflict, conflict]):
        writer.delete(["gone"])
    assert read_ids(writer.store.uri) == []
    with (
        fail_deletions(writer, monkeypatch, [conflict] * 9),
        pytest.raises(CollectionError, match="another process changed the collection's store at the same time"),
    ):
        writer.delete(["gone"])


def test_a_collection_of_another_format_version_raises_and_is_rebuilt(run_dir, files, tmp_path, monkeypatch):
    uri = str(tmp_path / "collection")
    with monkeypatch.context() as patch:
        patch.setattr("triptych.search.store.FORMAT_VERSION", 2)
        Writer.create(uri, CollectionMetadata("space", "fingerprint", format_version=2), 2, WriteAccess())
    with pytest.raises(CollectionError, match=r"made by an earlier version of triptych; index again: .* --rebuild"):
        Collection(uri)
    rebuilt = Collection(uri, run_dir, rebuild=True)
    assert rebuilt.index(items_from_folder(files, rebuilt.space), files, show_progress=False).added == 11


def test_a_table_without_a_new_column_raises(tmp_path, monkeypatch):
    uri = str(tmp_path / "collection")
    create_table(uri)
    schema = make_schema(2).append(pa.field("title", pa.string()))
    monkeypatch.setattr("triptych.search.store.make_schema", lambda _: schema)
    with pytest.raises(CollectionError, match=r"made by an earlier version of triptych; index again: .* --rebuild"):
        Store.open(uri)


@pytest.mark.parametrize("metadata", [{b"triptych": b'{"space": "s", "form": 3}'}, {}])
def test_a_table_of_the_first_formats_or_of_another_program_raises(tmp_path, metadata):
    schema = pa.schema([("id", pa.string()), ("number", pa.int64())]).with_metadata(metadata)
    connect(str(tmp_path)).create_table("items", schema=schema)
    message = "made by an earlier version of triptych; index again" if metadata else "was not written by triptych"
    with pytest.raises(CollectionError, match=message):
        Store.open(str(tmp_path))
