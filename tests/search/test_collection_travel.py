"""Collections that are moved, copied, backed up or opened by another user: the table in docs/collections.md."""

import shutil
import subprocess
from functools import partial

import pytest

from tests.search.test_locations import add, list_files
from triptych.errors import CollectionError
from triptych.interfaces import Source
from triptych.search.archive import export_collection
from triptych.search.collection import Collection
from triptych.search.import_archive import import_collection
from triptych.search.store import CollectionMetadata, Store

QUERY = "two red bells"


@pytest.fixture
def own_run(run_dir, tmp_path):
    """A copy of the run that can be moved."""
    (tmp_path / "run").mkdir()
    shutil.copy(run_dir / "space.safetensors", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def indexed(own_run, files, tmp_path):
    collection = Collection(tmp_path / "collection", own_run)
    add(collection, files)
    return collection


@pytest.fixture
def reindex_without_embedding(monkeypatch, tmp_path):
    """Return a function that indexes a folder again, with an empty cache, and checks that nothing is embedded."""

    def reindex(uri, folder, **options):
        with monkeypatch.context() as patch:
            patch.setenv("TRIPTYCH_CACHE", str(tmp_path / "empty cache"))
            patch.setattr("triptych.embedding._iter_inputs", lambda *a: pytest.fail("the encoder ran"))
            result = add(Collection(uri, **options), folder)
        assert (result.added, result.unchanged, result.removed) == (0, 11, 0)

    return reindex


def check_search(collection, ids, folder):
    """Check that a collection has the same items, whose files are in a folder, and gives the same hits."""
    assert list(list_files(collection)) == ids
    hits = collection.search(QUERY, k=11)
    assert len(hits) == 11
    assert all(hit.source.path.is_relative_to(folder) for hit in hits)
    assert all(hit.source.path.is_file() for hit in hits)


def test_the_run_folder_is_moved_or_deleted(indexed, own_run, files, reindex_without_embedding):
    before = indexed.search(QUERY, k=11)
    own_run.rename(own_run.with_name("renamed"))
    again = Collection(indexed.uri)
    assert again.search(QUERY, k=11) == before
    assert str(again.space.name_or_path) == str(indexed.folder / "space.safetensors")
    shutil.rmtree(own_run.with_name("renamed"))
    reindex_without_embedding(indexed.uri, files)


def test_the_collection_is_moved(indexed, files, tmp_path, reindex_without_embedding):
    ids = list(list_files(indexed))
    target = tmp_path / "elsewhere" / "renamed"
    target.parent.mkdir()
    indexed.folder.rename(target)
    check_search(Collection(target), ids, files)
    reindex_without_embedding(target, files)


def test_the_archive_is_at_another_mount(indexed, files, tmp_path, reindex_without_embedding):
    ids = list(list_files(indexed))
    target = tmp_path / "mount" / "archive"
    target.parent.mkdir()
    files.rename(target)
    check_search(Collection(indexed.uri, roots={"mine": target}), ids, target)
    reindex_without_embedding(indexed.uri, target)
    check_search(Collection(indexed.uri), ids, target)


def test_the_project_folder_is_renamed(own_run, files, tmp_path, reindex_without_embedding):
    """Collection and files keep their relative position: nothing has to be given."""
    project = tmp_path / "project"
    project.mkdir()
    files.rename(project / "mine")
    own_run.rename(project / "run")
    collection = Collection(project / "collection", project / "run")
    add(collection, project / "mine")
    ids = list(list_files(collection))
    renamed = project.rename(tmp_path / "renamed")
    again = Collection(renamed / "collection")
    assert again.describe_missing_roots() == []
    check_search(again, ids, renamed / "mine")
    reindex_without_embedding(renamed / "collection", renamed / "mine")


@pytest.mark.parametrize("program", ["cp -r", "rsync -a"])
def test_a_back_up_is_a_collection(indexed, files, tmp_path, program, reindex_without_embedding):
    if shutil.which(program.split()[0]) is None:
        pytest.skip(f"{program.split()[0]} is not installed")
    ids, backup = list(list_files(indexed)), tmp_path / "backup"
    subprocess.run([*program.split(), f"{indexed.uri}/", str(backup)], check=True)
    (files / "later.txt").write_text("written after the back-up")
    add(indexed, files)
    assert len(indexed) == 12
    check_search(Collection(backup), ids, files)
    (files / "later.txt").unlink()
    reindex_without_embedding(backup, files)


def test_another_user_searches_a_collection_that_is_read_only(indexed, own_run, files, tmp_path, monkeypatch):
    """Another user: another home folder and working folder, an empty cache, and no write access."""
    ids = list(list_files(indexed))
    shutil.rmtree(own_run)
    paths = [indexed.folder, *indexed.folder.rglob("*")]
    states = {path: path.stat().st_mtime_ns for path in paths}
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "home" / "cache"))
    monkeypatch.chdir("/")
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        check_search(Collection(indexed.uri), ids, files)
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert {path: path.stat().st_mtime_ns for path in [indexed.folder, *indexed.folder.rglob("*")]} == states


