"""Imports: the same items and hits, and nothing is left behind after an error."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from tests.search.test_archive import read_member, rewrite
from triptych.errors import CollectionError, UsageError
from triptych.files import lock
from triptych.search.archive import LENGTHS
from triptych.search.collection import Collection
from triptych.search.import_archive import import_collection

VECTORS = ("id", "vector", "embedding", "parts", "captions", "content_hash", "text", "modified_time")


def rewrite_verified(path, name, content):
    """Change a member of an archive, and its hash in the header."""
    header = json.loads(read_member(path, "collection.json"))
    header["sha256"][name] = hashlib.sha256(content).hexdigest()
    return rewrite(path, {name: content, "collection.json": json.dumps(header)})


def change_row(path, **values):
    first, *lines = read_member(path, "items.jsonl").splitlines()
    lines = [json.dumps(json.loads(first) | values).encode(), *lines]
    return rewrite_verified(path, "items.jsonl", b"\n".join(lines) + b"\n")


def test_the_imported_collection_is_the_same(collection, exported, files, tmp_path):
    header = import_collection(exported, str(tmp_path / "new"), {"mine": files}, show_progress=False)
    assert header.num_items == 11
    imported = Collection(tmp_path / "new")
    expected, rows = (c._require_store().select_rows(VECTORS).sort_by("id") for c in (collection, imported))
    assert rows == expected
    assert imported.list_items() == collection.list_items()
    assert imported.search("two red bells", k=11) == collection.search("two red bells", k=11)
    assert imported._require_store().metadata.table_id != collection._require_store().metadata.table_id
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["items.lance", "space.safetensors"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"file": "../../etc/passwd"}, "is not in a root of the collection"),
        ({"file": "/etc/passwd"}, "is not in a root of the collection"),
        ({"file": "mine/../../etc/passwd"}, "is not in a root of the collection"),
        ({"file": "mine/other.wav"}, "does not fit its item"),
        ({"modality": "smell"}, "unknown modality"),
        ({"row_id": -1}, "row ids are not ascending"),
        ({"row_id": "0"}, "invalid value"),
        ({"row_id": 2**80}, "invalid value"),
        ({"duration": "long"}, "invalid value"),
        ({"provenance": "x"}, "invalid value"),
        ({"extra": 1}, "has other columns"),
    ],
)
def test_invalid_rows_raise_and_leave_nothing(exported, tmp_path, values, message):
    change_row(exported, **values)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CollectionError, match=message):
        import_collection(exported, str(tmp_path / "new"), show_progress=False)
    assert sorted(tmp_path.iterdir()) == before


def test_invalid_vectors_and_spaces_raise(exported, tmp_path):
    content = exported.read_bytes()
    vectors = read_member(exported, "vectors.bin")
    path = rewrite_verified(exported, "vectors.bin", np.float32(np.nan).tobytes() + vectors[4:])
    with pytest.raises(CollectionError, match="contains NaN or infinity"):
        import_collection(path, str(tmp_path / "new"), show_progress=False)
    exported.write_bytes(content)
    path = rewrite_verified(exported, "space.safetensors", b"another space")
    with pytest.raises(CollectionError, match=r"damaged \(the space has another fingerprint"):
        import_collection(path, str(tmp_path / "new"), show_progress=False)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("embedding", "parts", "message"),
    [
        (b"", None, "different dimensions"),
        (b"\0" * 8, None, "different dimensions"),  # the other items have no embedding besides the key
        (None, b"", "different dimensions"),
        (None, b"\0" * 6, "different dimensions"),
        (b"\0" * 7, None, "incomplete numbers"),
        (None, np.float16(np.nan).tobytes() * 32, "contains NaN or infinity"),
        (np.float32(np.inf).tobytes() * 32, None, "contains NaN or infinity"),
    ],
)
def test_invalid_embeddings_and_parts_raise(exported, tmp_path, embedding, parts, message):
    vectors = read_member(exported, "vectors.bin")
    key_bytes = 4 * json.loads(read_member(exported, "collection.json"))["key_dim"]
    sizes = LENGTHS.pack(*(-1 if value is None else len(value) for value in (embedding, parts)))
    last = vectors[-key_bytes - LENGTHS.size : -LENGTHS.size] + sizes + (embedding or b"") + (parts or b"")
    path = rewrite_verified(exported, "vectors.bin", vectors[: -key_bytes - LENGTHS.size] + last)
    with pytest.raises(CollectionError, match=message):
        import_collection(path, str(tmp_path / "new"), show_progress=False)
    assert not (tmp_path / "new").exists()


def test_wrong_roots_and_targets_raise_and_change_nothing(collection, exported, files, tmp_path):
    with pytest.raises(CollectionError, match=r"there is a collection already; give another folder with -o"):
        import_collection(exported, collection.uri, show_progress=False)
    assert len(Collection(collection.uri)) == 11
    with pytest.raises(CollectionError, match="contains other files"):
        import_collection(exported, str(files), show_progress=False)
    with pytest.raises(UsageError, match="root 'other' is unknown; known: mine"):
        import_collection(exported, str(tmp_path / "new"), {"other": files}, show_progress=False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CollectionError, match=r"^--root mine=.*: 11 of 11 compared files are missing"):
        import_collection(exported, str(tmp_path / "new"), {"mine": tmp_path / "empty"}, show_progress=False)
    assert not (tmp_path / "new").exists()
    import_collection(exported, str(tmp_path / "empty"), {"mine": files}, show_progress=False)
    assert len(Collection(tmp_path / "empty")) == 11


def test_a_full_disk_is_noticed_before_anything_is_written(exported, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(CollectionError, match="the disk has 0 MiB free; importing needs"):
        import_collection(exported, str(tmp_path / "new"), show_progress=False)
    assert not (tmp_path / "new").exists()


def test_the_folder_of_a_killed_import_is_removed(exported, files, tmp_path):
    stale = tmp_path / ".new.import-0a1b2c3d.part"
    (stale / "items.lance").mkdir(parents=True)
    import_collection(exported, str(tmp_path / "new"), show_progress=False)
    assert not stale.exists()


def test_an_import_that_is_running_is_not_disturbed(exported, tmp_path):
    running = tmp_path / ".new.import-0a1b2c3d.part"
    running.mkdir()
    with (
        lock(tmp_path / ".new.import.lock"),
        pytest.raises(CollectionError, match="new: another process imports into this folder; wait until it has ended"),
    ):
        import_collection(exported, str(tmp_path / "new"), show_progress=False)
    assert running.exists()
    import_collection(exported, str(tmp_path / "new"), show_progress=False)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".new")] == []


def test_a_name_with_a_wildcard_does_not_match_other_imports(exported, tmp_path):
    other = tmp_path / ".new.import-0a1b2c3d.part"
    other.mkdir()
    import_collection(exported, str(tmp_path / "n[e]w"), show_progress=False)
    assert other.exists()
