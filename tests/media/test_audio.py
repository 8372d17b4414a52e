"""Sound: what is read is what was written, log-mel follows its formula, and bad files are named."""

import numpy as np
import pytest
import soundfile

from tests.media import made
from tests.real_data import need
from triptych.errors import InputError, MediaError
from triptych.media import audio, limits, modalities_of, modality_of

RATE = 16_000
EXACT = {"wav", "flac", "aiff", "au", "caf", "w64"}


@pytest.mark.parametrize("ending", made.PLAIN)
def test_formats_come_back_as_they_went_in(ending, tmp_path):
    samples = made.noise(2.0, RATE)
    path = made.save_sound(tmp_path / f"noise.{ending}", samples, RATE)
    found = audio.read(path, RATE)
    assert found.dtype == np.float32
    assert audio.duration(path) == pytest.approx(2.0, abs=0.01)
    if ending in EXACT:
        assert made.difference(found, samples) < 1e-4
    correlation, shift = made.alike(found, samples)
    assert (correlation > 0.95, shift) == (True, 0)
    assert modality_of(path) == "audio"


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 192_000, 256_000])
def test_every_rate_is_resampled_to_the_same_sound(rate, tmp_path):
    path = made.save_sound(tmp_path / "noise.wav", made.noise(2.0, rate), rate)
    back = made.save_sound(tmp_path / "back.wav", audio.read(path, RATE), RATE)
    correlation, shift = made.alike(audio.read(back, rate), made.noise(2.0, rate))
    assert (correlation > 0.999, shift) == (True, 0)
    assert len(audio.read(path, RATE)) == pytest.approx(2 * RATE, abs=2)


@pytest.mark.parametrize("channels", range(1, 9))
@pytest.mark.parametrize("ending", ["wav", "flac", "ogg", "m4a"])
def test_every_channel_counts_the_same(ending, channels, tmp_path):
    samples = made.noise(0.5, RATE)
    found = audio.read(made.save_sound(tmp_path / f"many.{ending}", samples, RATE, channels=channels), RATE)
    assert made.alike(found, samples)[0] > 0.94
    # Of 5.1 and 7.1, one channel is for the deepest tones alone: a codec may strip it of the rest.
    least = 0.9 if ending != "m4a" or channels < 6 else 0.9 * (channels - 1) / channels
    assert least < np.std(found) / np.std(samples) < 1.05


