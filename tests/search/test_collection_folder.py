"""The folder of a collection: which files it may contain."""

import pytest

from triptych.errors import CollectionError
from triptych.search.collection_folder import check_folder, find_index_folder


def test_only_the_files_of_a_collection_are_accepted(tmp_path):
    check_folder(tmp_path / "new")
    for name in ("space.safetensors", "not-indexed.tsv", "indexing.lock", ".space.safetensors.0a1b2c3d.part"):
        (tmp_path / name).write_text("")
    check_folder(tmp_path)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(CollectionError, match="contains other files; give an empty or new folder"):
        check_folder(tmp_path)
    with pytest.raises(CollectionError, match="is a file; give a folder"):
        check_folder(tmp_path / "thesis.tex")


def test_the_index_of_a_collection_on_an_object_store_is_in_the_cache(tmp_path):
    assert find_index_folder("/a/collection", tmp_path).as_posix() == "/a/collection/ivf"
    folders = {find_index_folder(f"s3://bucket/{name}", tmp_path) for name in "ab"}
    assert len(folders) == 2
    assert all(folder.is_relative_to(tmp_path) for folder in folders)
