"""Files of a local copy: search, and errors that name what is missing."""

import pytest

from tests.data.dataset_replicas import write_csv, write_file
from triptych.data.datasets.local_copy import LocalCopy, read_csv, read_fields, read_json, read_lines
from triptych.errors import ManifestError


@pytest.fixture
def copy(tmp_path):
    write_file(tmp_path / "data/meta.csv")
    for number in range(3):
        write_file(tmp_path / f"audio/train/{number}.wav")
    write_file(tmp_path / "audio/test/0.wav")
    return LocalCopy("example", tmp_path, tmp_path / "unpacked")


def test_files_are_searched_in_the_folder_and_one_level_below(copy):
    assert copy.require_file("other.csv", "meta.csv") == copy.path / "data/meta.csv"
    assert copy.find_file("0.wav") is None
    assert [path.parent.name for path in copy.find_files("0.wav")] == ["test", "train"]
    with pytest.raises(ManifestError, match=r"example expects a\.csv or b\.csv here; found: audio/, data/\."):
        copy.require_file("a.csv", "b.csv")


def test_the_base_folder_contains_most_files(copy):
    assert copy.find_base_folder([f"{number}.wav" for number in range(3)], "audio files").name == "train"
    assert copy.find_base_folder(["0.wav"], "audio files", prefer="test").name == "test"
    with pytest.raises(ManifestError, match=r"expects audio files such as 9\.wav"):
        copy.find_base_folder(["9.wav"], "audio files")


def test_unreadable_tables_raise(tmp_path):
    with pytest.raises(ManifestError, match="has no column c; found: a, b"):
        read_csv(write_csv(tmp_path / "t.csv", "a,b", "1,2"), ("a", "c"))
    with pytest.raises(ManifestError, match="cannot be read as JSON"):
        read_json(write_file(tmp_path / "t.json", "{"))
    with pytest.raises(ManifestError, match="should be a JSON object with data"):
        read_json(write_file(tmp_path / "t.json", "[]"), "data")
    with pytest.raises(ManifestError, match="an entry has no caption"):
        read_fields({"id": 1}, tmp_path / "t.json", "id", "caption")
    with pytest.raises(ManifestError, match=r"is not UTF-8 text \(byte 1\)"):
        read_lines(write_file(tmp_path / "t.txt", b"a\xff"))
