"""Decoders in worker processes: equal results, and errors that name the file for crashes and invalid replies."""

import json
import os
import signal
import struct
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.media import media_files
from triptych.errors import MediaError
from triptych.media import audio, image, inspection, modalities_of, sandbox, text, video
from triptych.media.sandbox import HEADER, WorkerPool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc"),
]

RATE = 16_000
TIMEOUT = 60.0  # seconds, longer than any call of these tests


def worker_processes() -> set[int]:
    """Return the worker processes that this process has started."""
    children, pids = list[str](), set[int]()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended in the meantime
            children += (task / "children").read_text().split()
    for child in children:
        with suppress(OSError):  # the process has ended in the meantime
            if b"triptych.media.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                pids.add(int(child))
    return pids


def make_header(tag, *shape):
    return HEADER.pack(tag, len(shape), *(*shape, 0, 0, 0)[:3])


def patch_worker_reply(reply, folder, monkeypatch):
    """Replace the worker process by a program that gives one reply to all requests."""
    (folder / "answer").write_bytes(reply)
    program = folder / "program"
    program.write_text(f"#!/bin/sh\nread line\nexec cat {folder}/answer\n")
    program.chmod(0o755)
    monkeypatch.setattr(sandbox.sys, "executable", str(program))


@pytest.fixture
def other_workers():
    """The worker processes of servers that run during the test."""
    return worker_processes()


@pytest.fixture
def pool():
    pool = WorkerPool(TIMEOUT, 2_000_000_000)
    yield pool
    pool.close()


@pytest.fixture
def image_path(tmp_path):
    path = tmp_path / "image.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)).save(path)
    return path


def test_results_equal_those_without_a_worker(other_workers, pool, image_path, tmp_path):
    transparent = tmp_path / "clear.png"
    Image.new("RGBA", (30, 20), (200, 20, 30, 77)).save(transparent)
    text_path = tmp_path / "text.txt"
    text_path.write_text("ein Vögelchen singt")
    video_path = media_files.save_video(tmp_path / "video.mp4", seconds=1.0)
    audio_paths = [
        media_files.save_audio(tmp_path / f"a.{e}", media_files.noise(1.0, RATE), RATE)
        for e in ("wav", "mp3", "flac", "m4a")
    ]
    calls = [lambda path=path: image.load(path) for path in (image_path, transparent, video_path)]
    calls += [lambda path=path: image.read_pixels(path, 64) for path in (image_path, transparent, video_path)]
    calls += [
        lambda: image.load(image_path, 100),
        lambda: image.load(video_path, time=0.5),
        lambda: video.find_midpoint(video_path, 0.2, 0.6),
    ]
    calls += [lambda path=path: audio.read(path, 22_050) for path in (*audio_paths, video_path)]
    calls += [lambda path=path: audio.read(path, RATE, 0.3, 0.7) for path in (*audio_paths, video_path)]
    calls += [lambda path=path: audio.read_duration(path) for path in (*audio_paths, video_path)]
    calls += [
        lambda path=path: inspection.inspect_file(path, modalities_of(path))
        for path in (image_path, transparent, text_path, video_path, *audio_paths)
    ]
    calls += [lambda: text.read(text_path)]
    for call in calls:
        expected = call()
        with pool.sandbox():
            actual = call()
        assert type(actual) is type(expected)
        if isinstance(expected, np.ndarray | Image.Image):
            assert np.array_equal(np.asarray(actual), np.asarray(expected))
        else:
            assert actual == expected
        if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray):
            assert actual.flags.writeable
            assert actual.dtype == expected.dtype
    assert len(worker_processes() - other_workers) == 1, "one process must handle all calls"


def test_errors_equal_those_without_a_worker(pool, tmp_path):
    path = tmp_path / "broken.wav"
    path.write_bytes(b"RIFF nothing")
    for call in (lambda: audio.read(path, RATE), lambda: audio.read_duration(path), lambda: image.load(path)):
        with pytest.raises(MediaError) as without:
            call()
        with pool.sandbox(), pytest.raises(MediaError) as within:
            call()
        assert str(within.value) == str(without.value)


