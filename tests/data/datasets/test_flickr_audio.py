"""Flickr 8k Audio Captions: recordings and captions."""

from tests.data.dataset_replicas import REPLICAS
from tests.data.datasets.conversion import convert_copy, rows_by_id


def test_flickr_audio_pairs_each_reading_with_its_caption(tmp_path):
    REPLICAS["flickr_audio"](tmp_path)
    converted, summary = convert_copy(tmp_path, "flickr_audio")
    assert rows_by_id(converted)["4_d_3"].texts == ("A dog runs 3 .",)
    assert {row.group for row in converted.rows if row.split == "test"} == {"4_d"}
    assert summary["pairs"]["audio-image"] == 15
    assert summary["skipped"] == {"recordings of images in no official list": 5}
