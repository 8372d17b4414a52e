"""Files that are replaced, linked, touched or moved while the server sends them."""

import os
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.app.server.conftest import run_server, run_server_process
from tests.app.server.http_requests import SEARCH, check_error
from triptych.app.server import create_app, served_files
from triptych.app.server.errors import HTTPError
from triptych.app.server.served_files import ContentNotHashedError, IndexedFiles, decodable_path, open_without_links
from triptych.data import manifest
from triptych.data.cache import Cache
from triptych.errors import MediaError
from triptych.search.collection import Collection
from triptych.search.scan import items_from_folder, items_from_rows

pytestmark = pytest.mark.slow

SECRET = b"the secret words of somebody else"
TEXT = "a bell rings in the yard"


@pytest.fixture(scope="module")
def media_folder(run_dir, files, tmp_path_factory):
    """A folder with images, audio and a text, their collection, and a secret file outside."""
    folder = tmp_path_factory.mktemp("swapped")
    (folder / "media" / "inner").mkdir(parents=True)
    for subfolder in ("images", "audio"):
        for file in sorted((files / subfolder).iterdir())[:3]:
            (folder / "media" / "inner" / file.name).write_bytes(file.read_bytes())
    (folder / "media" / "inner" / "a.txt").write_text(TEXT)
    (folder / "secret.txt").write_bytes(SECRET)
    created = Collection(folder / "collection", run_dir)
    created.index(items_from_folder(folder / "media", created.space), folder / "media", show_progress=False)
    return folder


@pytest.fixture(scope="module")
def server(media_folder):
    with run_server_process(media_folder / "collection", media_folder / "log.txt") as address:
        yield address


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def items(media_folder):
    """Id and path of one file of each modality."""
    items_by_modality = {}
    for entry in Collection(media_folder / "collection").list_items():
        items_by_modality.setdefault(entry.source.modality, (entry.id, entry.source.content))
    return items_by_modality


