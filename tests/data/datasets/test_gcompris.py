"""GCompris: groups, splits and languages."""

import pytest

from tests.data.dataset_replicas import REPLICAS
from tests.data.datasets.conversion import convert_copy, convert_real, rows_by_id


def test_gcompris_words_that_sound_alike_share_a_group(tmp_path):
    REPLICAS["gcompris"](tmp_path)
    english, french = (
        rows_by_id(convert_copy(tmp_path, "gcompris", tmp_path / f"{lang}.csv", language=lang)[0])
        for lang in ("en", "fr")
    )
    assert english["orange_fruit"].group == english["orange_color"].group
    assert english["coin"].group != english["room"].group
    assert french["coin"].group == french["room"].group
    assert english["room"].audio is None
    assert "sea" not in french
    both, _ = convert_copy(tmp_path, "gcompris", tmp_path / "both.csv", language="both")
    assert {row.split for row in both.rows if row.id.startswith(("coin", "room"))} == {english["coin"].split}
    assert english["coin"].split == english["room"].split == french["room"].split


@pytest.mark.slow
def test_gcompris_in_all_its_languages(tmp_path):
    english = convert_real("gcompris", tmp_path)
    assert english.counts.pairs == {"audio-image": 1075, "audio-text": 1075, "image-text": 1098}
    both = convert_real("gcompris", tmp_path, language="both")
    assert both.counts.rows == 2176
    english_splits = {row.id: row.split for row in english.rows}
    assert all(row.split == english_splits[row.id.partition(":")[0]] for row in both.rows)
