"""Hundreds of damaged files of every format: each gives an array or our error with its name, soon and in silence."""

import time

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from tests.media import made
from triptych.errors import MediaError
from triptych.media import audio, image, text, video

pytestmark = pytest.mark.slow

EACH = 30  # damaged files of each format
RATE = 16_000
SLOWEST = 30.0  # seconds for one file on a busy machine; a hang is what this is for
PICTURES = ["png", "jpg", "gif", "webp", "bmp", "tiff"]


def outcome(path, work):
    """What work makes of a file, or None where it says that the file is bad; within bounded time."""
    started = time.monotonic()
    try:
        return work()
    except MediaError as error:
        assert str(path) in str(error)  # noqa: PT017
        return None
    finally:
        assert time.monotonic() - started < SLOWEST


def sound_rate(ending):
    return 48_000 if ending == "ac3" else RATE


@pytest.mark.parametrize("ending", [*made.PLAIN, *made.CONTAINED])
def test_damaged_sounds(ending, tmp_path, capfd):
    whole = made.save_sound(tmp_path / f"whole.{ending}", made.noise(1.0, sound_rate(ending)), sound_rate(ending))
    data, path, refused = whole.read_bytes(), tmp_path / f"damaged.{ending}", {"cut": 0, "header_only": 0}
    for what, damaged in made.damaged(data, seed=len(data), count=EACH):
        path.write_bytes(damaged)
        found = outcome(path, lambda: audio.read(path, RATE))
        moment = outcome(path, lambda: audio.read(path, RATE, 0.25, 0.75))
        outcome(path, lambda: audio.duration(path))
        for samples in (found, moment):
            assert samples is None or (samples.dtype == np.float32 and np.isfinite(samples).all() and len(samples))
        again = outcome(path, lambda: audio.read(path, RATE))
        assert (found is None) == (again is None), what
        assert found is None or again is None or np.array_equal(found, again), what
        if what.split()[0] in refused:
            refused[what.split()[0]] += found is None
    assert refused["header_only"] == EACH // 5
    assert refused["cut"] > 0 or ending in {"aac", "ac3", "m2ts"}  # whose headers tell no length
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("ending", made.FILMS)
def test_damaged_films(ending, tmp_path, capfd):
    data = made.save_film(tmp_path / f"whole.{ending}", seconds=1.0).read_bytes()
    path, refused = tmp_path / f"damaged.{ending}", 0
    for _, damaged in made.damaged(data, seed=len(data), count=EACH):
        path.write_bytes(damaged)
        pixels = outcome(path, lambda: image.read(path, 16))
        samples = outcome(path, lambda: audio.read(path, RATE))
        outcome(path, lambda: video.info(path))
        outcome(path, lambda: video.frames(path, [0.9, 0.1]))
        assert pixels is None or pixels.shape == (16, 16, 3)
        assert samples is None or (np.isfinite(samples).all() and len(samples))
        refused += pixels is None or samples is None
    assert refused > EACH // 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("ending", PICTURES)
def test_damaged_pictures(ending, tmp_path, capfd):
    whole = tmp_path / f"whole.{ending}"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)).save(whole)
    data, path, refused = whole.read_bytes(), tmp_path / f"damaged.{ending}", 0
    for _, damaged in made.damaged(data, seed=len(data), count=2 * EACH):
        path.write_bytes(damaged)
        pixels = outcome(path, lambda: image.read(path, 16))
        assert pixels is None or pixels.shape == (16, 16, 3)
        refused += pixels is None
    assert refused > EACH // 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_deflate", "jpeg"])
def test_damaged_tiffs_leave_stderr_alone(compression, tmp_path, capfd):
    """libtiff has its own way of telling what it dislikes."""
    whole, path = tmp_path / "whole.tiff", tmp_path / "damaged.tiff"
    pixels = np.random.default_rng(0).integers(0, 256, (60, 60, 3), np.uint8)
    Image.fromarray(pixels).save(whole, compression=compression)
    for _, damaged in made.damaged(whole.read_bytes(), seed=0, count=2 * EACH):
        path.write_bytes(damaged)
        outcome(path, lambda: image.read(path, 16))
    assert capfd.readouterr() == ("", "")


