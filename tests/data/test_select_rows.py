"""The rows on which a space is evaluated: splits of manifests and of Python data."""

import pytest

from tests.data.test_materialise import drop, make_rows
from triptych.data import manifest
from triptych.data.cache import Cache
from triptych.data.materialise import materialise
from triptych.data.select_rows import select_rows
from triptych.errors import ManifestError


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def ids(rows):
    return [row.id for row in rows]


def test_a_manifest_and_its_rows_give_the_test_split(synthetic_manifest, cache):
    table = manifest.read(synthetic_manifest)
    expected = ids(table.split("test").rows)
    assert ids(select_rows(synthetic_manifest, cache=cache)) == expected
    assert ids(select_rows(synthetic_manifest, "train", cache=cache)) == ids(table.split("train").rows)
    assert ids(select_rows(synthetic_manifest, test_split="valid", cache=cache)) == ids(table.split("valid").rows)
    assert ids(select_rows(table.rows, cache=cache)) == ids(table.rows)
    assert ids(select_rows(table.rows, "test", cache=cache)) == expected
    assert not cache.folder.exists()


def test_python_data_with_splits(cache):
    rows = make_rows(6, "train") + make_rows(3, "test")
    assert ids(select_rows(rows, cache=cache)) == ["row-7", "row-8", "row-9"]
    assert len(select_rows(rows, "all", cache=cache)) == 9
    with pytest.raises(ManifestError, match="split 'valid' is unknown; known: test, train"):
        select_rows(rows, "valid", cache=cache)


def test_data_without_splits_is_used_completely_unless_the_space_was_trained_on_it(cache, tmp_path, capsys):
    rows = drop(make_rows(20), "split")
    assert len(select_rows(rows, cache=cache)) == 20
    assert 'using all 20 rows, as with split="all"' in capsys.readouterr().err
    written = materialise(rows, tmp_path / "run" / "data")
    held_out = manifest.read(written.path).split("test").rows
    assert 0 < len(held_out) < 5
    assert ids(select_rows(rows, training_hashes=[written.manifest_hash], cache=cache)) == ids(held_out)
    assert "rows were split by a hash" in capsys.readouterr().err
    assert ids(select_rows(rows, "test", cache=cache)) == ids(held_out)
    assert len(select_rows(rows, "all", training_hashes=[written.manifest_hash], cache=cache)) == 20


def test_media_are_in_the_cache_once_and_are_cleared_with_it(cache):
    rows = make_rows(4, "test")
    first, second = select_rows(rows, cache=cache), select_rows((row for row in rows), cache=cache)
    assert first == second
    assert [size for _, size, _ in cache.list_stores()] == [1 + 8]  # a manifest, 4 images and 4 audio files
    cache.clear()
    assert cache.list_stores() == []
    assert not [path for path in cache.folder.rglob("*") if path.is_file()]
