"""Python data becomes a manifest with media files: the same data the same bytes, and nothing after an error."""

import doctest
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from tests.data.dataset_replicas import WAV, png_bytes, write_file
from tests.data.test_tables_in_memory import import_optional, make_dataset
from triptych.data import manifest, materialise
from triptych.data.materialise import has_other_files, materialised
from triptych.data.materialise import materialise as write_data
from triptych.errors import ManifestError, UsageError


def make_rows(count=10, split="train"):
    """Rows with an image and audio in memory."""
    rng = np.random.default_rng(0)
    return [
        {
            "image": Image.fromarray(rng.integers(0, 256, (6, 6, 3)).astype(np.uint8)),
            "audio": (rng.normal(size=200) * 0.1, 8000),
            "text": f"clip {i}",
            "split": split,
        }
        for i in range(count)
    ]


def drop(rows, *names):
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def list_files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_doctests():
    assert doctest.testmod(materialise).failed == 0


def test_the_manifest_has_every_cell(tmp_path):
    path = write_file(tmp_path / "mine.wav", WAV)
    rows = [
        {"id": "a", "audio": path, "caption_1": "one", "caption_2": "two", "group": 3, "label": np.int64(7)},
        {"id": "b", "audio": str(path), "text": ("one", "two"), "start": np.float32(0.5), "end": 2, "split": "novel"},
        {"id": "c", "file_name": {"bytes": png_bytes(), "path": None}, "captions": np.array(["one", "two"], object)},
        {"id": "d", "image": png_bytes(1), "text": "one"},
    ]
    written = write_data(rows, tmp_path / "data")
    assert written.needs_allow_outside
    a, b, c, d = manifest.require_valid(manifest.read(written.path, allow_outside=True)).rows
    assert (a.audio, a.texts, a.group, a.label, a.split) == (path, ("one", "two"), "3", "7", None)
    assert (b.audio, b.texts, b.start, b.end, b.split) == (path, ("one", "two"), 0.5, 2.0, "novel")
    assert c.image
    assert (c.image.read_bytes(), c.texts) == (png_bytes(), ("one", "two"))
    assert d.image
    assert (d.image.read_bytes(), d.texts) == (png_bytes(1), ("one",))


def test_relative_paths_and_folders_are_those_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / "a.wav", WAV)
    rows = [{"audio": "a.wav", "image": png_bytes(), "text": "a", "split": "train"}]
    written = write_data(rows, Path("runs/x/data"))
    (row,) = manifest.read(written.path, allow_outside=True).rows
    assert row.audio == tmp_path / "a.wav"
    assert row.image is not None


def test_the_same_data_gives_the_same_bytes_in_every_form(tmp_path):
    pandas, rows = import_optional("pandas"), make_rows()
    for name, data in {"list": rows, "generator": (row for row in rows), "pandas": pandas.DataFrame(rows)}.items():
        write_data(data, tmp_path / name)
    assert list_files(tmp_path / "list") == list_files(tmp_path / "generator") == list_files(tmp_path / "pandas")
    assert not write_data(rows, tmp_path / "list").needs_allow_outside
    other = [*rows[:-1], {**rows[-1], "text": "another"}]
    write_data(other, tmp_path / "other")
    assert list_files(tmp_path / "other") != list_files(tmp_path / "list")


def test_data_that_is_already_there_is_not_written_again(tmp_path):
    first = write_data(make_rows(), tmp_path / "data")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    assert write_data(make_rows(), tmp_path / "data", can_replace=False) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")} == times


def test_a_manifest_of_another_version_of_pyarrow_is_kept(tmp_path):
    written = write_data(make_rows(), tmp_path / "data")
    table = parquet.read_table(written.path)
    parquet.write_table(table, written.path, compression="gzip")  # other bytes, the same rows
    content = written.path.read_bytes()
    again = write_data(make_rows(), tmp_path / "data", can_replace=False)
    assert again.manifest_hash != written.manifest_hash
    assert written.path.read_bytes() == content


def test_other_data_replaces_data_only_if_allowed(tmp_path):
    write_data(make_rows(), tmp_path / "data")
    before, fewer = list_files(tmp_path / "data"), make_rows()[:4]
    with pytest.raises(UsageError, match="contains other data; give another folder, or restart=True"):
        write_data(fewer, tmp_path / "data", can_replace=False)
    assert list_files(tmp_path / "data") == before
    write_data(fewer, tmp_path / "data")
    assert len(list_files(tmp_path / "data")) == 1 + 8, "unused media files are removed"


def test_rows_without_splits_are_split_by_a_hash(tmp_path):
    rows = drop(make_rows(50), "split")
    for row in rows[:6]:
        row["audio"] = rows[0]["audio"]  # rows that share a file are in one split
    first, second = (write_data(rows, tmp_path / name) for name in "ab")
    assert first.path.read_bytes() == second.path.read_bytes()
    table = manifest.read(first.path)
    assert table.counts.splits == {"train": 40, "valid": 5, "test": 5}
    assert len({row.split for row in table.rows[:6]}) == 1
    assert "train 40 (80%), valid 5 (10%), test 5 (10%)" in first.split_note
    assert write_data(make_rows(), tmp_path / "c").split_note == ""
    partly = write_data([*make_rows(4), *rows[4:7]], tmp_path / "d")
    assert partly.split_note.startswith("3 of 7 rows have no split")
    assert not partly.has_assigned_splits


