"""Hundreds of damaged files: each gives a result or a MediaError in bounded time, without output."""

import time

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from tests.media import media_files
from triptych.errors import MediaError
from triptych.media import audio, image, text, video

pytestmark = pytest.mark.slow

FILES_PER_FORMAT = 30  # corrupted copies of each format
RATE = 16_000
MAX_SECONDS = 30.0  # seconds for one file on a busy machine; detects hangs
IMAGE_EXTENSIONS = ["png", "jpg", "gif", "webp", "bmp", "tiff"]


def result_or_none(path, decode):
    """Return the result, or None for a MediaError; check the time."""
    started = time.monotonic()
    try:
        return decode()
    except MediaError as error:
        assert str(path) in str(error)  # noqa: PT017
        return None
    finally:
        assert time.monotonic() - started < MAX_SECONDS


def sample_rate(extension):
    return 48_000 if extension == "ac3" else RATE


@pytest.mark.parametrize("extension", [*media_files.SNDFILE_CODECS, *media_files.PYAV_CODECS])
def test_corrupt_audio(extension, tmp_path, capfd):
    whole = media_files.save_audio(
        tmp_path / f"whole.{extension}", media_files.noise(1.0, sample_rate(extension)), sample_rate(extension)
    )
    data, path, error_counts = (
        whole.read_bytes(),
        tmp_path / f"damaged.{extension}",
        {"truncate": 0, "keep_header_only": 0},
    )
    for description, corrupt in media_files.corrupt_copies(data, seed=len(data), count=FILES_PER_FORMAT):
        path.write_bytes(corrupt)
        samples_of_file = result_or_none(path, lambda: audio.read(path, RATE))
        samples_of_segment = result_or_none(path, lambda: audio.read(path, RATE, 0.25, 0.75))
        result_or_none(path, lambda: audio.read_duration(path))
        for samples in (samples_of_file, samples_of_segment):
            assert samples is None or (samples.dtype == np.float32 and np.isfinite(samples).all() and len(samples))
        again = result_or_none(path, lambda: audio.read(path, RATE))
        assert (samples_of_file is None) == (again is None), description
        assert samples_of_file is None or again is None or np.array_equal(samples_of_file, again), description
        if description.split()[0] in error_counts:
            error_counts[description.split()[0]] += samples_of_file is None
    assert error_counts["keep_header_only"] == FILES_PER_FORMAT // 5
    assert error_counts["truncate"] > 0 or extension in {"aac", "ac3", "m2ts"}  # headers without a duration
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("extension", media_files.VIDEO_CODECS)
def test_corrupt_videos(extension, tmp_path, capfd):
    data = media_files.save_video(tmp_path / f"whole.{extension}", seconds=1.0).read_bytes()
    path, error_count = tmp_path / f"damaged.{extension}", 0
    for _, corrupt in media_files.corrupt_copies(data, seed=len(data), count=FILES_PER_FORMAT):
        path.write_bytes(corrupt)
        pixels = result_or_none(path, lambda: image.read_pixels(path, 16))
        samples = result_or_none(path, lambda: audio.read(path, RATE))
        result_or_none(path, lambda: video.read_info(path))
        result_or_none(path, lambda: video.read_frames(path, [0.9, 0.1]))
        assert pixels is None or pixels.shape == (16, 16, 3)
        assert samples is None or (np.isfinite(samples).all() and len(samples))
        error_count += pixels is None or samples is None
    assert error_count > FILES_PER_FORMAT // 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("extension", IMAGE_EXTENSIONS)
def test_corrupt_images(extension, tmp_path, capfd):
    whole = tmp_path / f"whole.{extension}"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)).save(whole)
    data, path, error_count = whole.read_bytes(), tmp_path / f"damaged.{extension}", 0
    for _, corrupt in media_files.corrupt_copies(data, seed=len(data), count=2 * FILES_PER_FORMAT):
        path.write_bytes(corrupt)
        pixels = result_or_none(path, lambda: image.read_pixels(path, 16))
        assert pixels is None or pixels.shape == (16, 16, 3)
        error_count += pixels is None
    assert error_count > FILES_PER_FORMAT // 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_deflate", "jpeg"])
