"""Decisions become a manifest: kept, rejected and swapped, row by row and caption by caption."""

import json

import pytest

from tests.data.manifest_files import save
from tests.data.source_copies import WAV, picture, put
from triptych.audit.audit import identity
from triptych.audit.decisions import Decision, decided, read_decisions, write_decided
from triptych.data import manifest
from triptych.errors import UsageError


@pytest.fixture
def table(tmp_path):
    rows = []
    for i in range(4):
        put(tmp_path / f"{i}.png", picture(i))
        put(tmp_path / f"{i}.wav", WAV + b"\0" * i)
        row = {"id": f"r{i}", "image": f"{i}.png", "audio": f"{i}.wav", "text": [f"{i} a", f"{i} b"], "start": i / 10}
        rows.append({**row, "split": "train"})
    rows.append({"id": "only", "image": "0.png", "text": ["x"]})
    return manifest.read(save(tmp_path / "pairs.jsonl", rows))


def after(table, *decisions):
    items, _ = decided(table.rows, decisions)
    return {item.id: item for item in items}


def test_rejecting_takes_out_what_was_meant(table):
    found = after(
        table,
        Decision("reject", "r0", "text"),
        Decision("reject", "r1", "audio"),
        Decision("reject", "r2", "text", 0),
        Decision("reject", "r3", "text", 0),
        Decision("reject", "r3", "text", 1),
        Decision("keep", "only", "text"),
    )
    assert found["r0"].texts == ()
    assert set(found["r0"].files) == {"image", "audio"}
    assert (set(found["r1"].files), found["r1"].texts) == ({"image"}, ("1 a", "1 b"))
    assert found["r2"].texts == ("2 b",)
    assert found["r3"].texts == ()
    assert found["only"].texts == ("x",)


def test_swapping_takes_from_the_other_row_as_it_was(table):
    found = after(
        table,
        Decision("swap", "r0", "text", None, "r1"),
        Decision("swap", "r1", "text", None, "r0"),
        Decision("swap", "r2", "audio", None, "r3"),
        Decision("swap", "r3", "text", 1, "r1", 0),
    )
    assert (found["r0"].texts, found["r1"].texts) == (("1 a", "1 b"), ("0 a", "0 b"))
    assert (found["r2"].files["audio"].name, found["r2"].start) == ("3.wav", 0.3)
    assert found["r2"].files["image"].name == "2.png"
    assert found["r3"].texts == ("3 a", "1 a")


def test_a_new_manifest_is_written_without_rows_that_pair_with_nothing(table, tmp_path):
    told = [Decision("reject", "only", "text"), Decision("swap", "r0", "text", None, "r1")]
    made, _ = write_decided(table, told, tmp_path / "new.csv", "audit")
    again = manifest.read(made.path)
    assert again.errors == ()
    assert {row.id: row.texts for row in again.rows}["r0"] == ("1 a", "1 b")
    assert "only" not in {row.id for row in again.rows}
    assert [row.start for row in again.rows] == [0.0, 0.1, 0.2, 0.3]
    assert made.summary["options"] == {"manifest": "pairs.jsonl", "keep": 0, "reject": 1, "swap": 1}
    (tmp_path / "pairs.source.json").write_text("{}")
    with pytest.raises(UsageError, match="is the manifest to be read"):
        write_decided(table, told, table.path, "audit")


def saved(path, audit, decisions=(), undecided=(), form=1):
    path.write_text(json.dumps({"form": form, "audit": audit, "decisions": decisions, "undecided": undecided}))
    return path


def test_decisions_are_read_as_the_page_saves_them(table, tmp_path):
    own = identity(table.path)
    one = {"key": "k", "action": "swap", "row": "r0", "modality": "text", "caption": 1, "taken_from": "r1"}
    open_ = {"key": "o", "row": "r1", "modality": "text", "caption": None, "taken_from": "r2", "taken_caption": None}
    path = saved(tmp_path / "d.json", own, [one], [open_])
    assert read_decisions(path, own) == [
        Decision("swap", "r0", "text", 1, "r1"),
        Decision("keep", "r1", "text", None, "r2"),
    ]
    assert read_decisions(path, own, "reject")[1].action == "reject"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": "burn"}, "action 'burn' is unknown"),
        ({"modality": "smell"}, "modality 'smell' is unknown"),
        ({"row": 7}, "is not whole"),
        ({"caption": "1"}, "is not whole"),
        ({"taken_from": None}, "is not whole"),
        ({"colour": "red"}, "strange or missing fields"),
    ],
)
def test_decisions_that_make_no_sense_are_refused(change, message, table, tmp_path):
    one = {"action": "swap", "row": "r0", "modality": "text", "caption": 1, "taken_from": "r1"}
    path = saved(tmp_path / "d.json", "x", [{**one, **change}])
    with pytest.raises(UsageError, match=message):
        read_decisions(path, "x")


def test_decisions_about_something_else_are_refused(table, tmp_path):
    with pytest.raises(UsageError, match="about another manifest"):
        read_decisions(saved(tmp_path / "d.json", "other"), identity(table.path))
    with pytest.raises(UsageError, match="holds no decisions"):
        read_decisions(saved(tmp_path / "d.json", "x", form=9), "x")
    (tmp_path / "d.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match="cannot be read as decisions"):
        read_decisions(tmp_path / "d.json", "x")


NOWHERE = 10**9


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (Decision("reject", "gone", "text"), "which the manifest does not have"),
        (Decision("keep", "r0", "text", None, "gone"), "which the manifest does not have"),
        (Decision("reject", "r0", "text", NOWHERE), "about caption 1000000000 of row 'r0', .* has 2 captions"),
        (Decision("keep", "r0", "text", NOWHERE), "about caption 1000000000 of row 'r0'"),
        (Decision("swap", "r0", "text", NOWHERE, "r1", 0), "about caption 1000000000 of row 'r0'"),
        (Decision("reject", "r0", "text", -1), "about caption -1 of row 'r0'"),
        (Decision("reject", "r0", "image", 0), "about caption 0 of row 'r0'"),
        (Decision("swap", "r0", "text", 0, "r1", 2), "about caption 2 of row 'r1'"),
        (Decision("swap", "r0", "text", None, "r1", NOWHERE), "about caption 1000000000 of row 'r1'"),
        (Decision("keep", "r0", "text", 0, "r1", NOWHERE), "about caption 1000000000 of row 'r1'"),
        (Decision("swap", "r0", "audio", None, "only"), "about the audio of row 'only', which has none"),
        (Decision("reject", "only", "audio"), "about the audio of row 'only', which has none"),
    ],
)
def test_decisions_about_what_is_not_there_are_refused(table, decision, message):
    with pytest.raises(UsageError, match=message):
        after(table, decision)
