"""Cells of one row: files, captions, metadata and times, and what is wrong with them."""

import errno
import os
from pathlib import Path

import pytest

from tests.data.manifest_files import make_folder, single_problem, write_manifest
from triptych.data.manifest import ManifestProblem, read

LOOP = os.strerror(errno.ELOOP)
GOOD = {"text": "good"}  # row 1 of each case: an error leaves out its own row only


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@pytest.mark.parametrize(
    ("row", "category", "column", "message"),
    [
        ({"audio": "gone.wav"}, "missing file", "audio", "no such file: gone.wav"),
        ({"audio": "a.wav/x.wav"}, "missing file", "audio", "no such file: a.wav/x.wav"),
        ({"audio": "u\\c.wav"}, "missing file", "audio", "no such file: u\\c.wav (write / between folders, not \\)"),
        ({"audio": "x" * 5000}, "unreadable file", "audio", f"cannot be read (File name too long): {'x' * 120}…"),
        ({"audio": "loop.wav"}, "unreadable file", "audio", f"cannot be read ({LOOP}): loop.wav"),
        ({"audio": "sub"}, "not a file", "audio", "is not a file: sub"),
        ({"audio": "empty.wav"}, "empty file", "audio", "the file is empty: empty.wav"),
        ({"audio": "\u001b[31m.wav"}, "missing file", "audio", "no such file: \\x1b[31m.wav"),
        ({"audio": 5}, "not text", "audio", "must be text, is int: 5"),
        ({"audio": {"path": "a.wav"}}, "not text", "audio", "must be text, is nested dict: {'path': 'a.wav'}"),
        ({"audio": "a\0.wav"}, "not text", "audio", "contains a null character or a lone surrogate: a\\x00.wav"),
        ({"audio": "\ud800.wav"}, "not text", "audio", "contains a null character or a lone surrogate: \\ud800.wav"),
        ({"audio": "a.wav", "file_name": "b.wav"}, "two files", "file_name",
         "a second audio file: b.wav; use one row per file"),
        ({"file_name": "a.xyz"}, "unknown extension", "file_name",
         "a.xyz has no extension of audio, image or video; use a column named audio, image or video"),
        ({"text": 3}, "not text", "text", "must be text, is int: 3"),
        ({"text": {"en": "dog"}}, "not text", "text", "must be text, is nested dict: {'en': 'dog'}"),
        ({"captions": ["a", ["b"]]}, "not text", "captions", "must be text, is nested list: ['b']"),
        ({"text": "\udfff"}, "not text", "text", "contains a null character or a lone surrogate: \\udfff"),
        ({"text": "a", "id": [1]}, "not text", "id", "must be text, is nested list: [1]"),
        ({"text": "a", "start": "soon"}, "wrong time", "start", "must be a number of seconds, is 'soon'"),
        ({"text": "a", "start": [1]}, "wrong time", "start", "must be a number of seconds, is '[1]'"),
        ({"text": "a", "start": True}, "wrong time", "start", "must be a number of seconds, is 'True'"),
        ({"text": "a", "start": "nan"}, "wrong time", "start", "must be a number of seconds, is 'nan'"),
        ({"text": "a", "start": 1e305}, "wrong time", "start", "is longer than any file: 1e+305 s"),
        ({"text": "a", "end": "inf"}, "wrong time", "end", "must be a number of seconds, is 'inf'"),
        ({"text": "a", "start": -1}, "wrong time", "start", "is negative: -1 s"),
        ({"text": "a", "start": 2, "end": 2}, "wrong time", "end", "2 s is not after start, 2 s"),
        ({"text": "a", "end": 0}, "wrong time", "end", "0 s is not after start, 0 s"),
        ({"text": None, "label": "x"}, "empty row", None, "has no audio, image, video or text"),
        ({}, "empty row", None, "has no audio, image, video or text"),
    ],
)  # fmt: skip
def test_rows_with_an_error(folder: Path, row: dict, category: str, column: str | None, message: str) -> None:
    manifest = read(write_manifest(folder / "m.jsonl", [GOOD, row]))
    assert [usable.number for usable in manifest.rows] == [1]
    assert single_problem(manifest.errors, category) == ManifestProblem("error", category, 2, column, message)
    assert len(manifest.errors) == 1
    location = f"row 2, {column}" if column else "row 2"
    assert str(manifest.errors[0]) == f"{location}: {message}"


def test_every_error_of_a_row_is_reported(folder: Path) -> None:
    row = {"audio": "gone.wav", "image": "gone.png", "text": 1, "start": "x"}
    problems = read(write_manifest(folder / "m.jsonl", [row])).problems
    assert [problem.column for problem in problems] == ["audio", "image", "text", "start"]


@pytest.mark.parametrize("name", ["../outside.wav", "sub/../../outside.wav", "leak.wav", "up/outside.wav", "ABSOLUTE"])
def test_paths_that_leave_the_folder(folder: Path, name: str) -> None:
    name = str(folder.parent / "outside.wav") if name == "ABSOLUTE" else name
    path = write_manifest(folder / "m.csv", [{"audio": name, "text": "x"}])
    problem = single_problem(read(path).problems, "outside path")
    assert (problem.severity, problem.row, problem.column) == ("error", 2, "audio")
    assert problem.message.startswith("leaves the manifest's folder: ")
    assert problem.message.endswith("; to allow this, use --allow-outside")
    allowed = read(path, allow_outside=True)
    assert allowed.problems == ()
    assert allowed.rows[0].audio is not None
    assert allowed.rows[0].audio.samefile(folder.parent / "outside.wav")


