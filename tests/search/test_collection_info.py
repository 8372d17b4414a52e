"""The description of a collection: numbers equal those of its items and files."""

import pytest

from triptych.errors import CollectionError
from triptych.search.collection_info import RootInfo, describe_collection
from triptych.search.import_archive import import_collection
from triptych.search.store import FORMAT_VERSION


def test_the_contents_of_a_collection(collection, files, exported, tmp_path):
    contents = describe_collection(collection.uri)
    assert contents.items == {"image": 5, "audio": 5, "text": 1}
    assert contents.roots == [RootInfo("mine", str(files), False, 11)]
    assert contents.fingerprint == collection.fingerprint
    assert contents.format_version == FORMAT_VERSION
    assert contents.space_copy_size == (collection.folder / "space.safetensors").stat().st_size
    assert contents.size == sum(path.stat().st_size for path in collection.folder.rglob("*") if path.is_file())
    import_collection(exported, str(tmp_path / "new"), show_progress=False)
    assert describe_collection(str(tmp_path / "new")).roots == [RootInfo("mine", None, True, 11)]
    with pytest.raises(CollectionError, match="no collection here"):
        describe_collection(str(tmp_path / "empty"))


def test_the_size_on_an_object_store(exported, s3, tmp_path):
    uri = f"{s3}/{tmp_path.name}"
    import_collection(exported, uri, show_progress=False)
    contents = describe_collection(uri)
    assert contents.items == {"image": 5, "audio": 5, "text": 1}
    assert contents.size > (contents.space_copy_size or 0) > 0
