"""A user's folder, and a collection of it."""

import shutil

import pytest

from triptych.search.collection import Collection
from triptych.search.scan import items_from_folder


@pytest.fixture
def files(synthetic_manifest, tmp_path):
    """A user's folder: a few pictures and sounds, a text, and things that are none of these."""
    folder = tmp_path / "mine"
    for kind in ("images", "audio"):
        (folder / kind).mkdir(parents=True)
        for path in sorted((synthetic_manifest.parent / kind).iterdir())[:5]:
            shutil.copy(path, folder / kind)
    (folder / "note.txt").write_text("two red bells")
    (folder / "data.bin").write_bytes(b"\x00")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


@pytest.fixture
def collection(run_dir, files, tmp_path):
    collection = Collection.create(tmp_path / "collection", run_dir)
    collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    return collection
