"""Whether a folder contains a collection."""

import pytest

from triptych.errors import CollectionError
from triptych.search.collection import Collection
from triptych.search.presence import check_folder, has_collection, missing_collection_error


def test_a_collection_is_recognised_when_it_has_a_table(run_dir, synthetic_manifest, tmp_path):
    uri = str(tmp_path / "media")
    assert not has_collection(uri)
    Collection(uri, run_dir).add(synthetic_manifest.parent / "images" / "000001.png", show_progress=False)
    assert has_collection(uri)
    assert has_collection((tmp_path / "media").as_uri())
    check_folder(uri)


def test_a_missing_collection_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CollectionError, match=r"^collection: no collection here; create .* `triptych index FOLDER`$"):
        check_folder("collection")
    with pytest.raises(CollectionError, match="`triptych index FOLDER --collection other`"):
        check_folder("other")
    check_folder("s3://bucket/media")  # is not checked
    assert not has_collection("s3://bucket/media")
    (tmp_path / "items.parquet").touch()
    assert "made by an earlier version" in str(missing_collection_error("."))