def test_corrupt_tiffs_write_nothing_to_stderr(compression, tmp_path, capfd):
    """libtiff reports errors through handlers of its own."""
    whole, path = tmp_path / "whole.tiff", tmp_path / "damaged.tiff"
    pixels = np.random.default_rng(0).integers(0, 256, (60, 60, 3), np.uint8)
    Image.fromarray(pixels).save(whole, compression=compression)
    for _, corrupt in media_files.corrupt_copies(whole.read_bytes(), seed=0, count=2 * FILES_PER_FORMAT):
        path.write_bytes(corrupt)
        result_or_none(path, lambda: image.read_pixels(path, 16))
    assert capfd.readouterr() == ("", "")


def test_corrupt_mp3_in_wav_writes_nothing_to_stderr(tmp_path, capfd):
    """libsndfile's mp3 decoder writes to stderr, also for damaged headers."""
    whole = media_files.save_audio(tmp_path / "whole.mp3", media_files.noise(1.0, RATE), RATE).read_bytes()
    path, read = tmp_path / "damaged.wav", 0
    for _, corrupt in media_files.corrupt_copies(whole, seed=0, count=FILES_PER_FORMAT):
        path.write_bytes(media_files.wrap_mp3_in_wav(corrupt, RATE))
        result_or_none(path, lambda: audio.read(path, RATE))
    path.write_bytes(media_files.wrap_mp3_in_wav(whole, RATE))
    read = audio.read(path, RATE)
    assert media_files.best_correlation(read, media_files.noise(1.0, RATE))[0] > 0.9
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("late_stream", [True, False])
def test_stream_missing_from_the_header(late_stream, tmp_path):
    """PyAV raises an IndexError or an AttributeError."""
    path = tmp_path / "odd.flv"
    path.write_bytes(media_files.make_flv(late_stream))
    results = [
        result_or_none(path, lambda: image.read_pixels(path, 16)),
        result_or_none(path, lambda: audio.read(path, RATE)),
    ]
    assert any(result is None for result in results)
    result_or_none(path, lambda: video.read_info(path))


@pytest.mark.parametrize(
    ("library", "name", "decode"),
    [
        (Image, "open", lambda path: image.read_pixels(path, 16)),
        (soundfile, "SoundFile", lambda path: audio.read(path, RATE)),
        (soundfile, "SoundFile", audio.read_duration),
        (av, "open", lambda path: audio.read(path, RATE)),
        (av, "open", video.read_info),
        (text, "normalise", text.read),
    ],
)
@pytest.mark.parametrize(
    "error", [IndexError, KeyError, AttributeError, AssertionError, MemoryError, ZeroDivisionError]
)
def test_any_library_exception_becomes_a_media_error(library, name, decode, error, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"RIFF\xc3\xa9" if library is soundfile else b"\xc3\xa9" * 50)

    def fail(*_, **__):
        raise error("from within")

    monkeypatch.setattr(library, name, fail)
    with pytest.raises(MediaError, match=str(path)):
        decode(path)


def test_corrupt_texts(tmp_path):
    path, error_count = tmp_path / "damaged.txt", 0
    data = "Ein Vögelchen singt; 鳥が歌う; поёт птица. ".encode() * 20
    for _, corrupt in media_files.corrupt_copies(data, seed=0, count=FILES_PER_FORMAT):
        path.write_bytes(corrupt)
        decoded_text = result_or_none(path, lambda: text.read(path))
        assert decoded_text is None or decoded_text == text.normalise(decoded_text)
        error_count += decoded_text is None
    assert error_count > FILES_PER_FORMAT // 3


@pytest.mark.parametrize("extension", ["wav", "mp3", "m4a", "mp4", "jpg"])
def test_files_of_zeros_noise_and_other_formats(extension, tmp_path, capfd):
    path, rng = tmp_path / f"wrong.{extension}", np.random.default_rng(0)
    image_path = tmp_path / "image.png"
    Image.new("RGB", (40, 40)).save(image_path)
    contents = [bytes(1), bytes(100_000), rng.bytes(50_000), b"#!/bin/sh\n", "Wörter".encode() * 500, b"\xff" * 9999]
    for content in contents:
        path.write_bytes(content)
        assert result_or_none(path, lambda: audio.read(path, RATE)) is None
        assert result_or_none(path, lambda: image.read_pixels(path, 16)) is None
    path.write_bytes(image_path.read_bytes())
    assert result_or_none(path, lambda: audio.read(path, RATE)) is None
    assert result_or_none(path, lambda: image.read_pixels(path, 16)) is not None
    assert capfd.readouterr() == ("", "")