def test_rows_of_a_dataset_that_share_a_file_share_a_group(tmp_path):
    datasets = import_optional("datasets")
    dataset = datasets.concatenate_datasets([make_dataset(10), make_dataset(10)])
    rows = manifest.read(write_data(dataset, tmp_path / "data").path).rows
    assert [row.group for row in rows[:10]] == [row.group for row in rows[10:]]
    assert [row.split for row in rows[:10]] == [row.split for row in rows[10:]]
    splits = datasets.DatasetDict({"train": make_dataset(), "test": make_dataset()})
    table = manifest.read(write_data(splits, tmp_path / "splits").path)
    assert "group in two splits" not in {problem.category for problem in table.problems}


def raise_after(rows, count):
    yield from rows[:count]
    raise RuntimeError("the source is gone")


GOOD = make_rows(6)
BAD_DATA = {
    "no rows": ([], "data: the table has no rows"),
    "no rows of Arrow": (pyarrow.table({"audio": [], "text": []}), "data: the table has no rows"),
    "no content": (drop(GOOD, "image", "audio", "text"), "row 1: has no audio, image, video or text"),
    "unknown column": (
        [*GOOD, {**GOOD[0], "sound": "a.wav"}],
        r"data, row 7: column 'sound' .*rename or drop",
    ),
    "misspelled column": ([{"Audio": GOOD[0]["audio"]}], "did you mean 'audio'"),
    "missing file": ([*GOOD, {"audio": "gone.wav", "text": "a"}], r"1 error; correct .*\n  row 7, audio: no such file"),
    "missing files": ([{"audio": f"{i}.wav"} for i in range(9)], r"data: 9 errors; correct or remove.*\n(.*\n){5}  …$"),
    "wrong rate": ([*GOOD, {**GOOD[0], "audio": (np.zeros(9), -1)}], "data, row 7, column audio: sampling rate -1"),
    "wrong dtype": ([{**GOOD[0], "image": np.zeros((4, 4), int)}], "data, row 1, column image: .* dtype int64"),
    "infinite pixels": ([{**GOOD[0], "image": Image.fromarray(np.full((2, 2), np.inf, np.float32))}], "grey values"),
    "wrong text": ([*GOOD, {**GOOD[0], "text": 5}], "row 7, text: must be text, is int: 5"),
    "wrong time": ([*GOOD, {**GOOD[0], "end": -1.0}], "row 7, end: is negative"),
    "same id": ([{**row, "id": "x"} for row in GOOD], "id 'x' is the id of several rows"),
    "an exception": (raise_after(GOOD, 4), r"reading data failed after 4 rows \(RuntimeError: the source is gone\)"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_raises_one_error_and_nothing_is_written(tmp_path, name):
    data, message = BAD_DATA[name]
    with pytest.raises(ManifestError, match=message):
        write_data(raise_after(GOOD, 4) if name == "an exception" else data, tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_raises(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"file/data: cannot be written \(.*\); .*, or give another folder"):
        write_data(make_rows(), tmp_path / "file" / "data")


def test_an_error_keeps_the_data_that_was_there(tmp_path):
    write_data(make_rows(), tmp_path / "data")
    before = list_files(tmp_path / "data")
    with pytest.raises(ManifestError):
        write_data(raise_after(make_rows(20), 15), tmp_path / "data")
    assert list_files(tmp_path / "data") == before


@pytest.mark.parametrize("file", ["manifest.parquet", "damaged/manifest.parquet", "notes.txt", "media/photo.png"])
def test_files_of_the_user_are_not_overwritten(tmp_path, file):
    write_file(tmp_path / "data" / file.removeprefix("damaged/"))
    if file == "manifest.parquet":
        parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "data" / file)
    before = list_files(tmp_path)
    assert has_other_files(tmp_path / "data")
    with pytest.raises(UsageError, match="contains other files"):
        write_data(make_rows(), tmp_path / "data")
    assert list_files(tmp_path) == before


def test_new_data_is_removed_if_the_block_fails_before_it_is_used(tmp_path, capsys):
    for is_used in (False, True):
        folder = tmp_path / f"{is_used}" / "data"
        with (
            pytest.raises(RuntimeError),
            materialised(drop(make_rows(), "split"), folder, True, lambda is_used=is_used: is_used),
        ):
            raise RuntimeError
        assert "rows were split by a hash" in capsys.readouterr().err
        assert folder.exists() == is_used


PROGRAM = """
import sys, time
from pathlib import Path
from tests.data.test_materialise import make_rows, write_data

def slow():
    for i, row in enumerate(make_rows(40)):
        if i == 20:
            print("half", flush=True)
            time.sleep(60)
        yield row

write_data(slow(), Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_after_a_kill_the_same_data_is_complete(tmp_path):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "killed")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    assert len(list_files(tmp_path / "killed")) == 40
    assert not (tmp_path / "killed" / "manifest.parquet").exists()
    assert not has_other_files(tmp_path / "killed")
    write_data(make_rows(40), tmp_path / "killed")
    write_data(make_rows(40), tmp_path / "whole")
    assert list_files(tmp_path / "killed") == list_files(tmp_path / "whole")
