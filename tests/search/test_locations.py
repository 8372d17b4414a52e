"""Folders that move: items keep their ids and vectors, and wrong folders are refused."""

import shutil

import pytest

from triptych.data import manifest
from triptych.errors import CollectionError, UsageError
from triptych.interfaces import Source
from triptych.search.collection import Collection
from triptych.search.item import Item
from triptych.search.query import Filter
from triptych.search.scan import items_from_folder, items_from_rows


@pytest.fixture
def no_encoder(monkeypatch):
    """Fail if a file is embedded or if its embedding is taken from the cache."""
    monkeypatch.setattr("triptych.embedding._iter_inputs", lambda *a: pytest.fail("the encoder ran"))
    monkeypatch.setattr("triptych.search.ingest.Ingest._load_cached_embeddings", lambda *a: {})


def add(collection, folder):
    return collection.index(items_from_folder(folder, collection.space), folder, show_progress=False)


def list_files(collection):
    return {item.id: item.file for item in collection.list_items()}


@pytest.mark.parametrize("has_option", [True, False])
def test_a_moved_folder_is_indexed_again_without_embedding(collection, files, tmp_path, no_encoder, has_option, capsys):
    """Without --root the folder is recognised by the content of its files."""
    before = list_files(collection)
    moved = tmp_path / "other mount" / "archive"
    moved.parent.mkdir()
    files.rename(moved)
    again = Collection(collection.uri, roots={"mine": moved} if has_option else None)
    result = add(again, moved)
    assert (result.added, result.unchanged, result.removed) == (0, 11, 0)
    assert list_files(again) == {i: path.replace(str(files), str(moved)) for i, path in before.items()}
    assert list_files(Collection(collection.uri)) == list_files(again)
    assert again.describe_missing_roots() == []
    assert ("root mine: moved from" in capsys.readouterr().err) is not has_option


def test_a_renamed_file_keeps_its_vector(collection, files, no_encoder):
    image = min((files / "images").iterdir())
    (item,) = [item for item in collection.list_items() if item.file == str(image)]
    before = collection.load_features(item.id).embedding
    image.rename(files / "renamed.png")
    result = add(collection, files)
    assert (result.added, result.unchanged, result.removed) == (1, 10, 1)
    (renamed,) = [item for item in collection.list_items() if item.location == "mine/renamed.png"]
    assert (collection.load_features(renamed.id).embedding == before).all()


def test_a_copy_of_a_folder_is_a_new_root_with_the_stored_vectors(collection, files, tmp_path, no_encoder):
    shutil.copytree(files, tmp_path / "copy" / "mine")
    result = add(collection, tmp_path / "copy" / "mine")
    assert (result.added, result.unchanged, result.removed) == (11, 0, 0)
    assert sorted(collection.store.roots.paths) == ["mine", "mine-2"]
    vectors = {item.location: collection.load_features(item.id).embedding for item in collection.list_items()}
    for location, vector in vectors.items():
        assert (vectors[location.replace("mine-2/", "mine/")] == vector).all()


def test_a_folder_with_other_files_is_not_taken_for_a_moved_root(collection, files, tmp_path):
    gone, other = tmp_path / "gone", tmp_path / "other"
    files.rename(gone)
    for path in sorted(gone.rglob("0*.*")):  # the same names, but another content
        target = other / path.relative_to(gone)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(min(path.parent.iterdir()), target)
    with pytest.raises(CollectionError, match=r"--root mine=\S+: 9 of 11 compared files are missing there or differ"):
        Collection(collection.uri, roots={"mine": other})
    add(collection, other)
    assert sorted(collection.store.roots.paths) == ["mine", "other"]
    assert len(collection) == 21


def test_a_folder_with_some_changed_files_is_the_moved_root(collection, files, tmp_path):
    moved = tmp_path / "moved"
    files.rename(moved)
    (moved / "note.txt").write_text("another text")
    result = add(collection, moved)
    assert (result.added, result.unchanged, result.removed) == (1, 10, 0)
    assert list(collection.store.roots.paths) == ["mine"]


