"""Manifests derived from another manifest."""

import json

import pytest

from tests.data.dataset_replicas import WAV, write_file
from tests.data.manifest_files import write_manifest
from triptych.data import manifest
from triptych.data.datasets.derived import item_from_row, resolve_derived_path, write_derived_manifest
from triptych.errors import UsageError


@pytest.fixture
def table(tmp_path):
    for name in ("a", "b"):
        write_file(tmp_path / f"{name}.wav", WAV)
    rows = [
        {"id": "a", "audio": "a.wav", "text": ["x", "y"], "group": "g", "split": "train", "label": "l", "start": 1.5},
        {"id": "b", "audio": "b.wav", "text": "z"},
        {"id": "c", "audio": "missing.wav", "text": "z"},
    ]
    write_file(tmp_path / "pairs.source.json", json.dumps({"licence": "CC0"}))
    return manifest.read(write_manifest(tmp_path / "pairs.jsonl", rows))


def test_rows_licence_and_errors_are_carried_over(table, tmp_path):
    items = [item_from_row(row) for row in table.rows]
    assert [item.group for item in items] == ["g", None]
    written, _ = write_derived_manifest(table, items, tmp_path / "new.jsonl", "example", {"seed": 1}, {"other": 2})
    assert written.summary["options"] == {"manifest": "pairs.jsonl", "seed": 1}
    assert written.summary["licence"] == "CC0"
    assert written.summary["skipped"] == {"other": 2, "rows with an error": 1}
    assert manifest.read(written.path).rows == table.rows


def test_the_input_manifest_is_not_a_valid_output(table, tmp_path):
    assert resolve_derived_path(tmp_path / "new.csv", table) == tmp_path / "new.csv"
    with pytest.raises(UsageError, match="is the manifest to be read"):
        resolve_derived_path(tmp_path / "pairs.jsonl", table)
