"""Audio files: round trips, resampling, segments, log-mel spectrograms and errors."""

import numpy as np
import pytest
import soundfile

from tests.media import media_files
from tests.real_data import find_dataset_or_skip
from triptych.errors import InputError, MediaError
from triptych.media import audio, modalities_of

RATE = 16_000
EXACT = {"wav", "flac", "aiff", "au", "caf", "w64"}


@pytest.mark.parametrize("extension", media_files.SNDFILE_CODECS)
def test_formats_round_trip(extension, tmp_path):
    samples = media_files.noise(2.0, RATE)
    path = media_files.save_audio(tmp_path / f"noise.{extension}", samples, RATE)
    actual = audio.read(path, RATE)
    assert actual.dtype == np.float32
    assert audio.read_duration(path) == pytest.approx(2.0, abs=0.01)
    if extension in EXACT:
        assert media_files.max_difference(actual, samples) < 1e-4
    correlation, shift = media_files.best_correlation(actual, samples)
    assert (correlation > 0.95, shift) == (True, 0)
    assert modalities_of(path) == ("audio",)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 192_000, 256_000])
def test_every_rate_is_resampled_to_the_same_audio(rate, tmp_path):
    path = media_files.save_audio(tmp_path / "noise.wav", media_files.noise(2.0, rate), rate)
    back = media_files.save_audio(tmp_path / "back.wav", audio.read(path, RATE), RATE)
    correlation, shift = media_files.best_correlation(audio.read(back, rate), media_files.noise(2.0, rate))
    assert (correlation > 0.999, shift) == (True, 0)
    assert len(audio.read(path, RATE)) == pytest.approx(2 * RATE, abs=2)


@pytest.mark.parametrize("channels", range(1, 9))
@pytest.mark.parametrize("extension", ["wav", "flac", "ogg", "m4a"])
def test_channels_have_equal_weight(extension, channels, tmp_path):
    samples = media_files.noise(0.5, RATE)
    actual = audio.read(media_files.save_audio(tmp_path / f"many.{extension}", samples, RATE, channels=channels), RATE)
    assert media_files.best_correlation(actual, samples)[0] > 0.94
    # Codecs may low-pass the LFE channel of 5.1 and 7.1.
    least = 0.9 if extension != "m4a" or channels < 6 else 0.9 * (channels - 1) / channels
    assert least < np.std(actual) / np.std(samples) < 1.05


