"""WavCaps: sites and blacklists."""

from tests.data.dataset_replicas import REPLICAS
from tests.data.datasets.conversion import convert_copy


def test_wavcaps_separates_sites_and_skips_blacklisted_clips(tmp_path):
    REPLICAS["wavcaps"](tmp_path)
    converted, summary = convert_copy(tmp_path, "wavcaps")
    folder_by_id = {row.id: row.audio.parent.name for row in converted.rows if row.audio}
    assert folder_by_id == {
        "FreeSound/7": "FreeSound_flac",
        "SoundBible/7": "SoundBible_flac",
        "AudioSet_SL/Yx": "AudioSet_SL_flac",
    }
    assert summary["skipped"] == {"recordings on a blacklist: they are in a test set": 2}
    assert summary["test"] == {}
