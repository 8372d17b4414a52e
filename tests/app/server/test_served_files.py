"""Files of the collection that are swapped, linked, touched or moved while a server gives them out."""

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
def place(run_dir, files, tmp_path_factory):
    """A folder with a picture, a sound and a text, and a collection of them beside it; a secret lies outside."""
    folder = tmp_path_factory.mktemp("swapped")
    (folder / "media" / "inner").mkdir(parents=True)
    for kind in ("images", "audio"):
        for file in sorted((files / kind).iterdir())[:3]:
            (folder / "media" / "inner" / file.name).write_bytes(file.read_bytes())
    (folder / "media" / "inner" / "a.txt").write_text(TEXT)
    (folder / "secret.txt").write_bytes(SECRET)
    made = Collection.create(folder / "collection", run_dir)
    made.index(items_from_folder(folder / "media", made.space), folder / "media", show_progress=False)
    return folder


@pytest.fixture(scope="module")
def server(place):
    with run_server_process(place / "collection", place / "log.txt") as address:
        yield address


@pytest.fixture
def visitor(server):
    with httpx.Client(base_url=server, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def items(place):
    """A file of each modality: its id and its path."""
    found = {}
    for entry in Collection.open(place / "collection").list_items():
        found.setdefault(entry.source.modality, (entry.id, entry.source.content))
    return found


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
    "put",
    [replace_by_symlink, replace_by_hard_link, replace_by_fifo, replace_content, remove_file, replace_by_device],
    ids=lambda put: put.__name__,
)
def test_replaced_file_is_never_served(visitor, items, place, tmp_path, modality, put):
    name, path = items[modality]
    status, kept, secret = path.stat(), path.with_name(".kept"), place / "secret.txt"
    path.rename(kept)
    os.utime(secret, ns=(status.st_atime_ns, status.st_mtime_ns))
    try:
        put(path, secret)
        if path.is_file() and not path.is_symlink():
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        check_item_is_not_served(visitor, name, modality)
    finally:
        path.unlink(missing_ok=True)
        kept.rename(path)
    assert visitor.get(f"/v1/items/{name}/media").content == path.read_bytes()


@pytest.mark.parametrize("modality", ["text", "image", "audio"])
def test_folder_replaced_by_symlink_is_not_followed(visitor, items, tmp_path, modality):
    name, path = items[modality]
    status, folder = path.stat(), path.parent
    (tmp_path / path.name).write_bytes(SECRET)
    os.utime(tmp_path / path.name, ns=(status.st_atime_ns, status.st_mtime_ns))
    kept = folder.with_name("kept")
    folder.rename(kept)
    try:
        folder.symlink_to(tmp_path)
        check_item_is_not_served(visitor, name, modality)
    finally:
        folder.unlink()
        kept.rename(folder)
    assert visitor.get(f"/v1/items/{name}/media").content == path.read_bytes()


def check_item_is_not_served(visitor: httpx.Client, name: str, modality: str) -> None:
    """Ask for everything there is of an item whose file has been swapped."""
    shown = visitor.get(f"/v1/items/{name}").json()
    hits = visitor.post(SEARCH, json={"parts": [{"text": "a bell"}], "k": 20}).json()["hits"]
    (hit,) = [hit for hit in hits if hit["id"] == name]
    assert shown["text"] == hit["text"] == (TEXT if modality == "text" else None)
    assert "deleted or changed" in check_error(visitor.get(f"/v1/items/{name}/media"), 410)
    check_error(visitor.get(f"/v1/items/{name}/media", headers={"Range": "bytes=0-9"}), 410)
    for view in {"image": ["thumbnail"], "audio": ["peaks", "spectrogram", "audio.wav"], "text": []}[modality]:
        check_error(visitor.get(f"/v1/items/{name}/{view}"), 410)
    check_error(visitor.post("/v1/explain", json={"parts": [{"text": "a bell"}], "item": name}), 410)
    answers = [visitor.get("/v1/map"), visitor.get("/v1/collection"), visitor.get(f"/v1/items/{name}/similar")]
    assert all(answer.is_success and SECRET not in answer.content for answer in answers)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_concurrent_file_swaps_never_leak(server, items, place, tmp_path, what):
    """The name leads now to the file that was indexed, now to a link to a secret; hundreds of requests meanwhile."""
    name, path = items["image"]
    right, stop = path.read_bytes(), threading.Event()
    swapped = path if what == "file" else path.parent
    kept, spare = swapped.with_name(".kept"), swapped.with_name(".spare")
    target = place / "secret.txt"
    if what == "folder":
        (tmp_path / path.name).write_bytes(SECRET)
        target = tmp_path

    def swap() -> None:
        while not stop.is_set():
            swapped.rename(kept)
            spare.symlink_to(target)
            spare.rename(swapped)
            stop.wait(0.0005)
            swapped.unlink()
            kept.rename(swapped)
            stop.wait(0.0005)

    def ask(number: int) -> tuple[int, str]:
        view = "thumbnail" if number % 4 == 0 else "media"
        answer = clients[number % 4].get(f"/v1/items/{name}/{view}")
        assert SECRET not in answer.content
        assert answer.status_code in {200, 410, 422, 503}, answer.text
        assert view == "thumbnail" or answer.status_code != 200 or answer.content == right
        return answer.status_code, view

    clients = [httpx.Client(base_url=server, timeout=30) for _ in range(4)]
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            counts = Counter(pool.map(ask, range(300)))
    finally:
        stop.set()
        thread.join()
        for client in clients:
            client.close()
    assert counts.total() == 300
    assert httpx.get(f"{server}/v1/items/{name}/media").content == right