def test_channels_are_averaged_and_segments_cut(tmp_path):
    path = tmp_path / "both.wav"
    left = np.concatenate([np.zeros(RATE), np.ones(RATE)])
    soundfile.write(path, np.stack([left, np.zeros(2 * RATE)], axis=1) * 0.5, RATE)
    assert audio.read_duration(path) == 2.0
    assert audio.read(path, RATE, 1.0, 1.5) == pytest.approx(np.full(RATE // 2, 0.25), abs=1e-4)


@pytest.mark.parametrize("extension", media_files.SNDFILE_CODECS)
@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_a_segment_is_a_slice_of_the_whole_file(extension, rate, tmp_path):
    path = media_files.save_audio(tmp_path / f"long.{extension}", media_files.noise(6.0, RATE), RATE)
    whole, close = audio.read(path, rate), 5e-3 if extension == "opus" else 2e-4
    for start, end in [(0.0, 1.0), (3.0, 5.0), (1.234, 2.345), (4.5, 6.0)]:
        segment = audio.read(path, rate, start, end)
        assert media_files.max_difference(segment, whole[round(start * rate) : round(end * rate)]) < close
    assert media_files.max_difference(audio.read(path, rate, 5.0, 100.0), whole[5 * rate :]) < close


def test_the_same_file_gives_the_same_samples(tmp_path):
    for ending in (*media_files.SNDFILE_CODECS, *media_files.PYAV_CODECS):
        rate = 48_000 if ending == "ac3" else RATE
        path = media_files.save_audio(tmp_path / f"noise.{ending}", media_files.noise(0.5, rate), rate)
        assert np.array_equal(audio.read(path, 22_050), audio.read(path, 22_050))


@pytest.mark.parametrize(
    ("written", "named"), [("mp3", "wav"), ("m4a", "mp3"), ("flac", "ogg"), ("wav", "m4a"), ("webm", "wav")]
)
def test_content_decides_the_format_not_the_extension(written, named, tmp_path):
    samples = media_files.noise(1.0, RATE)
    path = media_files.save_audio(tmp_path / f"noise.{written}", samples, RATE).rename(tmp_path / f"wrong.{named}")
    assert media_files.best_correlation(audio.read(path, RATE), samples)[0] > 0.97


def test_sliding_windows_cover_the_recording():
    assert audio.sliding_windows(4.0, 10.0, 10.0) == [(0.0, 4.0)]
    assert audio.sliding_windows(10.0, 10.0, 5.0) == [(0.0, 10.0)]
    assert audio.sliding_windows(25.0, 10.0, 10.0) == [(0.0, 10.0), (10.0, 20.0), (15.0, 25.0)]
    assert audio.sliding_windows(20.0, 10.0, 5.0) == [(0.0, 10.0), (5.0, 15.0), (10.0, 20.0)]
    assert audio.sliding_windows(0.3, 0.1, 0.1)[-1] == pytest.approx((0.2, 0.3))
    assert len(audio.sliding_windows(0.3, 0.1, 0.1)) == 3
    with pytest.raises(InputError, match="must be above 0"):
        audio.sliding_windows(10.0, 1.0, 0.0)


def naive_log_mel(samples, rate, mels, window, hop):
    """The formula as a naive loop in float64."""
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
    actual = audio.log_mel_spectrogram(samples, RATE, 16, 400, 160).numpy()
    assert actual == pytest.approx(naive_log_mel(samples.astype(float), RATE, 16, 400, 160), abs=1e-4)


def test_log_mel_equals_librosa():
    librosa = pytest.importorskip("librosa", reason="librosa comes with the bench extra only")
    samples = media_files.noise(1.0, 48_000) + np.random.default_rng(1).normal(0, 0.01, 48_000).astype(np.float32)
    power = librosa.feature.melspectrogram(
        y=samples, sr=48_000, n_fft=1024, hop_length=480, n_mels=64, pad_mode="constant"
    )
    actual = audio.log_mel_spectrogram(samples, 48_000, 64, 1024, 480).numpy()
    assert np.abs(actual.T - librosa.power_to_db(power, amin=1e-10, top_db=None)).max() < 1e-4


def test_real_clips_are_read_completely():
    clips = sorted((find_dataset_or_skip("esc50") / "audio").glob("*.*"))[::80]
    for path in clips:
        samples = audio.read(path, RATE)
        assert len(samples) == pytest.approx(RATE * audio.read_duration(path), abs=2)
        assert 4.9 < audio.read_duration(path) < 5.1
        assert np.abs(samples).max() < 2


def write_float_wav(tmp_path, samples, rate=RATE):
    path = tmp_path / "bad.wav"
    soundfile.write(path, np.asarray(samples, np.float32), rate, subtype="FLOAT")
    return path


def test_errors_for_bad_audio_name_the_file(tmp_path):
    (tmp_path / "empty.wav").write_bytes(b"")
    (tmp_path / "text.wav").write_text("I am not audio")
    (tmp_path / "folder.wav").mkdir()
    cases = {
        tmp_path / "missing.wav": "no such audio file",
        tmp_path / "empty.wav": "the file is empty",
        tmp_path / "folder.wav": "is not a file",
        tmp_path / "text.wav": r"cannot be read as audio \(Invalid data.*\); give wav, flac",
        write_float_wav(tmp_path, [0.0, np.nan, 0.0]): "NaN or infinity",
    }
    for path, message in cases.items():
        with pytest.raises(MediaError, match=message) as caught:
            audio.read(path, RATE)
        assert str(path) in str(caught.value)


def test_samples_out_of_range_are_an_error(tmp_path):
    with pytest.raises(MediaError, match=r"a sample is 1e\+20; samples must lie within ±1"):
        audio.read(write_float_wav(tmp_path, np.full(RATE, 1e20)), RATE)
    assert audio.read(write_float_wav(tmp_path, np.full(RATE, 32_000.0)), RATE).max() == 32_000


@pytest.mark.parametrize("extension", ["wav", "flac", "ogg", "mp3", "m4a", "mkv"])
def test_segments_past_the_end_are_errors(extension, tmp_path):
    path = media_files.save_audio(tmp_path / f"short.{extension}", media_files.noise(1.0, RATE), RATE)
    with pytest.raises(MediaError, match=r"no audio between 3 s and the end; the file is 1(\.\d+)? s long"):
        audio.read(path, RATE, start=3.0)
    with pytest.raises(MediaError, match=r"no audio between 0.5 s and 0.5 s"):
        audio.read(path, RATE, 0.5, 0.5)


def test_audio_without_samples_is_an_error(tmp_path):
    with pytest.raises(MediaError, match="no audio between"):
        audio.read(write_float_wav(tmp_path, []), RATE)


@pytest.mark.parametrize("extension", ["wav", "aiff", "au", "caf", "w64", "flac", "ogg", "opus", "mp3"])
def test_truncated_files_are_an_error(extension, tmp_path):
    path = media_files.save_audio(tmp_path / f"whole.{extension}", media_files.noise(3.0, RATE), RATE)
    whole = path.read_bytes()
    for fraction in (0.3, 0.6, 0.9):
        path.write_bytes(whole[: round(fraction * len(whole))])
        with pytest.raises(MediaError, match=r"truncated|broken audio data|cannot be read as audio"):
            audio.read(path, RATE)


def test_wav_with_unknown_length_is_read_completely(tmp_path):
    """Programs that write to a pipe cannot update the header."""
    path = media_files.save_audio(tmp_path / "piped.wav", media_files.noise(1.0, RATE), RATE)
    data = bytearray(path.read_bytes())
    data[4:8] = data[40:44] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    assert len(audio.read(path, RATE)) == RATE