def test_channels_are_averaged_and_moments_cut(tmp_path):
    path = tmp_path / "both.wav"
    left = np.concatenate([np.zeros(RATE), np.ones(RATE)])
    soundfile.write(path, np.stack([left, np.zeros(2 * RATE)], axis=1) * 0.5, RATE)
    assert audio.duration(path) == 2.0
    assert audio.read(path, RATE, 1.0, 1.5) == pytest.approx(np.full(RATE // 2, 0.25), abs=1e-4)


@pytest.mark.parametrize("ending", made.PLAIN)
@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_a_moment_is_a_slice_of_the_whole(ending, rate, tmp_path):
    path = made.save_sound(tmp_path / f"long.{ending}", made.noise(6.0, RATE), RATE)
    whole, close = audio.read(path, rate), 5e-3 if ending == "opus" else 2e-4
    for start, end in [(0.0, 1.0), (3.0, 5.0), (1.234, 2.345), (4.5, 6.0)]:
        moment = audio.read(path, rate, start, end)
        assert made.difference(moment, whole[round(start * rate) : round(end * rate)]) < close
    assert made.difference(audio.read(path, rate, 5.0, 100.0), whole[5 * rate :]) < close


def test_the_same_file_gives_the_same_samples(tmp_path):
    for ending in (*made.PLAIN, *made.CONTAINED):
        rate = 48_000 if ending == "ac3" else RATE
        path = made.save_sound(tmp_path / f"noise.{ending}", made.noise(0.5, rate), rate)
        assert np.array_equal(audio.read(path, 22_050), audio.read(path, 22_050))


@pytest.mark.parametrize(
    ("written", "named"), [("mp3", "wav"), ("m4a", "mp3"), ("flac", "ogg"), ("wav", "m4a"), ("webm", "wav")]
)
def test_what_is_in_a_file_counts_not_its_ending(written, named, tmp_path):
    samples = made.noise(1.0, RATE)
    path = made.save_sound(tmp_path / f"noise.{written}", samples, RATE).rename(tmp_path / f"wrong.{named}")
    assert made.alike(audio.read(path, RATE), samples)[0] > 0.97


def test_windows_cover_everything_and_end_with_it():
    assert audio.windows(4.0, 10.0, 10.0) == [(0.0, 4.0)]
    assert audio.windows(10.0, 10.0, 5.0) == [(0.0, 10.0)]
    assert audio.windows(25.0, 10.0, 10.0) == [(0.0, 10.0), (10.0, 20.0), (15.0, 25.0)]
    assert audio.windows(20.0, 10.0, 5.0) == [(0.0, 10.0), (5.0, 15.0), (10.0, 20.0)]
    assert audio.windows(0.3, 0.1, 0.1)[-1] == pytest.approx((0.2, 0.3))
    assert len(audio.windows(0.3, 0.1, 0.1)) == 3
    with pytest.raises(InputError, match="must be above 0"):
        audio.windows(10.0, 1.0, 0.0)


def test_endings_tell_what_a_file_can_be(tmp_path):
    assert modalities_of(tmp_path / "a.MP4") == ("image", "audio")
    assert modality_of(tmp_path / "a.mp4") is None
    assert [modality_of(tmp_path / f"a.{e}") for e in ("m4a", "png", "txt", "exe")] == ["audio", "image", "text", None]


def naive_log_mel(samples, rate, mels, window, hop):
    """The formula as loops in float64."""
    edges_mel = np.linspace(0, 15 + 27 * np.log(rate / 2 / 1000) / np.log(6.4), mels + 2)
    edges = [200 * m / 3 if m < 15 else 1000 * 6.4 ** ((m - 15) / 27) for m in edges_mel]
    padded = np.concatenate([np.zeros(window // 2), samples, np.zeros(window // 2)])
    hann = [0.5 - 0.5 * np.cos(2 * np.pi * n / window) for n in range(window)]
    frames = []
    for start in range(0, len(samples) + 1, hop):
        power = np.abs(np.fft.rfft(padded[start : start + window] * hann)) ** 2
        bands = []
        for low, centre, high in zip(edges, edges[1:], edges[2:], strict=False):
            band = 0.0
            for i, value in enumerate(power):
                hertz = i * rate / window
                height = min((hertz - low) / (centre - low), (high - hertz) / (high - centre))
                band += max(0.0, height) * 2 / (high - low) * value
            bands.append(10 * np.log10(max(band, 1e-10)))
        frames.append(bands)
    return np.array(frames)


def test_log_mel_follows_its_formula():
    samples = np.random.default_rng(0).normal(0, 0.1, 2000).astype(np.float32)
    found = audio.log_mel(samples, RATE, 16, 400, 160).numpy()
    assert found == pytest.approx(naive_log_mel(samples.astype(float), RATE, 16, 400, 160), abs=1e-4)


def test_log_mel_is_librosas():
    librosa = pytest.importorskip("librosa", reason="librosa comes with the bench extra only")
    samples = made.noise(1.0, 48_000) + np.random.default_rng(1).normal(0, 0.01, 48_000).astype(np.float32)
    power = librosa.feature.melspectrogram(
        y=samples, sr=48_000, n_fft=1024, hop_length=480, n_mels=64, pad_mode="constant"
    )
    found = audio.log_mel(samples, 48_000, 64, 1024, 480).numpy()
    assert np.abs(found.T - librosa.power_to_db(power, amin=1e-10, top_db=None)).max() < 1e-4


def test_real_clips_are_read_whole():
    clips = sorted((need("esc50") / "audio").glob("*.*"))[::80]
    for path in clips:
        samples = audio.read(path, RATE)
        assert len(samples) == pytest.approx(RATE * audio.duration(path), abs=2)
        assert 4.9 < audio.duration(path) < 5.1
        assert np.abs(samples).max() < 2


def wav_with(tmp_path, samples, rate=RATE):
    path = tmp_path / "bad.wav"
    soundfile.write(path, np.asarray(samples, np.float32), rate, subtype="FLOAT")
    return path


def test_bad_sounds_are_named_with_what_to_do(tmp_path):
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "text.wav").write_text("I am not a sound")
    (tmp_path / "folder.wav").mkdir()
    cases = {
        tmp_path / "missing.wav": "no such sound file",
        tmp_path / "empty.wav": "the file is empty",
        tmp_path / "folder.wav": "is not a file",
        tmp_path / "text.wav": r"cannot be read as sound \(Invalid data.*\); give wav, flac",
        wav_with(tmp_path, [0.0, np.nan, 0.0]): "NaN or infinity",
    }
    for path, message in cases.items():
        with pytest.raises(MediaError, match=message) as caught:
            audio.read(path, RATE)
        assert str(path) in str(caught.value)


def test_samples_that_are_no_sound_are_refused(tmp_path):
    with pytest.raises(MediaError, match=r"samples of 1e\+20; sound lies within ±1"):
        audio.read(wav_with(tmp_path, np.full(RATE, 1e20)), RATE)
    assert audio.read(wav_with(tmp_path, np.full(RATE, 32_000.0)), RATE).max() == 32_000


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg", "mp3", "m4a", "mkv"])
def test_moments_past_the_end_are_errors(ending, tmp_path):
    path = made.save_sound(tmp_path / f"short.{ending}", made.noise(1.0, RATE), RATE)
    with pytest.raises(MediaError, match=r"no sound between 3 s and the end; the file is 1(\.\d+)? s long"):
        audio.read(path, RATE, start=3.0)
    with pytest.raises(MediaError, match=r"no sound between 0.5 s and 0.5 s"):
        audio.read(path, RATE, 0.5, 0.5)


def test_silence_of_no_length_is_an_error(tmp_path):
    with pytest.raises(MediaError, match="no sound between"):
        audio.read(wav_with(tmp_path, []), RATE)


@pytest.mark.parametrize("ending", ["wav", "aiff", "au", "caf", "w64", "flac", "ogg", "opus", "mp3"])
def test_files_that_are_cut_short_are_refused(ending, tmp_path):
    path = made.save_sound(tmp_path / f"whole.{ending}", made.noise(3.0, RATE), RATE)
    whole = path.read_bytes()
    for share in (0.3, 0.6, 0.9):
        path.write_bytes(whole[: round(share * len(whole))])
        with pytest.raises(MediaError, match=r"cut short|broken sound data|cannot be read as sound"):
            audio.read(path, RATE)


def test_a_wav_whose_length_was_never_written_is_read_whole(tmp_path):
    """Programs that write to a pipe cannot go back to the header."""
    path = made.save_sound(tmp_path / "piped.wav", made.noise(1.0, RATE), RATE)
    data = bytearray(path.read_bytes())
    data[4:8] = data[40:44] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    assert len(audio.read(path, RATE)) == RATE


@pytest.mark.parametrize("ending", ["wav", "m4a"])
def test_limits_name_the_file_and_what_to_do(ending, tmp_path, monkeypatch):
    path = made.save_sound(tmp_path / f"long.{ending}", made.noise(2.0, RATE), RATE, channels=2)
    cases = {
        "MOST_SAMPLES": (1000, "samples at once; at most 1,000: read moments of it"),
        "MOST_CHANNELS": (1, "16000 Hz and 2 channels; at most"),
        "MOST_RATE": (8000, "16000 Hz and 2 channels; at most 8000 Hz"),
        "MOST_DECODING": (-1.0, "not decoded within -1 s"),
        "MOST_BYTES": (1000, r"GB in one file: cut it"),
    }
    for name, (value, message) in cases.items():
        with monkeypatch.context() as patch:
            patch.setattr(limits, name, value)
            with pytest.raises(MediaError, match=message) as caught:
                audio.read(path, RATE)
        assert str(path) in str(caught.value)
    monkeypatch.setattr(limits, "MOST_SECONDS", 0.5)
    with pytest.raises(MediaError, match="hours in one file: cut it"):
        audio.duration(path)
