"""The folder of a collection: which files it may contain, and folders without a collection."""

import pytest

from triptych.errors import CollectionError
from triptych.search.collection import Collection
from triptych.search.collection_folder import (
    check_collection,
    check_writable_folder,
    find_index_folder,
    has_collection,
    missing_collection_error,
)


def test_only_the_files_of_a_collection_are_accepted(tmp_path):
    check_writable_folder(tmp_path / "new")
    for name in ("space.safetensors", "not-indexed.tsv", "indexing.lock", ".space.safetensors.0a1b2c3d.part"):
        (tmp_path / name).write_text("")
    check_writable_folder(tmp_path)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(CollectionError, match="contains other files; give an empty or new folder"):
        check_writable_folder(tmp_path)
    with pytest.raises(CollectionError, match="is a file; give a folder"):
        check_writable_folder(tmp_path / "thesis.tex")


def test_the_index_of_a_collection_on_an_object_store_is_in_the_cache(tmp_path):
    assert find_index_folder("/a/collection", tmp_path).as_posix() == "/a/collection/ivf"
    folders = {find_index_folder(f"s3://bucket/{name}", tmp_path) for name in "ab"}
    assert len(folders) == 2
    assert all(folder.is_relative_to(tmp_path) for folder in folders)


def test_a_collection_is_recognised_when_it_has_a_table(run_dir, synthetic_manifest, tmp_path):
    uri = str(tmp_path / "media")
    assert not has_collection(uri)
    Collection(uri, run_dir).add(synthetic_manifest.parent / "images" / "000001.png", show_progress=False)
    assert has_collection(uri)
    assert has_collection((tmp_path / "media").as_uri())
    check_collection(uri)


def test_a_missing_collection_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CollectionError, match=r"^collection: no collection here; create .* `triptych index FOLDER`$"):
        check_collection("collection")
    with pytest.raises(CollectionError, match="`triptych index FOLDER --collection other`"):
        check_collection("other")
    check_collection("s3://bucket/media")  # is not checked
    assert not has_collection("s3://bucket/media")
    (tmp_path / "items.parquet").touch()
    assert "made by an earlier version" in str(missing_collection_error("."))
