"""Audio in containers: codecs round-trip in sync, truncated and damaged files are errors."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.media import media_files
from triptych.errors import MediaError
from triptych.media import audio, audio_stream

EXACT_START = [
    ("m4a", "aac", 44_100), ("mp4", "aac", 48_000), ("mov", "aac", 16_000), ("mkv", "aac", 44_100),
    ("mkv", "aac", 8_000), ("mkv", "libopus", 48_000), ("webm", "libopus", 48_000), ("mka", "flac", 44_100),
    ("m4a", "alac", 44_100), ("mp4", "ac3", 48_000), ("mov", "pcm_s16le", 96_000), ("mov", "pcm_f32le", 192_000),
    ("mkv", "pcm_s32le", 256_000), ("wv", "wavpack", 22_050), ("tta", "tta", 44_100), ("mp4", "libmp3lame", 44_100),
]  # fmt: skip
DELAYED_START = [
    ("wma", "wmav2", 44_100),
    ("aac", "aac", 44_100),
    ("ac3", "ac3", 48_000),
    ("avi", "libmp3lame", 44_100),
    ("m2ts", "aac", 48_000),
]
# These decoders fill omitted bands with random noise, so a segment differs from the whole file.
NOISE_FILLING = {"aac", "ac3"}


def save_noise(tmp_path, extension, codec, rate):
    return media_files.save_audio(tmp_path / f"noise.{extension}", media_files.noise(6.0, rate), rate, codec)


@pytest.mark.slow
@pytest.mark.parametrize(("extension", "codec", "rate"), [*EXACT_START, *DELAYED_START])
def test_codecs_round_trip(extension, codec, rate, tmp_path):
    path, samples = save_noise(tmp_path, extension, codec, rate), media_files.noise(6.0, rate)
    actual = audio.read(path, rate)
    correlation, shift = media_files.best_correlation(actual, samples)
    assert actual.dtype == np.float32
    assert audio.read_duration(path) == pytest.approx(6.0, abs=0.15)
    assert len(actual) == pytest.approx(6 * rate, abs=0.15 * rate)
    assert correlation > 0.97
    # The containers of DELAYED_START do not state the encoder's delay.
    assert shift == 0 if (extension, codec, rate) in EXACT_START else 0 <= shift <= 0.05 * rate


@pytest.mark.slow
@pytest.mark.parametrize(("extension", "codec", "rate"), [*EXACT_START, *DELAYED_START])
def test_a_segment_is_a_slice_of_the_whole_file(extension, codec, rate, tmp_path):
    path = save_noise(tmp_path, extension, codec, rate)
    for output_rate in (rate, 32_000):
        whole = audio.read(path, output_rate)
        for start, end in [(0.0, 0.5), (3.0, 5.0), (1.234, 2.345), (5.5, 6.0)]:
            segment, expected = (
                audio.read(path, output_rate, start, end),
                whole[round(start * output_rate) : round(end * output_rate)],
            )
            assert media_files.best_correlation(segment, expected) == (pytest.approx(1.0, abs=0.01), 0)
            assert media_files.max_difference(segment, expected) < (0.1 if codec in NOISE_FILLING else 1e-3)


@pytest.mark.parametrize("extension", ["m4a", "mkv", "webm", "mka", "avi", "wv", "tta"])
def test_truncated_files_are_an_error(extension, tmp_path):
    path = media_files.save_audio(tmp_path / f"whole.{extension}", media_files.noise(3.0, 16_000), 16_000)
    whole = path.read_bytes()
    for fraction in (0.3, 0.6, 0.8):
        path.write_bytes(whole[: round(fraction * len(whole))])
        with pytest.raises(MediaError, match=r"truncated|cannot be read as audio|damaged or missing"):
            audio.read(path, 16_000)


def test_a_gap_is_an_error_only_where_it_is_read(tmp_path):
    path = media_files.save_audio(tmp_path / "hole.mka", media_files.noise(6.0, 16_000), 16_000)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) * 3 // 4] = bytes(len(data) * 3 // 4 - len(data) // 2)
    path.write_bytes(data)
    with pytest.raises(MediaError, match=r"s of audio are (damaged or )?missing"):
        audio.read(path, 16_000)
    assert (
        media_files.best_correlation(audio.read(path, 16_000, 0.5, 2.0), media_files.noise(6.0, 16_000)[8_000:32_000])[
            0
        ]
        > 0.99
    )


def test_threads_read_what_one_thread_reads(tmp_path):
    paths = [
        media_files.save_audio(tmp_path / f"{seed}.{ending}", media_files.noise(1.0, 16_000, seed), 16_000)
        for seed in range(4)
        for ending in ("m4a", "mkv", "mp3", "ogg")
    ]
    sequential = [audio.read(path, 22_050, 0.2, 0.9) for path in paths]
    with ThreadPoolExecutor(4) as pool:
        parallel = list(pool.map(lambda path: audio.read(path, 22_050, 0.2, 0.9), paths))
    assert all(np.array_equal(one, other) for one, other in zip(sequential, parallel, strict=True))


def test_video_without_audio_is_an_error(tmp_path):
    path = media_files.save_video(tmp_path / "video.mp4", seconds=1.0, with_audio=False)
    with pytest.raises(MediaError, match="has no audio stream that can be decoded; give"):
        audio.read(path, 16_000)
    with pytest.raises(MediaError, match="has no audio stream that can be decoded; give"):
        audio.read_duration(path)


def test_every_sample_format_is_scaled_to_one(tmp_path):
    for codec in ("pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le"):
        path = media_files.save_audio(tmp_path / f"{codec}.mkv", media_files.noise(0.5, 16_000), 16_000, codec)
        actual, rate = audio_stream.read(path, 0.0, float("inf"), "")
        assert rate == 16_000
        assert media_files.max_difference(actual, media_files.noise(0.5, 16_000)) < (
            0.01 if codec == "pcm_u8" else 1e-4
        )
