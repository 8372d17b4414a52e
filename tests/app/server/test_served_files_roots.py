"""Files in roots that moved: they are served from their new folder, and nothing outside the roots is ever served."""

import shutil

import httpx
import pyarrow as pa
import pytest

from tests.app.server.conftest import run_server
from triptych.app.server import create_app
from triptych.search.collection import Collection
from triptych.search.lease import acquire_write_access
from triptych.search.scan import items_from_folder
from triptych.search.store import Writer

SECRET = b"the secret words of somebody else"


@pytest.fixture
def media(run_dir, synthetic_manifest, tmp_path):
    """A folder with three images and its collection, and a secret file outside the folder."""
    folder = tmp_path / "media"
    folder.mkdir()
    for path in sorted((synthetic_manifest.parent / "images").iterdir())[:3]:
        shutil.copy(path, folder)
    (tmp_path / "secret.txt").write_bytes(SECRET)
    created = Collection(tmp_path / "collection", run_dir)
    created.index(items_from_folder(folder, created.space), folder, show_progress=False)
    return folder


def download_all(collection):
    """Return the responses for the media files of all items, by file name."""
    with run_server(create_app(collection)) as address:
        return {
            item.source.path.name: httpx.get(f"{address}/v1/items/{item.id}/media", timeout=30)
            for item in collection.list_items()
        }


def test_files_of_a_moved_root_are_served(media, tmp_path):
    before = download_all(Collection(tmp_path / "collection"))
    moved = media.rename(tmp_path / "moved")
    after = download_all(Collection(tmp_path / "collection", roots={"media": moved}))
    assert {name: answer.content for name, answer in after.items()} == {n: a.content for n, a in before.items()}
    assert {answer.status_code for answer in after.values()} == {200}


def test_a_missing_root_says_what_to_type(media, tmp_path):
    media.rename(tmp_path / "moved")
    for name, answer in download_all(Collection(tmp_path / "collection")).items():
        expected = f"{name}: the folder of the root media was not found; start the server with --root media=FOLDER"
        assert (answer.status_code, answer.json()["error"]["message"]) == (410, expected)


def test_other_files_of_the_same_name_are_not_served(media, tmp_path):
    first, second, third = sorted(media.iterdir())
    moved = tmp_path / "moved"
    shutil.copytree(media, moved)
    (moved / first.name).write_bytes(SECRET)
    shutil.rmtree(media)
    answers = download_all(Collection(tmp_path / "collection", roots={"media": moved}))
    assert {name: answer.status_code for name, answer in answers.items()} == {
        first.name: 410,
        second.name: 200,
        third.name: 200,
    }
    assert SECRET not in answers[first.name].content


@pytest.mark.parametrize("location", ["media/../secret.txt", "/etc/hostname", "other/secret.txt", "media/./x.png"])
def test_a_changed_collection_does_not_give_access_to_other_files(media, tmp_path, location):
    collection = Collection(tmp_path / "collection")
    (item, *_) = collection.list_items()
    with acquire_write_access(collection.uri) as access:
        store = collection._require_store()
        row = store.select_rows(store.schema.names, f"id = '{item.id}'")
        files = pa.array([location], pa.string())
        Writer(store, access).upsert(row.set_column(row.schema.get_field_index("file"), "file", files))
    with run_server(create_app(Collection(collection.uri))) as address:
        answer = httpx.get(f"{address}/v1/items/{item.id}/media", timeout=30)
    assert answer.status_code >= 400
    assert "is not in a root of the collection" in answer.json()["error"]["message"]


def test_a_link_to_a_file_outside_the_root_is_not_served(media, tmp_path):
    first = min(media.iterdir())
    first.unlink()
    first.symlink_to(tmp_path / "secret.txt")
    answer = download_all(Collection(tmp_path / "collection"))[first.name]
    assert answer.status_code == 410
    assert SECRET not in answer.content
