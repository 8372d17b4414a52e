"""Fixtures of the command line and the server: a small indexed collection."""

import shutil

import pytest

from triptych.data import manifest
from triptych.search.collection import Collection
from triptych.search.scan import items_from_rows


@pytest.fixture(scope="session")
def files(synthetic_manifest, tmp_path_factory):
    """A copy of the synthetic data; tests must not change it."""
    folder = tmp_path_factory.mktemp("served") / "world"
    shutil.copytree(synthetic_manifest.parent, folder)
    return folder


@pytest.fixture(scope="session")
def collection(run_dir, files, tmp_path_factory):
    """A collection of 80 scenes: images, audio and captions."""
    indexed = Collection(tmp_path_factory.mktemp("indexed") / "collection", run_dir)
    indexed.index(
        items_from_rows(manifest.read(files / "manifest.csv").rows, indexed.space),
        files / "manifest.csv",
        show_progress=False,
    )
    return indexed