def test_touched_or_restored_file_is_served(visitor, items):
    name, path = items["audio"]
    data = path.read_bytes()
    os.utime(path)
    assert visitor.get(f"/v1/items/{name}/media").content == data
    path.unlink()
    path.write_bytes(data)
    assert visitor.get(f"/v1/items/{name}/media").content == data
    piece = visitor.get(f"/v1/items/{name}/media", headers={"Range": "bytes=10-29"})
    assert (piece.status_code, piece.content) == (206, data[10:30])
    assert visitor.get(f"/v1/items/{name}/peaks").status_code == 200


@pytest.fixture
def linked(run_dir, files, tmp_path):
    """A collection of a manifest that lies behind a link and names a picture that is one."""
    (tmp_path / "disk").mkdir()
    pictures = sorted((files / "images").iterdir())
    (tmp_path / "disk" / "plain.png").write_bytes(pictures[0].read_bytes())
    (tmp_path / "disk" / "blob").write_bytes(pictures[1].read_bytes())
    (tmp_path / "disk" / "linked.png").symlink_to("blob")
    (tmp_path / "disk" / "manifest.csv").write_text("image,text\nplain.png,a red bell\nlinked.png,a blue drum\n")
    (tmp_path / "way").symlink_to("disk")
    made = Collection.create(tmp_path / "collection", run_dir)
    rows = manifest.read(tmp_path / "way" / "manifest.csv").rows
    made.index(items_from_rows(rows, made.space), tmp_path / "way" / "manifest.csv", show_progress=False)
    return made, tmp_path


def test_file_indexed_through_symlink_is_served_until_retargeted(linked):
    collection, folder = linked
    known = {e.source.content.name: e for e in collection.list_items() if e.source.modality == "image"}
    opened = IndexedFiles(collection.cache)
    for name, entry in known.items():
        with opened.open(entry) as file:
            assert file.read() == (folder / "disk" / name).read_bytes()
    # The same content elsewhere is not the same file: what a link leads to is never read to find that out.
    (folder / "other").write_bytes((folder / "disk" / "blob").read_bytes())
    (folder / "disk" / "linked.png").unlink()
    (folder / "disk" / "linked.png").symlink_to(folder / "other")
    with pytest.raises(HTTPError, match="deleted or changed"):
        opened.open(known["linked.png"])


def test_content_is_hashed_without_cache_record(collection, tmp_path):
    """As for a server that another user runs than the one who has indexed."""
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
    with run_server(create_app(collection)) as where, httpx.Client(base_url=where, timeout=30) as client:
        assert client.get(f"/v1/items/{entry.id}/media").content == data
        assert client.get(f"/v1/items/{entry.id}/media", headers={"Range": "bytes=5-9"}).content == data[5:10]
        assert client.get(f"/v1/items/{entry.id}/peaks").status_code == 200
    assert not copy.parent.exists()


def test_decoder_errors_name_the_original_file(tmp_path):
    path = tmp_path / "mine.png"
    path.write_bytes(b"data")
    with open_without_links(path) as file:  # noqa: SIM117 - the file outlives the error
        with pytest.raises(MediaError, match=r"^mine\.png: broken$"), decodable_path(file, path) as place:
            raise MediaError(f"{place}: broken")


def test_review_rejects_replaced_files(collection, review, tmp_path):
    shutil.copytree(review.parent, tmp_path / "audited")
    shown, secret = tmp_path / "audited" / "shown" / "a b.txt", tmp_path / "audited" / "secret.txt"
    with (
        run_server(create_app(collection, review=tmp_path / "audited" / "review")) as where,
        httpx.Client(base_url=where) as client,
    ):
        assert client.get(f"/review{shown}").text == "what is shown"
        for put in (replace_by_symlink, replace_by_hard_link, replace_by_fifo, replace_content):
            shown.unlink()
            put(shown, secret)
            assert "has changed since" in check_error(client.get(f"/review{shown}"), 404)
