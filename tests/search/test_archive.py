"""Exported collections: equal content, no paths of the machine, and one clear error for each damaged file."""

import io
import json
import zipfile

import numpy as np
import pyarrow as pa
import pytest

from triptych.errors import CollectionError
from triptych.search.archive import ArchiveHeader, ArchiveReader, _encode_vectors, export_collection, open_archive


def rewrite(path, changes=None, **options):
    """Write the members of an archive again, some with another content; None leaves a member out."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | (changes or {})
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in members.items():
            if content is not None:
                archive.writestr(name, content)
    return path


def read_member(path, name):
    with zipfile.ZipFile(path) as archive:
        return archive.read(name)


def check_error(path, message):
    with pytest.raises(CollectionError, match=message), open_archive(path) as reader:
        list(reader.iter_rows())


def test_the_file_is_reproducible_and_contains_no_path_of_the_machine(collection, exported, files, tmp_path):
    first = exported.read_bytes()
    assert export_collection(collection.uri, exported, show_progress=False).num_items == 11
    assert exported.read_bytes() == first
    assert str(tmp_path).encode() not in first
    with zipfile.ZipFile(exported) as archive:
        assert sorted(archive.namelist()) == ["collection.json", "items.jsonl", "space.safetensors", "vectors.bin"]
        assert archive.read("space.safetensors") == (collection.folder / "space.safetensors").read_bytes()
    with open_archive(exported) as reader:
        assert (reader.header.roots, reader.header.space_path) == (["mine"], "")
        rows = [row for block in reader.iter_rows() for row in block]
    assert sorted(row["id"] for row in rows) == sorted(item.id for item in collection.list_items())


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.9, 0.999])
def test_a_file_that_is_cut_short_raises(exported, fraction):
    content = exported.read_bytes()
    exported.write_bytes(content[: int(fraction * len(content))])
    check_error(exported, r"cut short or not a collection file \(.*\); copy or export the file again")


def test_changed_content_raises(exported):
    original = exported.read_bytes()
    position = original.index(read_member(exported, "vectors.bin")[:64])
    exported.write_bytes(original[:position] + bytes([original[position] ^ 1]) + original[position + 1 :])
    check_error(exported, "cut short or not a collection file .*Bad CRC-32")
    exported.write_bytes(original)
    check_error(rewrite(exported, {"vectors.bin": b"\0" * 100}), r"damaged \(vectors.bin has another SHA-256")


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "items.jsonl/x", "link"])
def test_other_members_raise(exported, name):
    check_error(rewrite(exported, {name: b"evil"}), "not a collection file")


def test_missing_repeated_and_compressed_members_raise(exported, tmp_path):
    content = exported.read_bytes()
    check_error(rewrite(exported, compression=zipfile.ZIP_DEFLATED), "is compressed or encrypted")
    exported.write_bytes(content)
    with zipfile.ZipFile(exported, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("items.jsonl", b"")
    check_error(exported, "not a collection file")
    exported.write_bytes(content)
    check_error(rewrite(exported, {"vectors.bin": None}), "not a collection file")
    check_error(tmp_path / "gone", "cannot be read")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "triptych-collection-0"}, "written by another version of triptych"),
        ({"collection_format": 7}, r"written by another version of triptych \(format triptych-collection-1, 7\)"),
        ({"key_dim": 0}, "invalid values"),
        ({"key_dim": "8"}, "invalid values"),
        ({"key_dim": 2.5}, "invalid values"),
        ({"num_items": 11.0}, "invalid values"),
        ({"next_row_id": 130.5}, "invalid values"),
        ({"roots": ["mine", ".."]}, "invalid values"),
        ({"num_items": 12}, "invalid values"),
        ({"num_items": 10}, "more than 10 items"),
        ({"roots": ["../x"]}, "invalid values"),
        ({"sha256": {}}, "invalid values"),
        ({"other": 1}, "cannot be read"),
        ({"key_dim": 9}, "ends too early"),
    ],
)
def test_invalid_headers_raise(exported, change, message):
    header = json.loads(read_member(exported, "collection.json")) | change
    check_error(rewrite(exported, {"collection.json": json.dumps(header)}), message)
    rewrite(exported, {"collection.json": b"[]"})
    check_error(exported, "cannot be read")


def test_a_folder_without_a_collection_is_not_exported(tmp_path):
    with pytest.raises(CollectionError, match="no collection here"):
        export_collection(str(tmp_path), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_keeps_the_previous_file(collection, exported, monkeypatch):
    before = exported.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("triptych.search.archive._encode_vectors", fail)
    with pytest.raises(CollectionError, match=r"cannot be written \(No space left on device\); free disk space"):
        export_collection(collection.uri, exported, show_progress=False)
    assert exported.read_bytes() == before
    assert [path.name for path in exported.parent.iterdir() if path.name.endswith(".part")] == []


def test_vectors_of_all_kinds_are_written_and_read_unchanged(tmp_path):
    """A collection that re-ranks has embeddings and part vectors; other collections have only keys."""
    rows = [
        {"vector": [1.0, 2.0], "embedding": b"abcdefgh", "parts": b"12345678"},
        {"vector": [0.5, 0.25], "embedding": None, "parts": None},
        {"vector": [0.0, -1.0], "embedding": None, "parts": b"1234"},
    ]
    stream = io.BytesIO(_encode_vectors(pa.Table.from_pylist(rows)))
    reader = ArchiveReader.__new__(ArchiveReader)
    reader.path, reader.header = tmp_path, ArchiveHeader("", "", None, 2, 3, 3, [])
    for row in rows:
        expected = row | {"vector": np.array(row["vector"], "<f4").tobytes()}
        assert reader._read_vectors(stream) == expected
    assert stream.read() == b""
