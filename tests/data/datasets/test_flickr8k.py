"""Flickr8k: official splits and captions."""

import pytest

from tests.data.dataset_replicas import REPLICAS
from tests.data.datasets.conversion import convert_copy, convert_real
from triptych.errors import UsageError


def test_flickr8k_has_its_official_splits(tmp_path):
    REPLICAS["flickr8k"](tmp_path)
    converted, summary = convert_copy(tmp_path, "flickr8k")
    assert {row.id: row.split for row in converted.rows} == {
        "1_a": "train",
        "2_b": "train",
        "3_c": "valid",
        "4_d": "test",
    }
    assert {len(row.texts) for row in converted.rows} == {4}  # the fifth repeats the first
    assert summary["skipped"] == {"images in no official list": 1}


def test_flickr8k_captions_can_be_single_rows(tmp_path):
    REPLICAS["flickr8k"](tmp_path)
    converted, _ = convert_copy(tmp_path, "flickr8k", captions="single")
    assert {len(row.texts) for row in converted.rows} == {1}
    assert len(converted.rows) == 16
    assert {row.group for row in converted.rows if row.split == "test"} == {"4_d"}
    with pytest.raises(UsageError, match="single, together"):
        convert_copy(tmp_path, "flickr8k", captions="apart")


@pytest.mark.slow
def test_flickr8k_has_its_published_size(tmp_path):
    counts = convert_real("flickr8k", tmp_path).counts
    assert (counts.rows, counts.splits) == (8000, {"train": 6000, "valid": 1000, "test": 1000})
    assert counts.captions == 39_990  # ten captions occur twice with one image