def replace_by_symlink(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def replace_by_hard_link(path: Path, secret: Path) -> None:
    os.link(secret, path)


def replace_by_fifo(path: Path, secret: Path) -> None:
    os.mkfifo(path)


def replace_content(path: Path, secret: Path) -> None:
    path.write_bytes(secret.read_bytes())


def remove_file(path: Path, secret: Path) -> None:
    pass


def replace_by_device(path: Path, secret: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("modality", ["text", "image", "audio"])
@pytest.mark.parametrize(
    "replace_file",
    [replace_by_symlink, replace_by_hard_link, replace_by_fifo, replace_content, remove_file, replace_by_device],
    ids=lambda replace_file: replace_file.__name__,
)
def test_replaced_file_is_never_served(client, items, media_folder, tmp_path, modality, replace_file):
    name, path = items[modality]
    status, backup, secret = path.stat(), path.with_name(".kept"), media_folder / "secret.txt"
    path.rename(backup)
    os.utime(secret, ns=(status.st_atime_ns, status.st_mtime_ns))
    try:
        replace_file(path, secret)
        if path.is_file() and not path.is_symlink():
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        check_item_is_not_served(client, name, modality)
    finally:
        path.unlink(missing_ok=True)
        backup.rename(path)
    assert client.get(f"/v1/items/{name}/media").content == path.read_bytes()


@pytest.mark.parametrize("modality", ["text", "image", "audio"])
def test_folder_replaced_by_symlink_is_not_followed(client, items, tmp_path, modality):
    name, path = items[modality]
    status, folder = path.stat(), path.parent
    (tmp_path / path.name).write_bytes(SECRET)
    os.utime(tmp_path / path.name, ns=(status.st_atime_ns, status.st_mtime_ns))
    backup = folder.with_name("kept")
    folder.rename(backup)
    try:
        folder.symlink_to(tmp_path)
        check_item_is_not_served(client, name, modality)
    finally:
        folder.unlink()
        backup.rename(folder)
    assert client.get(f"/v1/items/{name}/media").content == path.read_bytes()


def check_item_is_not_served(client: httpx.Client, name: str, modality: str) -> None:
    """Request every route of an item whose file was replaced."""
    item = client.get(f"/v1/items/{name}").json()
    hits = client.post(SEARCH, json={"parts": [{"text": "a bell"}], "k": 20}).json()["hits"]
    (hit,) = [hit for hit in hits if hit["id"] == name]
    assert item["text"] == hit["text"] == (TEXT if modality == "text" else None)
    assert "deleted or changed" in check_error(client.get(f"/v1/items/{name}/media"), 410)
    check_error(client.get(f"/v1/items/{name}/media", headers={"Range": "bytes=0-9"}), 410)
    for view in {"image": ["thumbnail"], "audio": ["peaks", "spectrogram", "audio.wav"], "text": []}[modality]:
        check_error(client.get(f"/v1/items/{name}/{view}"), 410)
    check_error(client.post("/v1/explain", json={"parts": [{"text": "a bell"}], "item": name}), 410)
    answers = [client.get("/v1/map"), client.get("/v1/collection"), client.get(f"/v1/items/{name}/similar")]
    assert all(answer.is_success and SECRET not in answer.content for answer in answers)


@pytest.mark.parametrize("swapped_path", ["file", "folder"])
def test_concurrent_file_swaps_never_leak(server, items, media_folder, tmp_path, swapped_path):
    """While a thread swaps the file with a link to a secret, hundreds of requests never return the secret."""
    name, path = items["image"]
    expected, stop = path.read_bytes(), threading.Event()
    swapped = path if swapped_path == "file" else path.parent
    backup, spare = swapped.with_name(".kept"), swapped.with_name(".spare")
    target = media_folder / "secret.txt"
    if swapped_path == "folder":
        (tmp_path / path.name).write_bytes(SECRET)
        target = tmp_path

    def swap() -> None:
        while not stop.is_set():
            swapped.rename(backup)
            spare.symlink_to(target)
            spare.rename(swapped)
            stop.wait(0.0005)
            swapped.unlink()
            backup.rename(swapped)
            stop.wait(0.0005)

    def send_request(number: int) -> tuple[int, str]:
        view = "thumbnail" if number % 4 == 0 else "media"
        answer = clients[number % 4].get(f"/v1/items/{name}/{view}")
        assert SECRET not in answer.content
        assert answer.status_code in {200, 410, 422, 503}, answer.text
        assert view == "thumbnail" or answer.status_code != 200 or answer.content == expected
        return answer.status_code, view

    clients = [httpx.Client(base_url=server, timeout=30) for _ in range(4)]
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            counts = Counter(pool.map(send_request, range(300)))
    finally:
        stop.set()
        thread.join()
        for client in clients:
            client.close()
    assert counts.total() == 300
    assert httpx.get(f"{server}/v1/items/{name}/media").content == expected


def test_touched_or_restored_file_is_served(client, items):
    name, path = items["audio"]
    data = path.read_bytes()
    os.utime(path)
    assert client.get(f"/v1/items/{name}/media").content == data
    path.unlink()
    path.write_bytes(data)
    assert client.get(f"/v1/items/{name}/media").content == data
    partial = client.get(f"/v1/items/{name}/media", headers={"Range": "bytes=10-29"})
    assert (partial.status_code, partial.content) == (206, data[10:30])
    assert client.get(f"/v1/items/{name}/peaks").status_code == 200


@pytest.fixture
def linked(run_dir, files, tmp_path):
    """A collection indexed through a link to a folder, with an image that is a link."""
    (tmp_path / "disk").mkdir()
    images = sorted((files / "images").iterdir())
    (tmp_path / "disk" / "plain.png").write_bytes(images[0].read_bytes())
    (tmp_path / "disk" / "blob").write_bytes(images[1].read_bytes())
    (tmp_path / "disk" / "linked.png").symlink_to("blob")
    (tmp_path / "disk" / "manifest.csv").write_text("image,text\nplain.png,a red bell\nlinked.png,a blue drum\n")
    (tmp_path / "way").symlink_to("disk")
    created = Collection(tmp_path / "collection", run_dir)
    rows = manifest.read(tmp_path / "way" / "manifest.csv").rows
    created.index(items_from_rows(rows, created.space), tmp_path / "way" / "manifest.csv", show_progress=False)
    return created, tmp_path


def test_file_indexed_through_symlink_is_served_until_retargeted(linked):
    collection, folder = linked
    entries = {e.source.content.name: e for e in collection.list_items() if e.source.modality == "image"}
    opened = IndexedFiles(collection.cache)
    for name, entry in entries.items():
        with opened.open(entry) as file:
            assert file.read() == (folder / "disk" / name).read_bytes()
    # The same content elsewhere is not the same file: link targets are never hashed.
    (folder / "other").write_bytes((folder / "disk" / "blob").read_bytes())
    (folder / "disk" / "linked.png").unlink()
    (folder / "disk" / "linked.png").symlink_to(folder / "other")
    with pytest.raises(HTTPError, match="deleted or changed"):
        opened.open(entries["linked.png"])


def test_content_is_hashed_without_cache_record(collection, tmp_path):
    """As on a server of another user than the one who indexed."""
    entry = next(e for e in collection.list_items() if e.source.modality == "image")
    opened = IndexedFiles(Cache(tmp_path / "no cache"))
    with pytest.raises(ContentNotHashedError):
        opened.open(entry)
    opened.ensure_hashed(entry)
    with opened.open(entry) as file:
        assert file.read() == entry.source.content.read_bytes()


@pytest.mark.parametrize("path", ["relative.png", "/tmp/../etc/passwd", "/dev/null", "/etc", "/nowhere/a.png"])
def test_open_without_links_rejects_other_paths(path):
    with pytest.raises(OSError, match=r"plain path|regular file|No such file"):
        open_without_links(Path(path))


def test_decoder_gets_private_copy_without_proc(collection, monkeypatch, tmp_path):
    monkeypatch.setattr(served_files, "PROC_FOLDER", tmp_path / "no proc")
    entry = next(e for e in collection.list_items() if e.source.modality == "audio")
    data, path = entry.source.content.read_bytes(), entry.source.content
    with open_without_links(path) as file, decodable_path(file, path) as copy:
        assert not copy.is_symlink()
        assert (copy.read_bytes(), copy.suffix) == (data, path.suffix)
    with run_server(create_app(collection)) as url, httpx.Client(base_url=url, timeout=30) as client:
        assert client.get(f"/v1/items/{entry.id}/media").content == data
        assert client.get(f"/v1/items/{entry.id}/media", headers={"Range": "bytes=5-9"}).content == data[5:10]
        assert client.get(f"/v1/items/{entry.id}/peaks").status_code == 200
    assert not copy.parent.exists()


def test_decoder_errors_name_the_original_file(tmp_path):
    path = tmp_path / "mine.png"
    path.write_bytes(b"data")
    with open_without_links(path) as file:  # noqa: SIM117 - the file must stay open
        with pytest.raises(MediaError, match=r"^mine\.png: broken$"), decodable_path(file, path) as media_folder:
            raise MediaError(f"{media_folder}: broken")


def test_review_rejects_replaced_files(collection, review, tmp_path):
    shutil.copytree(review.parent, tmp_path / "audited")
    shown, secret = tmp_path / "audited" / "shown" / "a b.txt", tmp_path / "audited" / "secret.txt"
    with (
        run_server(create_app(collection, review=tmp_path / "audited" / "review")) as url,
        httpx.Client(base_url=url) as client,
    ):
        assert client.get(f"/review{shown}").text == "what is shown"
        for replace_file in (replace_by_symlink, replace_by_hard_link, replace_by_fifo, replace_content):
            shown.unlink()
            replace_file(shown, secret)
            assert "has changed since" in check_error(client.get(f"/review{shown}"), 404)
