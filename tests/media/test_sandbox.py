"""Decoders in worker processes: the same results, and whatever a process does, an error that names the file."""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.media import made
from triptych.errors import MediaError
from triptych.media import audio, contents, image, modalities_of, sandbox, text, video
from triptych.media.sandbox import HEADER, Workers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are looked up as on Linux"),
]

RATE = 16_000
LONG = 60.0  # seconds, which no call of these tests takes


def processes() -> set[int]:
    """The worker processes of this one."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            try:
                if b"triptych.media.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.add(int(child))
            except OSError:
                pass  # gone meanwhile
    return found


def header(kind, *shape):
    return HEADER.pack(kind, len(shape), *(*shape, 0, 0, 0)[:3])


def answering(answer, folder, monkeypatch):
    """Let a program that gives one answer to everything stand for the worker processes."""
    (folder / "answer").write_bytes(answer)
    program = folder / "program"
    program.write_text(f"#!/bin/sh\nread line\nexec cat {folder}/answer\n")
    program.chmod(0o755)
    monkeypatch.setattr(sandbox.sys, "executable", str(program))


@pytest.fixture
def others():
    """The worker processes of servers that run beside a test."""
    return processes()


@pytest.fixture
def workers():
    made_here = Workers(LONG, 2_000_000_000)
    yield made_here
    made_here.close()


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "picture.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)).save(path)
    return path


def test_every_result_is_the_one_without_a_worker(others, workers, picture, tmp_path):
    clear = tmp_path / "clear.png"
    Image.new("RGBA", (30, 20), (200, 20, 30, 77)).save(clear)
    words = tmp_path / "words.txt"
    words.write_text("ein Vögelchen singt")
    film = made.save_film(tmp_path / "film.mp4", seconds=1.0)
    sounds = [made.save_sound(tmp_path / f"a.{e}", made.noise(1.0, RATE), RATE) for e in ("wav", "mp3", "flac", "m4a")]
    calls = [lambda path=path: image.load(path) for path in (picture, clear, film)]
    calls += [lambda path=path: image.read(path, 64) for path in (picture, clear, film)]
    calls += [lambda: image.load(picture, 100), lambda: image.load(film, at=0.5), lambda: video.middle(film, 0.2, 0.6)]
    calls += [lambda path=path: audio.read(path, 22_050) for path in (*sounds, film)]
    calls += [lambda path=path: audio.read(path, RATE, 0.3, 0.7) for path in (*sounds, film)]
    calls += [lambda path=path: audio.duration(path) for path in (*sounds, film)]
    calls += [
        lambda path=path: contents.inspect(path, modalities_of(path)) for path in (picture, clear, words, film, *sounds)
    ]
    calls += [lambda: text.read(words)]
    for call in calls:
        wanted = call()
        with workers.sandbox():
            found = call()
        assert type(found) is type(wanted)
        if isinstance(wanted, np.ndarray | Image.Image):
            assert np.array_equal(np.asarray(found), np.asarray(wanted))
        else:
            assert found == wanted
        if isinstance(wanted, np.ndarray) and isinstance(found, np.ndarray):
            assert found.flags.writeable
            assert found.dtype == wanted.dtype
    assert len(processes() - others) == 1, "one process has done it all"


def test_errors_are_the_same(workers, tmp_path):
    path = tmp_path / "broken.wav"
    path.write_bytes(b"RIFF nothing")
    for work in (lambda: audio.read(path, RATE), lambda: audio.duration(path), lambda: image.load(path)):
        with pytest.raises(MediaError) as without:
            work()
        with workers.sandbox(), pytest.raises(MediaError) as within:
            work()
        assert str(within.value) == str(without.value)


def test_a_worker_needs_no_torch():
    """It would take seconds to start, and gigabytes of addresses."""
    code = "import sys, triptych.media.worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_endless_decode_is_stopped(others, picture, tmp_path):
    path = tmp_path / "slow.jpg"
    path.write_bytes(made.slow_picture())
    with closing(Workers(3.0, 2_000_000_000)) as workers, workers.sandbox():
        with pytest.raises(MediaError, match=r"slow.jpg: not decoded within 3 s; give a shorter or smaller file"):
            image.load(path)
        assert processes() <= others
        assert image.load(picture).size == (400, 300)
    assert processes() <= others


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS])
def test_a_process_that_dies_takes_nobody_with_it(others, workers, picture, tmp_path, sent):
    path = tmp_path / "slow.jpg"
    path.write_bytes(made.slow_picture())

    def kill():
        while not (started := processes() - others):
            time.sleep(0.01)
        os.kill(started.pop(), sent)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    with workers.sandbox():
        with pytest.raises(MediaError, match=rf"slow.jpg: the decoder's process ended .* \({sent.name}\)"):
            image.load(path)
        thread.join()
        assert image.load(picture).size == (400, 300)


def test_memory_has_a_limit(tmp_path, picture):
    path = tmp_path / "large.png"
    Image.new("RGB", (5000, 5000)).save(path)
    with closing(Workers(LONG, 330_000_000)) as workers, workers.sandbox():
        with pytest.raises(MediaError, match=r"large.png: (needs more memory|broken picture data|the decoder's)"):
            image.load(path)
        assert image.load(picture).size == (400, 300)


@pytest.mark.parametrize("answer", [header(b"B", 9, 8, 3) + bytes(216), header(b"f", 9000) + bytes(36_000)])
def test_an_answer_has_the_size_that_was_asked_for(answer, tmp_path, monkeypatch):
    """Else it would not fit into a batch with what others ask."""
    answering(answer, tmp_path, monkeypatch)
    path = tmp_path / "file.bin"
    for call in (lambda: image.read(path, 8), lambda: audio.read(path, RATE, 0.0, 0.5)):
        with (
            closing(Workers(LONG, 2_000_000_000)) as workers,
            workers.sandbox(),
            pytest.raises(MediaError, match=r"file\.bin: its decoder gave"),
        ):
            call()


def test_a_process_leaves_nothing_and_knows_no_secrets(others, workers, picture, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "secret")
    with workers.sandbox():
        image.read(picture, 16)
    (process,) = processes() - others
    assert b"SECRET" not in Path(f"/proc/{process}/environ").read_bytes()
    limits = Path(f"/proc/{process}/limits").read_text()
    for name, most in {"core file size": 0, "file size": 0, "address space": 2_000_000_000}.items():
        assert f"Max {name} ".ljust(26) + str(most) in limits
    workers.close()
    assert processes() <= others


PLAIN = {"modalities": ["image"], "width": 4, "height": 4, "seconds": 0.0, "words": ""}
HOSTILE = {
    "nothing": b"",
    "noise": np.random.default_rng(0).bytes(5000),
    "unknown": header(b"?", 4) + b"abcd",
    "too large": header(b"B", 1 << 20, 1 << 20, 3),
    "no dimensions": header(b"B"),
    "many dimensions": struct.pack("<cBQQQ", b"B", 200, 4, 4, 3) + bytes(48),
    "overflow": header(b"f", (1 << 64) - 1, 4),
    "four channels": header(b"B", 2, 2, 4) + bytes(16),
    "NaN": header(b"f", 2) + struct.pack("<2f", 1.0, float("nan")),
    "infinite JSON": header(b"J", 8) + b"Infinity",
    "pickle": header(b"J", 5) + b"\x80\x04K\x01.",
    "deep JSON": header(b"J", 200_000) + b"[" * 200_000,
    "wrong JSON": header(b"J", 2) + b"{}",
    "long message": header(b"E", 1 << 40),
    "no message": header(b"E", 2) + b"\xff\xfe",
}


@pytest.mark.parametrize("name", [*HOSTILE, *PLAIN])
def test_no_answer_of_a_process_is_trusted(name, tmp_path, monkeypatch):
    """A process that a file has taken over may answer anything at all."""
    if name in PLAIN:
        plain = json.dumps({**PLAIN, name: [1, None]}).encode()
        answer = header(b"J", len(plain)) + plain
    else:
        answer = HOSTILE[name]
    answering(answer, tmp_path, monkeypatch)
    path = tmp_path / "file.bin"
    calls = [
        lambda: image.load(path),
        lambda: image.read(path, 8),
        lambda: audio.read(path, RATE, 0.0, 0.5),
        lambda: audio.duration(path),
        lambda: contents.inspect(path, ()),
    ]
    for call in calls:
        with (
            closing(Workers(LONG, 2_000_000_000)) as workers,
            workers.sandbox(),
            pytest.raises(MediaError, match=r"file\.bin"),
        ):
            call()
