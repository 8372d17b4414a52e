"""Problems that concern several rows, and paths without a manifest."""

from pathlib import Path

import pytest

from tests.data.manifest_files import make_folder, single_problem, write_manifest
from triptych.data.manifest import ManifestProblem, read
from triptych.errors import ManifestError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing.csv", "no such file"), ("sub", "looked for manifest.csv, manifest.jsonl"), ("a\0b.csv", "no such file")],
)
def test_paths_without_a_manifest(folder: Path, name: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read(folder / name)


def test_duplicate_id(folder: Path) -> None:
    rows = [{"id": "x", "audio": "a.wav", "text": "a"}, {"id": "x", "audio": "b.wav", "text": "b"}]
    manifest = read(write_manifest(folder / "m.csv", rows))
    assert [row.number for row in manifest.rows] == [2]
    message = "x is the id of row 2 too; to link rows, use the same group"
    assert manifest.problems == (ManifestProblem("error", "duplicate id", 3, "id", message),)


def test_the_same_file_in_two_rows(folder: Path) -> None:
    rows = [{"audio": "a.wav", "text": "a"}, {"audio": "./a.wav", "text": "b"}]
    problem = single_problem(read(write_manifest(folder / "m.csv", rows)).problems, "same file")
    message = "the same file as in row 2: a.wav; use the same group"
    assert problem == ManifestProblem("warning", "same file", 3, "audio", message)
    one_group = [row | {"group": "g"} for row in rows]
    segments = [row | {"start": start} for start, row in enumerate(rows)]
    assert read(write_manifest(folder / "m.csv", one_group)).problems == ()
    assert read(write_manifest(folder / "m.csv", segments)).problems == ()


def test_a_group_in_two_splits(folder: Path) -> None:
    rows = [
        {"audio": "a.wav", "text": "a", "group": "g", "split": "train"},
        {"audio": "b.wav", "text": "b", "group": "g", "split": "test"},
        {"audio": "sub/c.wav", "text": "b", "group": "g", "split": ""},
    ]
    (problem,) = read(write_manifest(folder / "m.csv", rows)).problems
    assert (problem.severity, problem.category, problem.row, problem.column) == (
        "warning",
        "group in two splits",
        3,
        "split",
    )
    assert problem.message == "group g is in split test here and in train in row 2: data leaks between the splits"


# --- captions that do not distinguish rows


@pytest.mark.parametrize(
    ("captions", "category", "words"),
    [
        (["untitled folder"] * 30 + ["a dog"] * 9 + ["rain"], "few captions", "40 rows have only 3 distinct captions"),
        (["photo"] * 25 + [f"thing {n}" for n in range(60)], "shared caption", "'photo' is in 25 rows of 85"),
        ([["photo", f"thing {n}"] for n in range(30)], "shared caption", "'photo' is in 30 rows of 30"),
        (["photo"] * 25 + [f"thing {n}" for n in range(400)], None, ""),  # 6 % of the rows
        (["a dog"] * 10 + ["a cat"] * 9, None, ""),  # too few rows for a warning
        ([["this is a dog", f"title {n}"] for n in range(3)] * 5, None, ""),
    ],
)
def test_captions_that_many_rows_share_are_a_warning(folder, captions, category, words):
    rows = [{"audio": "a.wav", "text": text, "group": "g"} for text in captions]
    manifest = read(write_manifest(folder / "m.jsonl", rows))
    assert [(problem.severity, problem.category) for problem in manifest.problems] == (
        [("warning", category)] if category else []
    )
    assert all(words in problem.message for problem in manifest.problems)
    assert len(manifest.rows) == manifest.counts.rows == len(captions)


def test_unique_captions_and_files_are_counted(folder):
    rows = [{"audio": "a.wav", "text": text, "group": "g"} for text in ("x", "x", "y")]
    counts = read(write_manifest(folder / "m.jsonl", rows)).counts
    assert (counts.captions, counts.unique_captions, counts.files) == (3, 2, 1)