def test_slow_decoding_times_out(other_workers, image_path, tmp_path):
    path = tmp_path / "slow.jpg"
    path.write_bytes(media_files.make_slow_jpeg())
    with closing(WorkerPool(3.0, 2_000_000_000)) as pool, pool.sandbox():
        with pytest.raises(MediaError, match=r"slow.jpg: not decoded within 3 s; use a shorter or smaller file"):
            image.load(path)
        assert worker_processes() <= other_workers
        assert image.load(image_path).size == (400, 300)
    assert worker_processes() <= other_workers


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS])
def test_a_killed_worker_is_replaced(other_workers, pool, image_path, tmp_path, sent):
    path = tmp_path / "slow.jpg"
    path.write_bytes(media_files.make_slow_jpeg())

    def kill():
        while not (started := worker_processes() - other_workers):
            time.sleep(0.01)
        os.kill(started.pop(), sent)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    with pool.sandbox():
        with pytest.raises(MediaError, match=rf"slow.jpg: the decoder's process ended .* \({sent.name}\)"):
            image.load(path)
        thread.join()
        assert image.load(image_path).size == (400, 300)


@pytest.mark.parametrize("reply", [make_header(b"B", 9, 8, 3) + bytes(216), make_header(b"f", 9000) + bytes(36_000)])
def test_replies_of_another_size_are_an_error(reply, tmp_path, monkeypatch):
    """Pixels of another size would not fit into a batch."""
    patch_worker_reply(reply, tmp_path, monkeypatch)
    path = tmp_path / "file.bin"
    for call in (lambda: image.read_pixels(path, 8), lambda: audio.read(path, RATE, 0.0, 0.5)):
        with (
            closing(WorkerPool(TIMEOUT, 2_000_000_000)) as pool,
            pool.sandbox(),
            pytest.raises(MediaError, match=r"file\.bin: invalid reply of the decoder"),
        ):
            call()


def test_workers_have_limits_and_no_secrets_and_are_closed(other_workers, pool, image_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "secret")
    with pool.sandbox():
        image.read_pixels(image_path, 16)
    (process,) = worker_processes() - other_workers
    assert b"SECRET" not in Path(f"/proc/{process}/environ").read_bytes()
    limits = Path(f"/proc/{process}/limits").read_text()
    for name, limit in {"core file size": 0, "file size": 0, "address space": 2_000_000_000}.items():
        assert f"Max {name} ".ljust(26) + str(limit) in limits
    pool.close()
    assert worker_processes() <= other_workers


VALID_INFO = {"modalities": ["image"], "width": 4, "height": 4, "duration": 0.0, "text": ""}
HOSTILE_REPLIES = {
    "nothing": b"",
    "noise": np.random.default_rng(0).bytes(5000),
    "unknown": make_header(b"?", 4) + b"abcd",
    "too large": make_header(b"B", 1 << 20, 1 << 20, 3),
    "no dimensions": make_header(b"B"),
    "many dimensions": struct.pack("<cBQQQ", b"B", 200, 4, 4, 3) + bytes(48),
    "overflow": make_header(b"f", (1 << 64) - 1, 4),
    "four channels": make_header(b"B", 2, 2, 4) + bytes(16),
    "NaN": make_header(b"f", 2) + struct.pack("<2f", 1.0, float("nan")),
    "infinite JSON": make_header(b"J", 8) + b"Infinity",
    "pickle": make_header(b"J", 5) + b"\x80\x04K\x01.",
    "deep JSON": make_header(b"J", 200_000) + b"[" * 200_000,
    "wrong JSON": make_header(b"J", 2) + b"{}",
    "long message": make_header(b"E", 1 << 40),
    "no message": make_header(b"E", 2) + b"\xff\xfe",
}


@pytest.mark.parametrize("name", [*HOSTILE_REPLIES, *VALID_INFO])
def test_hostile_replies_are_an_error(name, tmp_path, monkeypatch):
    """A compromised process may send any reply."""
    if name in VALID_INFO:
        json_bytes = json.dumps({**VALID_INFO, name: [1, None]}).encode()
        reply = make_header(b"J", len(json_bytes)) + json_bytes
    else:
        reply = HOSTILE_REPLIES[name]
    patch_worker_reply(reply, tmp_path, monkeypatch)
    path = tmp_path / "file.bin"
    calls = [
        lambda: image.load(path),
        lambda: image.read_pixels(path, 8),
        lambda: audio.read(path, RATE, 0.0, 0.5),
        lambda: audio.read_duration(path),
        lambda: inspection.inspect_file(path, ()),
    ]
    for call in calls:
        with (
            closing(WorkerPool(TIMEOUT, 2_000_000_000)) as pool,
            pool.sandbox(),
            pytest.raises(MediaError, match=r"file\.bin"),
        ):
            call()