def test_existence_of_files_outside_is_not_revealed(folder: Path) -> None:
    manifest = read(write_manifest(folder / "m.csv", [{"audio": "../nothing.wav", "text": "x"}]))
    assert [problem.category for problem in manifest.problems] == ["outside path"]


@pytest.mark.parametrize("name", ["sub/../a.wav", "./a.wav", "alias.wav", "up/data/a.wav", "ABSOLUTE"])
def test_paths_that_resolve_inside_are_allowed(folder: Path, name: str) -> None:
    name = str(folder / "a.wav") if name == "ABSOLUTE" else name
    manifest = read(write_manifest(folder / "m.csv", [{"audio": name, "text": "x"}]))
    assert manifest.problems == ()
    assert len(manifest.rows) == 1


def test_a_manifest_reached_by_a_relative_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_manifest(folder / "m.csv", [{"audio": "a.wav", "text": "x"}])
    monkeypatch.chdir(folder)
    (row,) = read("m.csv").rows
    assert row.audio == folder / "a.wav"


@pytest.mark.parametrize(
    ("row", "category", "column", "message"),
    [
        ({"text": "  ", "caption": "a"}, "empty caption", "text", "is empty and ignored"),
        ({"captions": ["a", ""]}, "empty caption", "captions", "is empty and ignored"),
        ({"text": "a", "caption": "a"}, "duplicate caption", "caption", "is repeated in this row: a"),
        (
            {"image": "a.wav", "text": "a"},
            "unexpected extension",
            "image",
            "a.wav has none of the extensions for image: .avif .bmp .gif",
        ),
        ({"text": "a"}, "unpaired row", None, "has text only, so no pair"),
        ({"audio": "a.wav"}, "unpaired row", None, "has audio only, so no pair"),
    ],
)
def test_rows_with_a_warning(folder: Path, row: dict, category: str, column: str | None, message: str) -> None:
    manifest = read(write_manifest(folder / "m.jsonl", [row]))
    problem = single_problem(manifest.warnings, category)
    assert manifest.errors == ()
    assert len(manifest.rows) == 1
    assert (problem.row, problem.column) == (1, column)
    assert problem.message.startswith(message)


def test_empty_captions_are_left_out_and_equal_ones_stay(folder: Path) -> None:
    (row,) = read(write_manifest(folder / "m.jsonl", [{"captions": ["a", " ", None, "a", " b "]}])).rows
    assert row.texts == ("a", "a", " b ")


@pytest.mark.parametrize(
    ("column", "suggestion"),
    [("captoin_1", "caption_1"), ("captoin_4", "caption_4"), ("Audio", "audio"), ("IMAGE", "image"), (" text", "text"),
     ("start_time", "start"), ("lable", "label"), ("filename", "file_name"), ("zzz", None), ("", None)],
)  # fmt: skip
def test_unknown_columns(folder: Path, column: str, suggestion: str | None) -> None:
    problem = single_problem(
        read(write_manifest(folder / "m.csv", [{"text": "a", column: "b"}])).problems, "unknown column"
    )
    assert (problem.severity, problem.row, problem.column) == ("warning", None, column)
    assert str(problem).startswith(f"column {column!r} is unknown; ")
    if suggestion:
        assert str(problem).endswith(f"did you mean {suggestion!r}?")
    else:
        assert "; known: audio, caption, caption_1, captions, " in str(problem)


def test_unknown_columns_may_hold_anything(folder: Path) -> None:
    row = {"text": "a", "embedding": [1.0], "meta": {"deep": [{"er": 1}]}}
    for form in ("jsonl", "parquet"):
        manifest = read(write_manifest(folder / f"m.{form}", [row]))
        assert len(manifest.rows) == 1
        assert [problem.column for problem in manifest.problems if problem.row is None] == ["embedding", "meta"]


def test_numbers_and_nan_of_pandas_become_strings(folder: Path) -> None:
    rows = [{"id": 7, "text": "a", "label": 3.0, "group": float("nan"), "split": 1.5, "start": None}]
    (row,) = read(write_manifest(folder / "m.jsonl", rows)).rows
    assert (row.id, row.label, row.group, row.split, row.start) == ("7", "3", "(row-1)", "1.5", None)


def test_captions_in_every_spelling(folder: Path) -> None:
    row = {f"caption_{n}": f"c{n}" for n in (10, 2, 1)} | {"captions": ["l1", "l2"], "caption": "c", "text": "t"}
    texts = ("t", "c", "l1", "l2", "c1", "c2", "c10")
    assert read(write_manifest(folder / "m.jsonl", [row])).rows[0].texts == texts
    assert read(write_manifest(folder / "m.parquet", [row])).rows[0].texts == texts
    assert read(write_manifest(folder / "m.csv", [row | {"captions": '["l1", "l2"]'}])).rows[0].texts == texts


@pytest.mark.parametrize("text", ["[music] plays", "[", "[1, 2]", '["a", 3]', "[" * 5000])
def test_a_csv_caption_in_brackets_is_a_caption(folder: Path, text: str) -> None:
    assert read(write_manifest(folder / "m.csv", [{"text": text}])).rows[0].texts == (text,)


def test_hugging_face_columns_of_several_files(folder: Path) -> None:
    cells = {"image_file_name": "a.png", "audio_file_name": "a.wav", "clip_file_name": "a.mp4", "caption": "x"}
    manifest = read(write_manifest(folder / "metadata.csv", [cells]))
    (row,) = manifest.rows
    assert manifest.problems == ()
    assert (row.image, row.audio, row.video) == (folder / "a.png", folder / "a.wav", folder / "a.mp4")