def test_roots_given_wrongly_raise_and_change_nothing(collection, files, tmp_path, run_dir):
    with pytest.raises(UsageError, match="root 'mime' is unknown; known: mine"):
        Collection(collection.uri, roots={"mime": files}).check_root_names()
    with pytest.raises(UsageError, match="no such folder"):
        Collection(collection.uri, roots={"mine": tmp_path / "gone"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(CollectionError, match=r"11 of 11 compared files are missing there or differ .*such as note"):
        Collection(collection.uri, run_dir, roots={"mine": tmp_path / "empty"})
    shutil.copytree(files / "images", tmp_path / "more")
    add(collection, tmp_path / "more")
    with pytest.raises(UsageError, match="this is the folder of the root 'more'; one name per folder"):
        Collection(collection.uri, roots={"mine": tmp_path / "more"})
    assert Collection(collection.uri).store.roots.paths == {"mine": files, "more": tmp_path / "more"}


def test_new_roots_get_the_given_names(run_dir, files, tmp_path):
    collection = Collection(tmp_path / "collection", run_dir, roots={"Bells": files})
    add(collection, files)
    assert {item.location.partition("/")[0] for item in collection.list_items()} == {"Bells"}


def test_search_works_while_a_root_is_missing(collection, files, tmp_path):
    files.rename(tmp_path / "gone")
    reader = Collection(collection.uri)
    hits = reader.search("two red bells", k=3)
    assert len(hits) == 3
    assert hits[0].source.path.is_relative_to(files)
    (sentence,) = reader.describe_missing_roots()
    assert sentence == (
        f"root mine: its folder {files} does not exist (11 items); say where it is: "
        f"triptych collection relocate {collection.uri} --root mine=FOLDER"
    )
    moved = Collection(collection.uri, roots={"mine": tmp_path / "gone"})
    assert all(hit.source.path.is_file() for hit in moved.search("two red bells", k=3))
    assert Collection(collection.uri).describe_missing_roots(), "a search does not store the folder"
    moved.relocate()
    assert Collection(collection.uri).describe_missing_roots() == []


def test_a_folder_inside_a_root_needs_no_own_root_and_an_outer_folder_keeps_the_inner_root(run_dir, files, tmp_path):
    collection = Collection(tmp_path / "collection", run_dir)
    add(collection, files / "images")
    inner = list_files(collection)
    add(collection, files)
    assert collection.store.roots.paths == {"images": files / "images", "mine": files}
    assert inner.items() <= list_files(collection).items()
    assert {tuple(item.origins) for item in collection.list_items()} == {("images", "mine"), ("mine",)}
    add(collection, files / "audio")
    assert sorted(collection.store.roots.paths) == ["images", "mine"]
    assert len(collection) == 11
    assert len(collection.list_items(Filter(folder=files / "images"))) == 5
    assert len(collection.list_items(Filter(folder=files))) == 11
    assert len(collection.list_items(Filter(location="mine/audio"))) == 5
    assert collection.list_items(Filter(folder=tmp_path / "elsewhere")) == []


def test_files_outside_the_folder_of_a_manifest_get_roots(run_dir, files, tmp_path):
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "pairs.csv"
    rows = [f"{image},a bell" for image in sorted((files / "images").iterdir())]
    path.write_text("\n".join(["image,text", *rows, f"../mine/images/{min((files / 'images').iterdir()).name},a frog"]))
    collection = Collection(tmp_path / "collection", run_dir)
    items = items_from_rows(manifest.read(path, allow_outside=True).rows, collection.space)
    collection.index(items, path, show_progress=False)
    assert collection.store.roots.paths == {"tables": path.parent, "images": files / "images"}
    images = [item for item in collection.list_items() if item.source.modality == "image"]
    assert {item.location.partition("/")[0] for item in images} == {"images"}
    assert {tuple(item.origins) for item in images} == {("tables/pairs.csv",)}
    assert len(images) == 5, "the same file through two paths is one item"


def test_a_manifest_in_a_linked_folder_and_its_files_have_one_root(run_dir, files, tmp_path):
    (tmp_path / "link").symlink_to(files)
    (files / "pairs.csv").write_text(f"image,text\nimages/{min((files / 'images').iterdir()).name},a bell\n")
    collection = Collection(tmp_path / "collection", run_dir)
    path = tmp_path / "link" / "pairs.csv"
    collection.index(items_from_rows(manifest.read(path).rows, collection.space), path, show_progress=False)
    assert collection.store.roots.paths == {"mine": files}


def test_the_target_of_a_link_gets_its_own_root(run_dir, tmp_path, files):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.png").symlink_to(min((files / "images").iterdir()))
    collection = Collection(tmp_path / "collection", run_dir)
    add(collection, tmp_path / "links")
    (item,) = collection.list_items()
    assert (item.location.partition("/")[0], item.origins) == ("images", ["links"])


def test_relative_paths_become_absolute(run_dir, files, tmp_path, monkeypatch):
    image = min((files / "images").iterdir())
    collection = Collection(tmp_path / "collection", run_dir)
    monkeypatch.chdir(files)
    collection.index([Item(Source("image", image.relative_to(files)))], "images", show_progress=False)
    assert [item.source.content for item in collection.list_items()] == [image]
