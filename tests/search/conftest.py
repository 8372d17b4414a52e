"""A folder of files, a collection of it, and an object store."""

import shutil

import pytest

from tests.search.s3_server import BUCKET, s3_server
from triptych.search.archive import export_collection
from triptych.search.collection import Collection
from triptych.search.scan import items_from_folder


@pytest.fixture
def files(synthetic_manifest, tmp_path):
    """A folder with five images, five audio files and a text, and files that cannot be indexed."""
    folder = tmp_path / "mine"
    for name in ("images", "audio"):
        (folder / name).mkdir(parents=True)
        for path in sorted((synthetic_manifest.parent / name).iterdir())[:5]:
            shutil.copy(path, folder / name)
    (folder / "note.txt").write_text("two red bells")
    (folder / "data.bin").write_bytes(b"\x00")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


@pytest.fixture
def collection(run_dir, files, tmp_path):
    collection = Collection(tmp_path / "collection", run_dir)
    collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    return collection


@pytest.fixture
def exported(collection, tmp_path):
    """A file that contains the collection."""
    path = tmp_path / "exported.triptych"
    export_collection(collection.uri, path, show_progress=False)
    return path


@pytest.fixture(scope="module")
def s3():
    """An object store that supports conditional writes, with an empty bucket."""
    with s3_server() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}"
