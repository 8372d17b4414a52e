"""Every fault of a manifest is named with its place, and costs no more than its own row."""

import errno
import os
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from tests.data.manifest_files import make_folder, single_problem, write_manifest
from triptych.data.manifest import ManifestProblem, read
from triptych.errors import ManifestError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


# --- tables that cannot be read


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.csv", b"", "the file is empty"),
        ("m.csv", b"\xef\xbb\xbf \n", "the file is empty"),
        ("m.jsonl", b"\n\n", "the file is empty"),
        ("m.parquet", b"", "the file is empty"),
        ("m.csv", b"audio,text\n", "the table has no rows"),
        ("m.csv", b"audio,text\n\n\n", "the table has no rows"),
        ("m.csv", "text\nok\ngrün\n".encode("latin-1"), "line 3 is not UTF-8 (byte 0xFC); save the file as UTF-8"),
        ("m.csv", b"\xef\xbb\xbftext\n\xff\n", "line 2 is not UTF-8 (byte 0xFF)"),
        ("m.jsonl", '{"text": "ü"}'.encode("latin-1"), "line 1 is not UTF-8"),
        ("m.csv", "text\nhi\n".encode("utf-16"), "the file is UTF-16; save it as UTF-8"),
        ("m.csv", b"text\nhi\na\0b\n", "line 3 has a null byte"),
        ("m.csv", b"\x89PNG\r\n\x1a\n\0\0\0", "line 3 has a null byte"),
        ("m.parquet", b"PAR1 junk PAR1", "cannot be read as Parquet"),
        ("m.csv", b"text,audio,text\na,b,c\n", "the header names a column twice: text"),
        ("m.csv", b'text\nok\n"never closed\nmore\n', "row 3 (line 4) is broken: unexpected end of data"),
        ("m.csv", b'text\n"a" b\n', "row 2 (line 2) is broken"),
        ("m.csv", b"text\n" + b"x" * 200_000 + b"\n", "row 2 (line 2) is broken: field larger than field limit"),
        ("m.csv", b"audio;text\na.wav;hi\n", "the columns seem to be separated by ';'"),
        ("m.csv", b"a.wav,a dog\nb.wav,a cat\n", "known, in small letters: audio, image"),
        ("m.jsonl", b'{"sound": "a.wav"}\n', "no column is known (found: sound)"),
        ("m.tsv", b"audio\ttext\n", "a manifest is a file that ends in .csv, .jsonl, .parquet; this ends in '.tsv'"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ManifestError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_duplicate_parquet_columns(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    parquet.write_table(table, tmp_path / "m.parquet")
    with pytest.raises(ManifestError, match="names a column twice: text"):
        read(tmp_path / "m.parquet")


def test_parquet_without_rows(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), tmp_path / "m.parquet")
    with pytest.raises(ManifestError, match="the table has no rows"):
        read(tmp_path / "m.parquet")


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing.csv", "no such file"), ("sub", "looked for manifest.csv, manifest.jsonl"), ("a\0b.csv", "no such file")],
)
def test_paths_without_a_manifest(folder: Path, name: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read(folder / name)


# --- rows with errors


LOOP = os.strerror(errno.ELOOP)
GOOD = {"text": "good"}  # row 1 of each case: an error leaves out its own row only


@pytest.mark.parametrize(
    ("row", "category", "column", "message"),
    [
        ({"audio": "gone.wav"}, "missing file", "audio", "no such file: gone.wav"),
        ({"audio": "a.wav/x.wav"}, "missing file", "audio", "no such file: a.wav/x.wav"),
        ({"audio": "u\\c.wav"}, "missing file", "audio", "no such file: u\\c.wav (write / between folders, not \\)"),
        ({"audio": "x" * 5000}, "unreadable file", "audio", f"cannot be read (File name too long): {'x' * 120}…"),
        ({"audio": "loop.wav"}, "unreadable file", "audio", f"cannot be read ({LOOP}): loop.wav"),
        ({"audio": "sub"}, "not a file", "audio", "is not a file: sub"),
        ({"audio": "empty.wav"}, "empty file", "audio", "the file has no bytes: empty.wav"),
        ({"audio": "\u001b[31m.wav"}, "missing file", "audio", "no such file: \\x1b[31m.wav"),
        ({"audio": 5}, "not text", "audio", "should be text, is int: 5"),
        ({"audio": {"path": "a.wav"}}, "not text", "audio", "should be text, is nested dict: {'path': 'a.wav'}"),
        ({"audio": "a\0.wav"}, "not text", "audio", "holds a null character or half a character: a\\x00.wav"),
        ({"audio": "\ud800.wav"}, "not text", "audio", "holds a null character or half a character: \\ud800.wav"),
        ({"audio": "a.wav", "file_name": "b.wav"}, "two files", "file_name",
         "a second audio file: b.wav; give each its own row"),
        ({"file_name": "a.xyz"}, "unknown extension", "file_name",
         "a.xyz does not end like audio, image or video; name the column audio, image or video instead"),
        ({"text": 3}, "not text", "text", "should be text, is int: 3"),
        ({"text": {"en": "dog"}}, "not text", "text", "should be text, is nested dict: {'en': 'dog'}"),
        ({"captions": ["a", ["b"]]}, "not text", "captions", "should be text, is nested list: ['b']"),
        ({"text": "\udfff"}, "not text", "text", "holds a null character or half a character: \\udfff"),
        ({"text": "a", "id": [1]}, "not text", "id", "should be text, is nested list: [1]"),
        ({"text": "a", "start": "soon"}, "wrong time", "start", "should be seconds, is 'soon'"),
        ({"text": "a", "start": [1]}, "wrong time", "start", "should be seconds, is '[1]'"),
        ({"text": "a", "start": True}, "wrong time", "start", "should be seconds, is 'True'"),
        ({"text": "a", "start": "nan"}, "wrong time", "start", "should be seconds, is 'nan'"),
        ({"text": "a", "start": 1e305}, "wrong time", "start", "is beyond any file: 1e+305 s"),
        ({"text": "a", "end": "inf"}, "wrong time", "end", "should be seconds, is 'inf'"),
        ({"text": "a", "start": -1}, "wrong time", "start", "is before the beginning: -1 s"),
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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Expecting property name enclosed in double quotes at character 2"),
        ('["a"]', "it is a list; write one {…} a line"),
        ("null", "it is a NoneType; write one {…} a line"),
        ('{"text": "a", "text": "b"}', "the key 'text' stands twice"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
        ("9" * 5000, "Exceeds the limit"),
    ],
)
def test_broken_json_lines(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"text": "a"}}\n\n{line}\n{{"text": "b"}}\n', encoding="utf-8")
    manifest = read(path)
    assert [row.number for row in manifest.rows] == [1, 4]
    problem = single_problem(manifest.errors, "broken line")
    assert (problem.row, problem.column) == (3, None)
    assert problem.message.startswith(f"is not a JSON object: {message}")


def test_a_table_of_broken_lines_only_is_diagnosed(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text("[\n]\n", encoding="utf-8")
    manifest = read(tmp_path / "m.jsonl")
    assert (manifest.rows, [problem.row for problem in manifest.problems]) == ((), [1, 2])


def test_ragged_csv_rows(folder: Path) -> None:
    (folder / "m.csv").write_text("audio,text\na.wav,a dog, barking\n\nb.wav\na.wav,fine\n", encoding="utf-8")
    manifest = read(folder / "m.csv")
    assert [row.number for row in manifest.rows] == [5]
    hint = "put a cell with commas in double quotes"
    assert [str(problem) for problem in manifest.problems] == [
        f"row 2: has 3 cells, the header has 2; {hint}",
        f"row 4: has 1 cells, the header has 2; {hint}",
    ]


def test_duplicate_id(folder: Path) -> None:
    rows = [{"id": "x", "audio": "a.wav", "text": "a"}, {"id": "x", "audio": "b.wav", "text": "b"}]
    manifest = read(write_manifest(folder / "m.csv", rows))
    assert [row.number for row in manifest.rows] == [2]
    message = "x is the id of row 2 too; rows that belong together share a group"
    assert manifest.problems == (ManifestProblem("error", "duplicate id", 3, "id", message),)


def test_every_error_of_a_row_is_reported(folder: Path) -> None:
    row = {"audio": "gone.wav", "image": "gone.png", "text": 1, "start": "x"}
    problems = read(write_manifest(folder / "m.jsonl", [row])).problems
    assert [problem.column for problem in problems] == ["audio", "image", "text", "start"]


# --- paths that leave the folder


@pytest.mark.parametrize("name", ["../outside.wav", "sub/../../outside.wav", "leak.wav", "up/outside.wav", "ABSOLUTE"])
def test_paths_that_leave_the_folder(folder: Path, name: str) -> None:
    name = str(folder.parent / "outside.wav") if name == "ABSOLUTE" else name
    path = write_manifest(folder / "m.csv", [{"audio": name, "text": "x"}])
    problem = single_problem(read(path).problems, "outside path")
    assert (problem.severity, problem.row, problem.column) == ("error", 2, "audio")
    assert problem.message.startswith("leaves the manifest's folder: ")
    assert problem.message.endswith("; if that is meant, allow it (--allow-outside)")
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


# --- warnings


@pytest.mark.parametrize(
    ("row", "category", "column", "message"),
    [
        ({"text": "  ", "caption": "a"}, "empty caption", "text", "is empty, so it is left out"),
        ({"captions": ["a", ""]}, "empty caption", "captions", "is empty, so it is left out"),
        ({"text": "a", "caption": "a"}, "duplicate caption", "caption", "stands twice in this row: a"),
        ({"image": "a.wav", "text": "a"}, "unexpected extension", "image", "a.wav does not end like image: .bmp .gif"),
        ({"text": "a"}, "pairs with nothing", None, "has only text: pairs with nothing"),
        ({"audio": "a.wav"}, "pairs with nothing", None, "has only audio: pairs with nothing"),
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


def test_the_same_file_in_two_rows(folder: Path) -> None:
    rows = [{"audio": "a.wav", "text": "a"}, {"audio": "./a.wav", "text": "b"}]
    problem = single_problem(read(write_manifest(folder / "m.csv", rows)).problems, "same file")
    message = "the same file as in row 2: a.wav; give both rows one group"
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
    assert (
        problem.message
        == "group g is in split test here and in train in row 2: answers leak from one split to the other"
    )


# --- captions that say too little


@pytest.mark.parametrize(
    ("captions", "category", "words"),
    [
        (["untitled folder"] * 30 + ["a dog"] * 9 + ["rain"], "few captions", "40 rows have only 3 different captions"),
        (["photo"] * 25 + [f"thing {n}" for n in range(60)], "shared caption", "'photo' alone stands in 25 rows of 85"),
        ([["photo", f"thing {n}"] for n in range(30)], "shared caption", "'photo' alone stands in 30 rows of 30"),
        (["photo"] * 25 + [f"thing {n}" for n in range(400)], None, ""),  # 6 % of the rows
        (["a dog"] * 10 + ["a cat"] * 9, None, ""),  # so few rows may well be about two things
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


# --- Parquet files that hold far more than their size


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        (["a" * 1_000_000] * 30, {}),
        ([["a" * 1_000_000, "b"]] * 30, {}),
        ([f"{n}" + "a" * 1_000_000 for n in range(30)], {"use_dictionary": False}),
    ],
    ids=["repeated", "repeated in lists", "compressed"],
)
def test_a_parquet_file_cannot_unpack_to_many_times_its_size(tmp_path, texts, options):
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "m.parquet", compression="zstd", **options)
    before = pyarrow.total_allocated_bytes()
    with pytest.raises(ManifestError, match=r"unpacks to 3\d,\d{3},\d{3} bytes; at most 1\d,\d{3},\d{3} for a file"):
        read(tmp_path / "m.parquet")
    assert pyarrow.total_allocated_bytes() <= before


def test_repeated_short_texts_and_categories_are_allowed(tmp_path):
    count = 4_000
    columns = {
        "text": [f"{n}" for n in range(count)],
        "caption_1": pyarrow.array(["a dog"] * count).dictionary_encode(),
        "caption_2": pyarrow.array(["barks", None] * (count // 2), pyarrow.large_string()),
        "split": ["train"] * count,
        "label": pyarrow.array([7, None] * (count // 2)).dictionary_encode(),
        "start": [1.0] * count,
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "m.parquet")
    rows = read(tmp_path / "m.parquet").rows
    assert len(rows) == count
    assert (rows[0].texts, rows[0].label, rows[1].texts, rows[1].label) == (
        ("0", "a dog", "barks"),
        "7",
        ("1", "a dog"),
        None,
    )
