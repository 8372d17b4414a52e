"""Decisions are read and applied: keep, reject and swap, by row and by caption."""

import json

import pytest

from tests.data.dataset_replicas import WAV, png_bytes, write_file
from tests.data.manifest_files import write_manifest
from triptych.auditing.audit import hash_manifest
from triptych.auditing.review import Decision, apply_decisions, read_decisions, write_reviewed_manifest
from triptych.data import manifest
from triptych.errors import UsageError


@pytest.fixture
def table(tmp_path):
    rows = []
    for i in range(4):
        write_file(tmp_path / f"{i}.png", png_bytes(i))
        write_file(tmp_path / f"{i}.wav", WAV + b"\0" * i)
        row = {"id": f"r{i}", "image": f"{i}.png", "audio": f"{i}.wav", "text": [f"{i} a", f"{i} b"], "start": i / 10}
        rows.append({**row, "split": "train"})
    rows.append({"id": "only", "image": "0.png", "text": ["x"]})
    return manifest.read(write_manifest(tmp_path / "pairs.jsonl", rows))


def apply(table, *decisions):
    items, _ = apply_decisions(table.rows, decisions)
    return {item.id: item for item in items}


def test_reject_removes_the_content(table):
    items = apply(
        table,
        Decision("reject", "r0", "text"),
        Decision("reject", "r1", "audio"),
        Decision("reject", "r2", "text", 0),
        Decision("reject", "r3", "text", 0),
        Decision("reject", "r3", "text", 1),
        Decision("keep", "only", "text"),
    )
    assert items["r0"].texts == ()
    assert set(items["r0"].files) == {"image", "audio"}
    assert (set(items["r1"].files), items["r1"].texts) == ({"image"}, ("1 a", "1 b"))
    assert items["r2"].texts == ("2 b",)
    assert items["r3"].texts == ()
    assert items["only"].texts == ("x",)


def test_swap_takes_the_original_content_of_the_other_row(table):
    items = apply(
        table,
        Decision("swap", "r0", "text", None, "r1"),
        Decision("swap", "r1", "text", None, "r0"),
        Decision("swap", "r2", "audio", None, "r3"),
        Decision("swap", "r3", "text", 1, "r1", 0),
    )
    assert (items["r0"].texts, items["r1"].texts) == (("1 a", "1 b"), ("0 a", "0 b"))
    assert (items["r2"].files["audio"].name, items["r2"].start) == ("3.wav", 0.3)
    assert items["r2"].files["image"].name == "2.png"
    assert items["r3"].texts == ("3 a", "1 a")


def test_the_reviewed_manifest_omits_rows_without_a_pair(table, tmp_path):
    decisions = [Decision("reject", "only", "text"), Decision("swap", "r0", "text", None, "r1")]
    written, _ = write_reviewed_manifest(table, decisions, tmp_path / "new.csv", "audit")
    again = manifest.read(written.path)
    assert again.errors == ()
    assert {row.id: row.texts for row in again.rows}["r0"] == ("1 a", "1 b")
    assert "only" not in {row.id for row in again.rows}
    assert [row.start for row in again.rows] == [0.0, 0.1, 0.2, 0.3]
    assert written.summary["options"] == {"manifest": "pairs.jsonl", "keep": 0, "reject": 1, "swap": 1}
    (tmp_path / "pairs.source.json").write_text("{}")
    with pytest.raises(UsageError, match="is the manifest to be read"):
        write_reviewed_manifest(table, decisions, table.path, "audit")


def save_decisions(path, manifest_hash, decisions=(), undecided=(), format_version=2):
    path.write_text(
        json.dumps(
            {
                "format_version": format_version,
                "manifest_hash": manifest_hash,
                "decisions": decisions,
                "undecided": undecided,
            }
        )
    )
    return path


def test_read_decisions_of_the_review_page(table, tmp_path):
    manifest_hash = hash_manifest(table.path)
    decision = {"key": "k", "action": "swap", "row": "r0", "modality": "text", "caption": 1, "replacement_row": "r1"}
    undecided = {
        "key": "o",
        "row": "r1",
        "modality": "text",
        "caption": None,
        "replacement_row": "r2",
        "replacement_caption": None,
    }
    path = save_decisions(tmp_path / "d.json", manifest_hash, [decision], [undecided])
    assert read_decisions(path, manifest_hash) == [
        Decision("swap", "r0", "text", 1, "r1"),
        Decision("keep", "r1", "text", None, "r2"),
    ]
    assert read_decisions(path, manifest_hash, "reject")[1].action == "reject"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": "burn"}, "action 'burn' is unknown"),
        ({"modality": "smell"}, "modality 'smell' is unknown"),
        ({"row": 7}, "is incomplete"),
        ({"caption": "1"}, "is incomplete"),
        ({"replacement_row": None}, "is incomplete"),
        ({"colour": "red"}, "unknown or missing fields"),
    ],
)
def test_invalid_decisions_raise(change, message, table, tmp_path):
    decision = {"action": "swap", "row": "r0", "modality": "text", "caption": 1, "replacement_row": "r1"}
    path = save_decisions(tmp_path / "d.json", "x", [{**decision, **change}])
    with pytest.raises(UsageError, match=message):
        read_decisions(path, "x")


def test_decisions_about_another_manifest_raise(table, tmp_path):
    with pytest.raises(UsageError, match="about another manifest"):
        read_decisions(save_decisions(tmp_path / "d.json", "other"), hash_manifest(table.path))
    with pytest.raises(UsageError, match="not a file of decisions"):
        read_decisions(save_decisions(tmp_path / "d.json", "x", format_version=9), "x")
    (tmp_path / "d.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match="cannot be read as decisions"):
        read_decisions(tmp_path / "d.json", "x")


OUT_OF_RANGE = 10**9


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (Decision("reject", "gone", "text"), "the manifest has no row with this id"),
        (Decision("keep", "r0", "text", None, "gone"), "the manifest has no row with this id"),
        (Decision("reject", "r0", "text", OUT_OF_RANGE), "about caption 1000000000 of row 'r0', .* has 2 captions"),
        (Decision("keep", "r0", "text", OUT_OF_RANGE), "about caption 1000000000 of row 'r0'"),
        (Decision("swap", "r0", "text", OUT_OF_RANGE, "r1", 0), "about caption 1000000000 of row 'r0'"),
        (Decision("reject", "r0", "text", -1), "about caption -1 of row 'r0'"),
        (Decision("reject", "r0", "image", 0), "about caption 0 of row 'r0'"),
        (Decision("swap", "r0", "text", 0, "r1", 2), "about caption 2 of row 'r1'"),
        (Decision("swap", "r0", "text", None, "r1", OUT_OF_RANGE), "about caption 1000000000 of row 'r1'"),
        (Decision("keep", "r0", "text", 0, "r1", OUT_OF_RANGE), "about caption 1000000000 of row 'r1'"),
        (Decision("swap", "r0", "audio", None, "only"), "about the audio of row 'only', but this row has no audio"),
        (Decision("reject", "only", "audio"), "about the audio of row 'only', but this row has no audio"),
    ],
)
def test_decisions_about_missing_content_raise(table, decision, message):
    with pytest.raises(UsageError, match=message):
        apply(table, decision)
