"""Written manifests: formats, hashes of the test set, protection of other files."""

import pytest

from tests.data.dataset_replicas import REPLICAS, WAV, write_file
from tests.data.datasets.conversion import convert_copy
from triptych.errors import ManifestError, UsageError


def test_the_test_hash_depends_on_captions_and_bytes_not_on_the_path(tmp_path):
    for name in ("one", "two"):
        REPLICAS["flickr8k"](tmp_path / name)
    first = convert_copy(tmp_path / "one", "flickr8k")[1]["test"]["test"]
    assert first == convert_copy(tmp_path / "two", "flickr8k")[1]["test"]["test"]
    write_file(tmp_path / "two/Flicker8k_Dataset/4_d.jpg", "other")
    changed = convert_copy(tmp_path / "two", "flickr8k")[1]["test"]["test"]
    assert changed["rows_hash"] == first["rows_hash"]
    assert changed["files_hash"] != first["files_hash"]
    tokens = tmp_path / "one/Flickr8k_text/Flickr8k.token.txt"
    tokens.write_text(tokens.read_text().replace("4_d.jpg#0\tA dog", "4_d.jpg#0\tA cat"))
    changed = convert_copy(tmp_path / "one", "flickr8k")[1]["test"]["test"]
    assert changed["rows_hash"] != first["rows_hash"]
    assert changed["files_hash"] == first["files_hash"]


def test_foreign_files_are_never_overwritten(tmp_path):
    REPLICAS["gcompris"](tmp_path)
    before = (tmp_path / "meta.csv").read_bytes()
    with pytest.raises(UsageError, match="was not written by"):
        convert_copy(tmp_path, "gcompris", tmp_path / "meta.csv")
    assert (tmp_path / "meta.csv").read_bytes() == before
    with pytest.raises(UsageError, match="the suffix of a manifest must be one of"):
        convert_copy(tmp_path, "gcompris", tmp_path / "meta.txt")


def test_captions_round_trip_through_csv(tmp_path):
    lines = ["[music] plays", '["a", "list"]', 'says "hi", twice', "ein Vögelchen 🐦"]
    for number, line in enumerate(lines):
        write_file(tmp_path / f"{number}.wav", WAV)
        write_file(tmp_path / f"{number}.txt", line)
    converted, _ = convert_copy(tmp_path, "folder")
    assert [row.texts[0] for row in converted.rows] == lines
    write_file(tmp_path / "0.txt", "long " * 40_000)
    with pytest.raises(ManifestError, match=r"too long for CSV; write \.jsonl instead"):
        convert_copy(tmp_path, "folder", tmp_path / "m.csv")
    assert not (tmp_path / "m.csv").exists()
    assert len(convert_copy(tmp_path, "folder", tmp_path / "m.jsonl")[0].rows[0].texts[0]) > 131_072
