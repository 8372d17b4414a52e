"""The space of a collection: its copy, names and paths that are stored instead, and missing or other spaces."""

import shutil

import pytest

from triptych import checkpoint
from triptych.checkpoint import load, save
from triptych.errors import CollectionError
from triptych.search import collection_space
from triptych.search.collection import Collection
from triptych.search.collection_space import describe_space, find_space_copy, pin_revision
from triptych.search.scan import items_from_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def other_space(run_dir, tmp_path):
    space = load(run_dir)
    next(space.parameters()).data += 0.1
    save(space, tmp_path / "other.safetensors")
    return tmp_path / "other.safetensors"


def test_the_copy_is_used_also_if_the_run_was_trained_again(run_dir, files, other_space, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(run_dir / "space.safetensors", run)
    collection = Collection(tmp_path / "collection", run)
    collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    shutil.copy(other_space, run / "space.safetensors")
    copy = collection.folder / "space.safetensors"
    assert copy.read_bytes() == (run_dir / "space.safetensors").read_bytes()
    assert Collection(collection.uri).search("two red bells", k=11) == collection.search("two red bells", k=11)
    with pytest.raises(CollectionError, match=r"made with another space .*run.*\(fingerprint \w{16}, not \w{16}\)"):
        Collection(collection.uri, run)


def test_a_changed_copy_raises_and_indexing_with_the_space_repairs_it(run_dir, collection, files, other_space):
    copy = collection.folder / "space.safetensors"
    original = copy.read_bytes()
    shutil.copy(other_space, copy)
    with pytest.raises(CollectionError, match=r"this copy of the space was changed .*; .*--space RUN"):
        Collection(collection.uri)
    again = Collection(collection.uri, run_dir)
    assert again.index(items_from_folder(files, again.space), files, show_progress=False).unchanged == 11
    assert copy.read_bytes() == original


def test_a_large_space_is_not_copied_but_found_by_its_path(run_dir, files, tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(run_dir / "space.safetensors", run)
    monkeypatch.setattr(collection_space, "MAX_SPACE_BYTES", 1000)
    collection = Collection(tmp_path / "collection", run)
    collection.index(items_from_folder(files, collection.space), files, show_progress=False)
    assert not (collection.folder / "space.safetensors").exists()
    assert len(Collection(collection.uri)) == 11
    moved = run.rename(tmp_path / "moved")
    message = r"the space \S+run/space.safetensors \(fingerprint \w{16}\) cannot be loaded: .*no such .* --space RUN"
    with pytest.raises(CollectionError, match=message):
        Collection(collection.uri)
    Collection(collection.uri, moved).relocate()
    assert Collection(collection.uri).space.name_or_path == str(moved / "space.safetensors")


def test_another_space_raises_and_is_not_stored(collection, other_space):
    with pytest.raises(CollectionError, match="made with another space"):
        Collection(collection.uri, other_space)
    assert len(Collection(collection.uri).search("two red bells", k=11)) == 11


def test_a_space_that_changes_while_it_is_copied_raises(run_dir, tmp_path):
    with pytest.raises(CollectionError, match="the space changed while it was used; run the same command again"):
        collection_space.copy_space(str(tmp_path), run_dir / "space.safetensors", "0" * 16)
    assert list(tmp_path.iterdir()) == []


def test_names_are_stored_unchanged_and_paths_absolute(run_dir, tmp_path, monkeypatch):
    space, path = load(run_dir), str((run_dir / "space.safetensors").resolve())
    monkeypatch.chdir(run_dir.parent)
    assert describe_space(run_dir.name, space) == describe_space(run_dir, space) == (path, None)
    assert describe_space(space, space) == (path, None)
    assert describe_space("starter", space) == ("starter", None)
    assert describe_space("hf:a/b+st:c/d", space) == ("hf:a/b+st:c/d", None)
    assert describe_space(f"hf:{run_dir.name}?truncate_dim=4", space) == (path, None)
    space.name_or_path = f"hf:/cache/models--a--b/snapshots/{COMMIT}?truncate_dim=4"
    assert describe_space("hf:a/b?truncate_dim=4", space) == ("hf:a/b?truncate_dim=4", COMMIT)
    space.name_or_path = f"{space.name_or_path}+/cache/models--c--d/snapshots/{COMMIT[::-1]}"
    assert describe_space("hf:a/b?truncate_dim=4+hf:c/d", space) == ("hf:a/b?truncate_dim=4+hf:c/d", None)
    space.name_or_path = "/the/absolute/path"
    shutil.copytree(run_dir, tmp_path / "cats+dogs")
    monkeypatch.chdir(tmp_path)
    assert describe_space("hf:cats+dogs", space) == ("/the/absolute/path", None)


def test_a_model_of_the_hub_is_loaded_at_the_revision_that_was_indexed():
    assert pin_revision("hf:a/b", COMMIT) == f"hf:a/b?revision={COMMIT}"
    assert pin_revision("hf:a/b?truncate_dim=4", COMMIT) == f"hf:a/b?truncate_dim=4&revision={COMMIT}"
    assert pin_revision("hf:a/b?revision=main", COMMIT) == "hf:a/b?revision=main"
    assert pin_revision("hf:a/b", None) == "hf:a/b"
    assert pin_revision("starter", COMMIT) == "starter"


def test_the_copy_on_an_object_store_is_downloaded_once(run_dir, s3, tmp_path):
    fingerprint = checkpoint.compute_fingerprint(run_dir)
    uri, cache = f"{s3}/{tmp_path.name}", tmp_path / "cache"
    assert find_space_copy(uri, fingerprint, cache) is None
    assert collection_space.copy_space(uri, run_dir / "space.safetensors", fingerprint)
    path = find_space_copy(uri, fingerprint, cache)
    assert path is not None
    assert path == cache / "space.safetensors"
    assert path.read_bytes() == (run_dir / "space.safetensors").read_bytes()
    path.write_bytes(b"damaged")
    assert find_space_copy(uri, fingerprint, cache) == path
    assert checkpoint.compute_fingerprint(path) == fingerprint
    assert find_space_copy("s3+ddb://bucket/x", fingerprint, tmp_path / "none") is None