def test_damaged_mp3_in_wav_leaves_stderr_alone(tmp_path, capfd):
    """libsndfile's decoder for it writes there; so do damaged headers that are only looked at."""
    whole = made.save_sound(tmp_path / "whole.mp3", made.noise(1.0, RATE), RATE).read_bytes()
    path, read = tmp_path / "damaged.wav", 0
    for _, damaged in made.damaged(whole, seed=0, count=EACH):
        path.write_bytes(made.mp3_in_wav(damaged, RATE))
        outcome(path, lambda: audio.read(path, RATE))
    path.write_bytes(made.mp3_in_wav(whole, RATE))
    read = audio.read(path, RATE)
    assert made.alike(read, made.noise(1.0, RATE))[0] > 0.9
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("late_stream", [True, False])
def test_a_stream_that_no_header_announced(late_stream, tmp_path):
    """PyAV answers with an IndexError of its own, or an AttributeError."""
    path = tmp_path / "odd.flv"
    path.write_bytes(made.flash_film(late_stream))
    results = [outcome(path, lambda: image.read(path, 16)), outcome(path, lambda: audio.read(path, RATE))]
    assert any(result is None for result in results)
    outcome(path, lambda: video.info(path))


@pytest.mark.parametrize(
    ("library", "name", "work"),
    [
        (Image, "open", lambda path: image.read(path, 16)),
        (soundfile, "SoundFile", lambda path: audio.read(path, RATE)),
        (soundfile, "SoundFile", audio.duration),
        (av, "open", lambda path: audio.read(path, RATE)),
        (av, "open", video.info),
        (text, "normalise", text.read),
    ],
)
@pytest.mark.parametrize(
    "error", [IndexError, KeyError, AttributeError, AssertionError, MemoryError, ZeroDivisionError]
)
def test_whatever_a_library_raises_is_a_bad_file(library, name, work, error, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"RIFF\xc3\xa9" if library is soundfile else b"\xc3\xa9" * 50)

    def fail(*_, **__):
        raise error("from within")

    monkeypatch.setattr(library, name, fail)
    with pytest.raises(MediaError, match=str(path)):
        work(path)


def test_damaged_texts(tmp_path):
    path, refused = tmp_path / "damaged.txt", 0
    data = "Ein Vögelchen singt; 鳥が歌う; поёт птица. ".encode() * 20
    for _, damaged in made.damaged(data, seed=0, count=EACH):
        path.write_bytes(damaged)
        words = outcome(path, lambda: text.read(path))
        assert words is None or words == text.normalise(words)
        refused += words is None
    assert refused > EACH // 3


@pytest.mark.parametrize("ending", ["wav", "mp3", "m4a", "mp4", "jpg"])
def test_files_of_zeros_noise_and_other_kinds(ending, tmp_path, capfd):
    path, rng = tmp_path / f"wrong.{ending}", np.random.default_rng(0)
    picture = tmp_path / "picture.png"
    Image.new("RGB", (40, 40)).save(picture)
    contents = [bytes(1), bytes(100_000), rng.bytes(50_000), b"#!/bin/sh\n", "Wörter".encode() * 500, b"\xff" * 9999]
    for content in contents:
        path.write_bytes(content)
        assert outcome(path, lambda: audio.read(path, RATE)) is None
        assert outcome(path, lambda: image.read(path, 16)) is None
    path.write_bytes(picture.read_bytes())
    assert outcome(path, lambda: audio.read(path, RATE)) is None
    assert outcome(path, lambda: image.read(path, 16)) is not None
    assert capfd.readouterr() == ("", "")
