"""Fixtures of the command line and the server: a small indexed collection."""

import shutil

import pytest

from triptych.data import manifest
from triptych.search.collection import Collection
from triptych.search.scan import items_from_rows


@pytest.fixture(scope="session")
def files(synthetic_manifest, tmp_path_factory):
    """A copy of the world's manifest, pictures and sounds that tests of the server may look at, not change."""
    folder = tmp_path_factory.mktemp("served") / "world"
    shutil.copytree(synthetic_manifest.parent, folder)
    return folder


@pytest.fixture(scope="session")
def collection(run_dir, files, tmp_path_factory):
    """Everything of 80 scenes."""
    made = Collection.create(tmp_path_factory.mktemp("indexed") / "collection", run_dir)
    made.index(
        items_from_rows(manifest.read(files / "manifest.csv").rows, made.space),
        files / "manifest.csv",
        show_progress=False,
    )
    return made