def test_a_collection_of_the_previous_format_says_what_to_type(own_run, files, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("triptych.search.store.FORMAT_VERSION", 5)
        patch.setattr("triptych.search.collection.CollectionMetadata", partial(CollectionMetadata, format_version=5))
        add(Collection(tmp_path / "collection", own_run), files)
    message = (
        r"made by an earlier version of triptych; index again: `triptych index FOLDER --space RUN --rebuild`; "
        "cached features are reused"
    )
    with pytest.raises(CollectionError, match=message):
        Collection(tmp_path / "collection")
    with pytest.raises(CollectionError, match=message):
        export_collection(str(tmp_path / "collection"), tmp_path / "file")
    monkeypatch.setattr("triptych.embedding._iter_inputs", lambda *a: pytest.fail("the encoder ran"))
    rebuilt = Collection(tmp_path / "collection", own_run, rebuild=True)
    assert add(rebuilt, files).added == 11


@pytest.mark.slow
def test_a_collection_on_an_object_store(own_run, files, s3, tmp_path, reindex_without_embedding, monkeypatch):
    uri = f"{s3}/{tmp_path.name}"
    collection = Collection(uri, own_run)
    add(collection, files)
    ids, hits = list(list_files(collection)), collection.search(QUERY, k=11)
    shutil.rmtree(own_run)
    target = tmp_path / "mount"
    files.rename(target)
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache of another machine"))
    again = Collection(uri, roots={"mine": target})
    assert [hit.score for hit in again.search(QUERY, k=11)] == [hit.score for hit in hits]
    check_search(again, ids, target)
    reindex_without_embedding(uri, target)
    export_collection(uri, tmp_path / "file", show_progress=False)
    import_collection(tmp_path / "file", f"{s3}/{tmp_path.name}-copy", {"mine": target}, show_progress=False)
    check_search(Collection(f"{s3}/{tmp_path.name}-copy"), ids, target)
    import_collection(tmp_path / "file", str(tmp_path / "local"), {"mine": target}, show_progress=False)
    check_search(Collection(tmp_path / "local"), ids, target)


def test_export_and_import_on_another_machine(indexed, own_run, files, tmp_path, reindex_without_embedding):
    ids = list(list_files(indexed))
    export_collection(indexed.uri, tmp_path / "file.triptych", show_progress=False)
    shutil.rmtree(own_run)
    shutil.rmtree(indexed.folder)
    target = files.rename(tmp_path / "there")
    import_collection(tmp_path / "file.triptych", str(tmp_path / "new"), show_progress=False)
    imported = Collection(tmp_path / "new")
    assert list(list_files(imported)) == ids
    assert len(imported.search(QUERY, k=11)) == 11
    (sentence,) = imported.describe_missing_roots()
    assert "root mine: its folder is not known on this machine (11 items); say where it is: triptych" in sentence
    check_search(Collection(tmp_path / "new", roots={"mine": target}), ids, target)
    reindex_without_embedding(tmp_path / "new", target)
    check_search(Collection(tmp_path / "new"), ids, target)
    image = min((target / "images").iterdir())
    hits = Collection(tmp_path / "new").search(Source("image", image), "image", include_query=True)
    assert hits[0].source.content == image
    assert Store.open(str(tmp_path / "new")).find_next_row_id() == 11
