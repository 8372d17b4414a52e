"""AudioCaps: file names of clips."""

from tests.data.dataset_replicas import REPLICAS
from tests.data.datasets.conversion import convert_copy


def test_audiocaps_finds_clips_under_all_their_names(tmp_path):
    REPLICAS["audiocaps"](tmp_path)
    converted, summary = convert_copy(tmp_path, "audiocaps")
    names = {row.id: (row.audio.name, len(row.texts)) for row in converted.rows if row.audio}
    assert names == {
        "train/-aaaaaaaaaa_30": ("-aaaaaaaaaa.wav", 1),
        "val/ccccccccccc_5": ("Yccccccccccc.flac", 5),
        "test/ddddddddddd_5": ("ddddddddddd_5_15.wav", 5),
        "test/ddddddddddd_60": ("ddddddddddd_60.wav", 1),
    }
    assert summary["skipped"] == {"clips without an audio file": 1}
