"""Sound in containers: every codec comes back in its place, cut or damaged files do not pass for whole ones."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.media import made
from triptych.errors import MediaError
from triptych.media import audio, soundtrack

CASES = [
    ("m4a", "aac", 44_100), ("mp4", "aac", 48_000), ("mov", "aac", 16_000), ("mkv", "aac", 44_100),
    ("mkv", "aac", 8_000), ("mkv", "libopus", 48_000), ("webm", "libopus", 48_000), ("mka", "flac", 44_100),
    ("m4a", "alac", 44_100), ("mp4", "ac3", 48_000), ("mov", "pcm_s16le", 96_000), ("mov", "pcm_f32le", 192_000),
    ("mkv", "pcm_s32le", 256_000), ("wv", "wavpack", 22_050), ("tta", "tta", 44_100), ("mp4", "libmp3lame", 44_100),
]  # fmt: skip
LATE = [
    ("wma", "wmav2", 44_100),
    ("aac", "aac", 44_100),
    ("ac3", "ac3", 48_000),
    ("avi", "libmp3lame", 44_100),
    ("m2ts", "aac", 48_000),
]
NOISY = {"aac", "ac3"}  # these decoders fill what was left out with random noise: a moment differs in that


def made_file(tmp_path, ending, codec, rate):
    return made.save_sound(tmp_path / f"noise.{ending}", made.noise(6.0, rate), rate, codec)


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "codec", "rate"), [*CASES, *LATE])
def test_codecs_come_back_as_they_went_in(ending, codec, rate, tmp_path):
    path, samples = made_file(tmp_path, ending, codec, rate), made.noise(6.0, rate)
    found = audio.read(path, rate)
    correlation, shift = made.alike(found, samples)
    assert found.dtype == np.float32
    assert audio.duration(path) == pytest.approx(6.0, abs=0.15)
    assert len(found) == pytest.approx(6 * rate, abs=0.15 * rate)
    assert correlation > 0.97
    # Containers of the second kind do not tell how much the encoder put in front.
    assert shift == 0 if (ending, codec, rate) in CASES else 0 <= shift <= 0.05 * rate


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "codec", "rate"), [*CASES, *LATE])
def test_a_moment_is_a_slice_of_the_whole(ending, codec, rate, tmp_path):
    path = made_file(tmp_path, ending, codec, rate)
    for asked in (rate, 32_000):
        whole = audio.read(path, asked)
        for start, end in [(0.0, 0.5), (3.0, 5.0), (1.234, 2.345), (5.5, 6.0)]:
            moment, wanted = audio.read(path, asked, start, end), whole[round(start * asked) : round(end * asked)]
            assert made.alike(moment, wanted) == (pytest.approx(1.0, abs=0.01), 0)
            assert made.difference(moment, wanted) < (0.1 if codec in NOISY else 1e-3)


@pytest.mark.parametrize("ending", ["m4a", "mkv", "webm", "mka", "avi", "wv", "tta"])
def test_files_that_are_cut_short_are_refused(ending, tmp_path):
    path = made.save_sound(tmp_path / f"whole.{ending}", made.noise(3.0, 16_000), 16_000)
    whole = path.read_bytes()
    for share in (0.3, 0.6, 0.8):
        path.write_bytes(whole[: round(share * len(whole))])
        with pytest.raises(MediaError, match=r"cut short|cannot be read as sound|damaged or missing"):
            audio.read(path, 16_000)


def test_a_hole_in_the_middle_is_refused_but_not_elsewhere(tmp_path):
    path = made.save_sound(tmp_path / "hole.mka", made.noise(6.0, 16_000), 16_000)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) * 3 // 4] = bytes(len(data) * 3 // 4 - len(data) // 2)
    path.write_bytes(data)
    with pytest.raises(MediaError, match=r"s of sound are (damaged or )?missing"):
        audio.read(path, 16_000)
    assert made.alike(audio.read(path, 16_000, 0.5, 2.0), made.noise(6.0, 16_000)[8_000:32_000])[0] > 0.99


def test_an_mp3_that_does_not_count_its_frames_is_measured_and_read_as_far_as_it_goes(tmp_path):
    samples = made.noise(5.0, 44_100)
    path = made.save_sound(tmp_path / "plain.mp3", samples, 44_100, "libmp3lame", options={"write_xing": "0"})
    assert audio.duration(path) == pytest.approx(5.0, abs=0.1)
    assert made.alike(audio.read(path, 44_100), samples)[0] > 0.97
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert audio.duration(path) == pytest.approx(2.5, abs=0.1)
    assert len(audio.read(path, 44_100)) == pytest.approx(2.5 * 44_100, abs=4_410)


def test_threads_read_what_one_thread_reads(tmp_path):
    paths = [
        made.save_sound(tmp_path / f"{seed}.{ending}", made.noise(1.0, 16_000, seed), 16_000)
        for seed in range(4)
        for ending in ("m4a", "mkv", "mp3", "ogg")
    ]
    alone = [audio.read(path, 22_050, 0.2, 0.9) for path in paths]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda path: audio.read(path, 22_050, 0.2, 0.9), paths))
    assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))


def test_a_film_without_sound_says_so(tmp_path):
    whole = made.save_film(tmp_path / "film.mp4", seconds=1.0, sound=False)
    with pytest.raises(MediaError, match="has no sound in it that we can read; give"):
        audio.read(whole, 16_000)
    with pytest.raises(MediaError, match="has no sound in it that we can read; give"):
        audio.duration(whole)


def test_a_playlist_opens_no_other_file(tmp_path):
    made.save_sound(tmp_path / "secret.m2ts", made.noise(1.0, 16_000), 16_000)
    listed = tmp_path / "list.m4a"
    listed.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.m2ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(MediaError, match="cannot be read as sound"):
        audio.read(listed, 16_000)


def test_names_that_look_like_addresses_are_files(tmp_path):
    path = made.save_sound(tmp_path / "whole.m4a", made.noise(1.0, 16_000), 16_000)
    odd = path.rename(tmp_path / "concat:x%20y #ü.m4a")
    assert len(audio.read(odd, 16_000)) == pytest.approx(16_000, abs=1100)


def test_every_sample_format_is_scaled_to_one(tmp_path):
    for codec in ("pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le"):
        path = made.save_sound(tmp_path / f"{codec}.mkv", made.noise(0.5, 16_000), 16_000, codec)
        found, rate = soundtrack.read(path, 0.0, float("inf"), "")
        assert rate == 16_000
        assert made.difference(found, made.noise(0.5, 16_000)) < (0.01 if codec == "pcm_u8" else 1e-4)
