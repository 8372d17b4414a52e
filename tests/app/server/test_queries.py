"""Uploads: same embeddings as on the command line, limits, and failing decoders that do not block others."""

import asyncio
import io
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from PIL import Image

from tests.app.server.conftest import run_server
from tests.app.server.http_requests import QUERY, SEARCH, check_error, upload
from tests.app.server.test_security_files import png_header
from tests.media import media_files
from tests.media.test_sandbox import worker_processes
from triptych.app.server import create_app
from triptych.app.server.errors import HTTPError
from triptych.app.server.limits import Limits
from triptych.app.server.queries import Upload, UploadBudget
from triptych.app.server.state import Metrics, MicroBatcher, UploadUsage
from triptych.interfaces import Source
from triptych.media import modalities_of
from triptych.media.inspection import MediaInfo
from triptych.search.query import Query, QueryPart

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("still_well")]


def png(size, mode="RGB"):
    data = io.BytesIO()
    Image.new(mode, size).save(data, "PNG")
    return data.getvalue()


def uploaded_files(folder: Path) -> list[Path]:
    """One file per format, with sizes and sample rates that no encoder uses."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    Image.fromarray(pixels).resize((800, 600)).save(folder / "photo.jpg")
    Image.fromarray(pixels).convert("RGBA").save(folder / "clear.png")
    media_files.save_audio(folder / "sound.flac", media_files.noise(1.5, 44_100), 44_100)
    media_files.save_audio(folder / "sound.m4a", media_files.noise(1.5, 48_000), 48_000)
    (folder / "words.txt").write_text("two bells ring\n\nin the rain")
    return sorted(folder.iterdir())


def test_upload_embeds_like_local_file(collection, client, tmp_path):
    for path in uploaded_files(tmp_path):
        (modality,) = modalities_of(path)
        query = json.dumps({"parts": [{"file": "f"}], "modalities": ["image", "audio", "text"], "k": 20})
        answer = client.post(SEARCH, data={"query": query}, files={"f": (path.name, path.read_bytes())})
        hits = {hit["id"]: hit["part_scores"] for hit in answer.json()["hits"]}
        query = Query((QueryPart(Source(modality, path)),))
        direct = {hit.id: list(hit.part_scores) for hit in collection.search(query, ["image", "audio", "text"], 20)}
        assert hits == direct, path


def test_video_is_image_and_audio(client, tmp_path):
    video = media_files.save_video(tmp_path / "video.mp4", seconds=1.0)
    answer = upload(client, "video.mp4", video.read_bytes())
    assert answer.status_code == 200
    assert {len(hit["part_scores"]) for hit in answer.json()["hits"]} == {2}


@pytest.fixture
def short_timeout_client(collection):
    """A client of a server with a short decode timeout."""
    with (
        run_server(create_app(collection, Limits(decode_timeout=6.0))) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="worker processes are found in /proc")
@pytest.mark.parametrize("is_killed", [False, True])
def test_slow_decoder_does_not_block_others(short_timeout_client, files, is_killed):
    image, slow = next((files / "images").iterdir()).read_bytes(), media_files.make_slow_jpeg()
    before = worker_processes()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(upload, short_timeout_client, "slow.jpg", slow)
        while not worker_processes() - before and not waiting.done():
            time.sleep(0.01)
        for _ in range(3):
            assert short_timeout_client.post(SEARCH, json=QUERY).status_code == 200
        assert short_timeout_client.get("/healthz").status_code == 200
        assert upload(short_timeout_client, "picture.png", image).status_code == 200
        if is_killed:
            for process in worker_processes() - before:
                os.kill(process, signal.SIGSEGV)
        message = check_error(waiting.result(), 422)
    assert message.startswith("slow.jpg: the decoder's process ended" if is_killed else "slow.jpg: not decoded within")
    assert upload(short_timeout_client, "picture.png", image).status_code == 200


def test_extremely_narrow_image_is_rejected(client):
    """1 × 39,000,000 pixels are 76 KB as PNG and 300 MB in memory."""
    message = check_error(upload(client, "strip.png", png_header(1, 39_000_000)), 413)
    assert "strip.png: 1 × 39000000 pixels; the longer side may have at most 65,535 pixels" in message


def test_upload_limits_apply_per_request(client):
    query = json.dumps({"parts": [{"file": name} for name in "abc"]})
    image = png((6000, 2500), "1")
    answer = client.post(SEARCH, data={"query": query}, files={n: (f"{n}.png", image) for n in "abc"})
    message = check_error(answer, 413)
    assert message == (
        "c.png: 6000 × 2500 pixels; at most 40 million pixels for all files of a request; scale the image down"
    )
    data = io.BytesIO()
    soundfile.write(data, np.zeros(250 * 8000, np.int16), 8000, format="FLAC")
    answer = client.post(SEARCH, data={"query": query}, files={n: (f"{n}.flac", data.getvalue()) for n in "abc"})
    assert "c.flac: 250 s long; at most 600 s for all files of a request; send a shorter file" in check_error(
        answer, 413
    )


def test_upload_limits_apply_across_requests():
    limits, usage, file = Limits(), UploadUsage(), Upload("a.png", Path("a.png"))
    with UploadBudget.open(limits, usage) as one, UploadBudget.open(limits, usage) as other:
        one.reserve(file, MediaInfo(("image",), 8000, 5000))
        other.reserve(file, MediaInfo(("image", "audio"), 8000, 4000, 600.0))
        with UploadBudget.open(limits, usage) as third:
            with pytest.raises(
                HTTPError, match=r"a.png: too many other files are being read; try again in 2 s"
            ) as caught:
                third.reserve(file, MediaInfo(("image",), 4000, 4000))
            assert caught.value.status == 503
            third.reserve(file, MediaInfo(("audio",), duration=600.0))
    assert (usage.pixels, usage.seconds) == (0, 0.0)


def test_texts_with_many_combining_marks(client):
    """Unicode normalisation of such texts once took seconds and blocked other requests."""
    marks = "a" + "\u0301\u0323" * 4999
    answer = client.post("/v1/embeddings", json={"input": [marks] * 32, "model": "triptych"})
    assert answer.status_code == 200
    assert upload(client, "marks.txt", ("a" + "\u0301\u0323" * 100_000).encode()).status_code == 200


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("paper.pdf", b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n" * 20, "is a PDF document"),
        ("paper.mp3", b"%PDF-1.7\n\x80\xff\n1 0 obj\n" * 20, "is a PDF document"),
        ("paper.txt", b"%PDF-1.7\n\x80\xff\n1 0 obj\n" * 20, "is a PDF document"),
        ("unknown.bin", bytes(range(1, 200)) * 9, "unknown format"),
    ],
)
def test_unsupported_file_is_named_correctly(client, name, data, reason):
    message = check_error(upload(client, name, data), 422)
    assert message.startswith(f"{name}: {reason}; give an image (png, jpg …), audio")


def test_long_text_file_is_rejected(client):
    message = check_error(upload(client, "long.txt", b"word " * 4000), 413)
    assert message == "long.txt: 19,999 characters; at most 10,000; send a shorter text"


def test_texts_are_prepared_off_the_event_loop(collection, monkeypatch):
    encoder, threads = collection.space.encoder("text"), []

    def prepare(source):
        threads.append(threading.current_thread())
        return type(encoder).prepare(encoder, source)

    monkeypatch.setattr(encoder, "prepare", prepare)
    batcher = MicroBatcher(collection.space, Limits(), Metrics())
    try:
        asyncio.run(batcher.embed([Source("text", "a bell")] * 3))
    finally:
        batcher.close()
    assert len(threads) == 3
    assert threading.main_thread() not in threads
