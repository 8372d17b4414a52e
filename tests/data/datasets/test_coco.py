"""COCO Captions: official and Karpathy splits."""

import pytest

from tests.data.dataset_replicas import REPLICAS, karpathy
from tests.data.datasets.conversion import convert_copy
from triptych.errors import ManifestError


def test_coco_reads_official_or_karpathy_splits(tmp_path):
    REPLICAS["coco"](tmp_path / "official")
    converted, _ = convert_copy(tmp_path / "official", "coco")
    assert [(row.id, row.split, len(row.texts)) for row in converted.rows][1:3] == [
        ("1", "train", 5),
        ("10", "test", 5),
    ]
    assert {row.image.parent.name for row in converted.rows if row.image and row.split == "test"} == {"val2017"}
    karpathy(tmp_path / "karpathy")
    converted, _ = convert_copy(tmp_path / "karpathy", "coco")
    assert [row.split for row in converted.rows] == ["train", "train", "valid", "test"]
    with pytest.raises(ManifestError, match=r"dataset_coco\.json"):
        convert_copy(tmp_path / "official", "coco", splits="karpathy")
