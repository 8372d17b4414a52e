"""Tables in CSV, JSONL and Parquet: which files raise a ManifestError, and which rows become problems."""

import subprocess
import sys
import time
from pathlib import Path

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.data.manifest_files import FORMATS, ROWS, make_folder, read_or_error, single_problem, write_manifest
from triptych.data import tables
from triptych.data.manifest import read, summarise
from triptych.errors import ManifestError

many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


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
        ("m.csv", b"text,audio,text\na,b,c\n", "duplicate column: text"),
        ("m.csv", b'text\nok\n"never closed\nmore\n', "row 3 (line 4) is broken: unexpected end of data"),
        ("m.csv", b'text\n"a" b\n', "row 2 (line 2) is broken"),
        ("m.csv", b"text\n" + b"x" * 200_000 + b"\n", "row 2 (line 2) is broken: field larger than field limit"),
        ("m.csv", b"audio;text\na.wav;hi\n", "the columns seem to be separated by ';'"),
        ("m.csv", b"a.wav,a dog\nb.wav,a cat\n", "known, in lower case: audio, image"),
        ("m.jsonl", b'{"sound": "a.wav"}\n', "no known column (found: sound)"),
        ("m.tsv", b"audio\ttext\n", "a manifest must end in .csv, .jsonl, .parquet; found '.tsv'"),
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
    with pytest.raises(ManifestError, match="duplicate column: text"):
        read(tmp_path / "m.parquet")


def test_parquet_without_rows(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), tmp_path / "m.parquet")
    with pytest.raises(ManifestError, match="the table has no rows"):
        read(tmp_path / "m.parquet")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Expecting property name enclosed in double quotes at character 2"),
        ('["a"]', "this is a list; write one {…} per line"),
        ("null", "this is a NoneType; write one {…} per line"),
        ('{"text": "a", "text": "b"}', "duplicate key 'text'"),
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
    hint = "put cells with commas in double quotes"
    assert [str(problem) for problem in manifest.problems] == [
        f"row 2: has 3 cells, the header has 2; {hint}",
        f"row 4: has 1 cells, the header has 2; {hint}",
    ]


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
    with pytest.raises(ManifestError, match=r"unpacks to 3\d,\d{3},\d{3} bytes; at most 1\d,\d{3},\d{3} for this file"):
        read(tmp_path / "m.parquet")
    for _ in range(1000):  # pyarrow's threads release their last buffers after read() has returned
        if pyarrow.total_allocated_bytes() <= before:
            break
        time.sleep(0.01)
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


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_byte_order_mark_and_windows_lines(folder: Path, mark: str, newline: str) -> None:
    for file_format, lines in (
        ("csv", ["audio,text", "a.wav,Käse"]),
        ("jsonl", ['{"audio": "a.wav", "text": "Käse"}']),
    ):
        path = folder / f"m.{file_format}"
        path.write_bytes((mark + newline.join(lines) + newline).encode())
        manifest = read(path)
        assert manifest.problems == ()
        assert manifest.rows[0].texts == ("Käse",)


def test_a_list_is_read_as_json_only_where_a_format_has_no_lists(folder: Path) -> None:
    assert read(write_manifest(folder / "m.jsonl", [{"text": '["a"]'}])).rows[0].texts == ('["a"]',)
    assert read(write_manifest(folder / "n.csv", [{"caption_1": '["a"]'}])).rows[0].texts == ('["a"]',)


@many
@given(content=st.binary(max_size=300), start=st.sampled_from([b"", b"text\n", b"audio,text\n", b'{"text": ', b"PAR1"]))
@pytest.mark.parametrize("file_format", FORMATS)
def test_junk_raises_nothing_but_manifest_error(tmp_path: Path, file_format: str, content: bytes, start: bytes) -> None:
    path = tmp_path / f"m.{file_format}"
    path.write_bytes(start + content)
    result = read_or_error(path)
    assert result.startswith(str(path)) if isinstance(result, str) else summarise(result)


@many
@given(damage=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4))
def test_corrupt_parquet_raises_only_manifest_error(tmp_path: Path, damage: list[tuple[int, int]]) -> None:
    path = write_manifest(tmp_path / "m.parquet", ROWS)
    content = bytearray(path.read_bytes())
    for offset, byte in damage:
        content[offset % len(content)] = byte
    path.write_bytes(content)
    result = read_or_error(path)
    assert result.startswith(str(path)) if isinstance(result, str) else summarise(result)


# In the file of ROWS, this byte is the length of a histogram in the metadata of one column.
HISTOGRAM_BYTE, WRONG_LENGTH = 993, 42


def save_with_damaged_column_metadata(path: Path) -> Path:
    """Write a Parquet file whose column metadata makes pyarrow end its process with a C++ exception."""
    content = bytearray(write_manifest(path, ROWS).read_bytes())
    content[HISTOGRAM_BYTE] = WRONG_LENGTH
    path.write_bytes(content)
    leaves = [str(i) for i in range(len(parquet.read_schema(path)))]
    command = [sys.executable, "-c", tables.COLUMN_SIZES_SCRIPT, str(path), *leaves]
    assert subprocess.run(command, capture_output=True, check=False).returncode < 0, "the file must abort pyarrow"
    return path


def test_damaged_column_metadata_does_not_end_the_process(tmp_path):
    path = save_with_damaged_column_metadata(tmp_path / "m.parquet")
    script = f"from tests.data.manifest_files import *; print(read_or_error(Path({str(path)!r})))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"{path}: cannot be read as Parquet: Definition level histogram size mismatch")


def test_damaged_column_metadata_of_a_large_file_is_a_manifest_error(tmp_path, monkeypatch):
    path = save_with_damaged_column_metadata(tmp_path / "m.parquet")
    monkeypatch.setattr(tables, "MAX_UNPACKED_BYTES", 1)  # so that the sizes of single columns are needed
    with pytest.raises(ManifestError, match="its column metadata is damaged; write the file again"):
        read(path)


def test_only_columns_that_are_read_count_towards_the_size(tmp_path):
    columns = {"text": ["a", "b"], "pixels": ["x" * 30_000_000, "y" * 30_000_000]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "m.parquet", compression="zstd", use_dictionary=False)
    assert [row.texts for row in read(tmp_path / "m.parquet").rows] == [("a",), ("b",)]
