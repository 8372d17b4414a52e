"""Sound: what is read is what was written, log-mel follows its formula, and bad files are named."""

import numpy as np
import pytest
import soundfile

from triptych.errors import MediaError
from triptych.media import audio

RATE = 16_000


def tone(seconds=1.0, hertz=440.0, rate=RATE):
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


@pytest.mark.parametrize(
    ("ending", "loss"), [("wav", 1e-4), ("flac", 1e-4), ("ogg", 0.1), ("mp3", 0.1), ("aiff", 1e-4)]
)
def test_formats_come_back_as_they_went_in(ending, loss, tmp_path):
    path = tmp_path / f"tone.{ending}"
    soundfile.write(path, tone(), RATE)
    found = audio.read(path, RATE)
    assert found.dtype == np.float32
    assert len(found) == pytest.approx(RATE, abs=2400)
    middle = slice(4000, 12000)
    spectrum = np.abs(np.fft.rfft(found[middle]))
    assert np.argmax(spectrum) == pytest.approx(440 * 8000 / RATE, abs=1)
    assert np.abs(found[middle]).max() == pytest.approx(0.5, abs=loss)


@pytest.mark.parametrize("rate", [8_000, 44_100, 96_000])
def test_resampling_keeps_pitch_and_length(rate, tmp_path):
    path = tmp_path / "tone.wav"
    soundfile.write(path, tone(rate=rate), rate)
    found = audio.read(path, RATE)
    assert len(found) == pytest.approx(RATE, abs=4)
    assert np.argmax(np.abs(np.fft.rfft(found))) == pytest.approx(440, abs=1)


def test_channels_are_averaged_and_moments_cut(tmp_path):
    path = tmp_path / "both.wav"
    left = np.concatenate([np.zeros(RATE), np.ones(RATE)])
    soundfile.write(path, np.stack([left, np.zeros(2 * RATE)], axis=1) * 0.5, RATE)
    assert audio.duration(path) == 2.0
    assert audio.read(path, RATE, 1.0, 1.5) == pytest.approx(np.full(RATE // 2, 0.25), abs=1e-4)


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


def wav_with(tmp_path, samples, rate=RATE):
    path = tmp_path / "bad.wav"
    soundfile.write(path, np.asarray(samples, np.float32), rate, subtype="FLOAT")
    return path


def test_bad_sounds_are_named_with_what_to_do(tmp_path):
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "text.wav").write_text("I am not a sound")
    cases = {
        tmp_path / "missing.wav": "no such sound file",
        tmp_path / "empty.wav": "the file is empty",
        tmp_path / "text.wav": "cannot be read as sound",
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


def test_silence_of_no_length_and_moments_past_the_end_are_errors(tmp_path):
    path = wav_with(tmp_path, np.zeros(RATE))
    with pytest.raises(MediaError, match="the file is 1 s long"):
        audio.read(path, RATE, start=3.0)
    with pytest.raises(MediaError, match="no sound between"):
        audio.read(wav_with(tmp_path, []), RATE)


def test_ten_hours_of_sound_are_refused_by_the_header(tmp_path, monkeypatch):
    path = wav_with(tmp_path, np.zeros(RATE))
    monkeypatch.setattr(audio, "MOST_SECONDS", 0.5)
    with pytest.raises(MediaError, match="cut it"):
        audio.read(path, RATE)


def test_damaged_sounds_never_crash(tmp_path):
    """Truncated and bit-flipped files either decode to finite samples or raise our error."""
    rng = np.random.default_rng(0)
    whole = tmp_path / "whole.flac"
    soundfile.write(whole, tone(0.2), RATE)
    data = whole.read_bytes()
    refused = 0
    for trial in range(60):
        damaged = bytearray(data[: rng.integers(1, len(data))] if trial % 2 else data)
        for _ in range(8):
            damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        path = tmp_path / "damaged.flac"
        path.write_bytes(damaged)
        try:
            assert np.isfinite(audio.read(path, RATE)).all()
        except MediaError:
            refused += 1
    assert refused > 10
