"""WebDataset: samples, unpacked files and splits."""

from tests.data.dataset_replicas import REPLICAS, WAV, png_bytes, write_file, write_tar
from tests.data.datasets.conversion import convert_with_notes


def test_webdataset_samples(tmp_path):
    REPLICAS["webdataset"](tmp_path)
    table, _, draft = convert_with_notes(tmp_path, "webdataset")
    rows = {row.id: row for row in table.rows}
    assert set(rows) == {"train-000000/0001", "train-000000/0002", "sub/test-000000/a/0001"}
    assert rows["train-000000/0001"].texts == ("a dog", "it barks")
    assert (rows["train-000000/0002"].label, rows["train-000000/0002"].split) == ("7", "train")
    assert rows["sub/test-000000/a/0001"].split == "test"
    assert draft.notes == [f"unpacked to {tmp_path / 'manifest_files'}"]
    assert not list(tmp_path.rglob("*.pdf"))


def test_unpacked_files_are_reused_and_partial_ones_rewritten(tmp_path):
    REPLICAS["webdataset"](tmp_path)
    convert_with_notes(tmp_path, "webdataset")
    unpacked = tmp_path / "manifest_files/train-000000"
    before = (unpacked / "0001.flac").stat().st_mtime_ns
    write_file(unpacked / "0002.wav", WAV[:9])
    convert_with_notes(tmp_path, "webdataset")
    assert (unpacked / "0001.flac").stat().st_mtime_ns == before
    assert (unpacked / "0002.wav").read_bytes() == WAV


def test_data_without_splits_is_split_by_hash_with_a_note(tmp_path):
    members = {
        f"{n:04d}{ending}": content for n in range(60) for ending, content in ((".png", png_bytes(n)), (".txt", b"x"))
    }
    write_tar(tmp_path / "pairs.tar", members)
    table, _, draft = convert_with_notes(tmp_path, "webdataset")
    assert set(table.counts.splits) == {"train", "valid", "test"}
    assert any("the dataset has no splits" in note for note in draft.notes)
