"""Malicious paths and files are rejected with a message that names them."""

import io
import re
import shutil
import struct
import tempfile
import zlib
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from PIL import Image

from tests.app.server.conftest import run_server
from tests.app.server.http_requests import SEARCH, check_error, send_raw, upload
from triptych.app.server import create_app
from triptych.app.server.limits import Limits

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("still_well")]


def png_header(width: int, height: int, rest: bytes = b"") -> bytes:
    """Return a PNG that claims a size but has only a few bytes of data."""

    def chunk(chunk_type, data):
        return struct.pack(">I", len(data)) + chunk_type + data + struct.pack(">I", zlib.crc32(chunk_type + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + rest
        + chunk(b"IDAT", zlib.compress(b"\0" * 100))
        + chunk(b"IEND", b"")
    )


# Paths and names
HOSTILE_IDS = [
    "..%2F..%2F..%2Fetc%2Fpasswd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "..%5c..%5cwindows%5cwin.ini",
    "%00",
    "0123456789abcde%00",
    "'%20OR%20'1'='1",
    "0123456789ABCDEF",
    "0" * 4000,
    "0123456789abcdef%0d%0aSet-Cookie:%20a=b",
    "file:%2F%2F%2Fetc%2Fpasswd",
    "０１２３４５６７８９abcdef",
    "0000000000000000",
]


@pytest.mark.parametrize("route", ["media", "thumbnail", "peaks"])
@pytest.mark.parametrize("name", HOSTILE_IDS, ids=range(len(HOSTILE_IDS)))
def test_item_id_is_never_used_as_path(client, name, route):
    answer = client.get(f"/v1/items/{name}/{route}")
    check_error(answer, 404, 422)
    assert b"root:" not in answer.content


@pytest.mark.parametrize(
    "path",
    [
        "/..%2fsecurity.py",
        "/%2e%2e/%2e%2e/pyproject.toml",
        "/page/../../errors.py",
        "/main.js%00.html",
        "/index.html/../security.py",
        "//etc/passwd",
        "/.",
        "/__init__.py",
    ],
)
def test_only_page_files_are_served_from_package(address, path):
    """Sent as raw bytes: HTTP clients normalise such paths."""
    head, body = send_raw(address, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    assert re.search(r" (404|400|200) ", head)
    assert b"import" not in body or b"<script" in body
    assert b"root:" not in body


@pytest.mark.parametrize(
    "name",
    [
        "../shown/other.txt",
        "../secret.txt",
        "..%2fsecret.txt",
        "%2e%2e%2fsecret.txt",
        "way-out.txt",
        "folds/fold-0.jsonl",
        "notes.txt",
        ".hidden",
        "/etc/passwd",
        "a%00b",
        "x/" * 900,
    ],
)
def test_review_serves_only_linked_files(address, review, name):
    for path in (name, f"{review}/{name}", f"{review.parent}/review/{name}"):
        request = f"GET /review/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        head, body = send_raw(address, request.encode())
        assert re.search(r" (404|400) ", head), path
        assert b"the secret" not in body
        assert b"hidden" not in body.replace(b".hidden", b"")
    for path in (f"{review.parent}/shown/other.txt", f"{review.parent}/secret.txt", f"{review}/../secret.txt"):
        head, body = send_raw(
            address, f"GET /review{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        assert " 404 " in head


def test_file_replaced_by_symlink_is_not_served(collection, files, client, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    hit = client.post(SEARCH, json={"parts": [{"text": "a bell"}], "modalities": ["image"], "k": 40}).json()["hits"][-1]
    path = files / "images" / hit["name"]
    backup = tmp_path / "kept.png"
    shutil.move(path, backup)
    try:
        path.symlink_to(secret)
        assert "deleted or changed" in check_error(client.get(f"/v1/items/{hit['id']}/media"), 410)
        check_error(client.get(f"/v1/items/{hit['id']}/thumbnail?size=20"), 410)
        path.unlink()
        check_error(client.get(f"/v1/items/{hit['id']}/media"), 410)
    finally:
        path.unlink(missing_ok=True)
        shutil.move(backup, path)
    assert client.get(f"/v1/items/{hit['id']}/media").status_code == 200


def test_changed_file_is_not_explained(files, client, ids, tmp_path):
    name = client.get(f"/v1/items/{ids['image']}").json()["name"]
    path = files / "images" / name
    other = next(file for file in sorted((files / "images").iterdir()) if file.name != name)
    request_jsons = [
        {"parts": [{"text": "a bell"}], "item": ids["image"]},
        {"parts": [{"item": ids["image"]}], "item": ids["audio"]},
    ]
    shutil.copy2(path, tmp_path / "kept.png")
    try:
        path.write_bytes(other.read_bytes())
        for request_json in request_jsons:
            assert f"{name}: was deleted or changed" in check_error(client.post("/v1/explain", json=request_json), 410)
    finally:
        shutil.copy2(tmp_path / "kept.png", path)
    for request_json in request_jsons:
        assert client.post("/v1/explain", json=request_json).status_code == 200


# Malicious files
def test_upload_size_limit(collection):
    with (
        run_server(create_app(collection, Limits(max_upload_bytes=20_000))) as url,
        httpx.Client(base_url=url) as client,
    ):
        assert "at most 0.02 MB" in check_error(upload(client, "a.wav", b"\0" * 30_000), 413)


def test_decompression_bomb_image_is_rejected(client):
    message = check_error(upload(client, "bomb.png", png_header(32_000, 32_000)), 413)
    assert message == "bomb.png: 32000 × 32000 pixels; at most 40 million pixels; scale the image down"
    message = check_error(upload(client, "large.png", png_header(8_000, 8_000)), 413)
    assert message == "large.png: 8000 × 8000 pixels; at most 40 million pixels; scale the image down"


def test_gif_with_huge_canvas_is_rejected(client):
    gif = b"GIF89a" + struct.pack("<HHBBB", 65_000, 65_000, 0, 0, 0) + b",\0\0\0\0\xe8\xfd\xe8\xfd\0\x02\x02L\x01\0;"
    check_error(upload(client, "bomb.gif", gif), 413, 422)


def test_png_text_chunk_bomb_is_rejected(client):
    note = b"note\0\0" + zlib.compress(b"a" * 50_000_000, 9)
    chunk = struct.pack(">I", len(note)) + b"zTXt" + note + struct.pack(">I", zlib.crc32(b"zTXt" + note))
    check_error(upload(client, "notes.png", png_header(4, 4, chunk)), 413, 422)


def test_long_audio_is_rejected(client):
    data = io.BytesIO()
    soundfile.write(data, np.zeros(3600 * 8000, np.int16), 8000, format="FLAC")
    assert len(data.getvalue()) < 2_000_000
    assert "at most 600 s" in check_error(upload(client, "long.flac", data.getvalue()), 413)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty.png", b""),
        ("noise.wav", np.random.default_rng(0).bytes(5000)),
        ("noise.mp4", np.random.default_rng(1).bytes(5000)),
        ("page.png", b"<html><script>alert(1)</script></html>"),
        ("entity.svg", b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><svg>&b;</svg>'),
        ("list.m3u8", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"),
        ("list.mp4", b"ffconcat version 1.0\nfile /etc/passwd\n"),
        ("cut.png", None),
        ("cut.wav", None),
        ("script.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n"),
        ("bytes.txt", b"\xff\xfe\x00\xd8 not utf-8"),
        ("blank.txt", b"  \n "),
        ("pickle.pt", b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93\x94."),
        ("zip.wav", b"PK\x03\x04" + b"\0" * 500),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_hostile_files_are_rejected_with_their_name(client, files, name, data):
    if data is None:
        complete = next((files / ("images" if name.endswith("png") else "audio")).iterdir()).read_bytes()
        data = complete[: len(complete) // 2]
    message = check_error(upload(client, name, data), 413, 415, 422)
    assert name in message or "no words" in message
    assert "root:" not in message


@pytest.mark.parametrize(
    "name",
    [
        "../../../evil.png",
        "..\\..\\evil.png",
        "/etc/cron.d/evil.png",
        "a\r\nX: b.png",
        "\u202egnp.exe",
        "n" * 5000 + ".png",
        "",
    ],
)
def test_upload_file_name_is_never_used_as_path(client, files, name, tmp_path):
    image = next((files / "images").iterdir()).read_bytes()
    answer = upload(client, name, image, "image/png")
    assert answer.status_code in {200, 400, 422}, answer.text
    assert not list(Path(tempfile.gettempdir()).glob("**/evil.png"))


def test_image_with_wrong_suffix_is_accepted(client, files):
    image = next((files / "images").iterdir()).read_bytes()
    assert upload(client, "sound.wav", image).status_code == 200


def test_bomb_images_are_small_files():
    """The bombs above are a few bytes that claim gigabytes."""
    bomb = png_header(32_000, 32_000)
    assert len(bomb) < 200
    with Image.open(io.BytesIO(png_header(32, 32))) as small:
        assert small.size == (32, 32)
