"""Clotho: splits and captions."""

from tests.data.dataset_replicas import REPLICAS
from tests.data.datasets.conversion import convert_copy


def test_clotho_reads_all_parts_and_drops_repeated_captions(tmp_path):
    REPLICAS["clotho"](tmp_path)
    converted, summary = convert_copy(tmp_path, "clotho")
    assert {row.split for row in converted.rows} == {"train", "valid", "test"}
    assert {row.texts for row in converted.rows} == {("a", "b", "c", "d")}
    assert summary["skipped"] == {"rows with an error: missing file": 3}
