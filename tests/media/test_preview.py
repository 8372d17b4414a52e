"""Previews: sizes, peaks, positions and colours."""

import io

import numpy as np
import pytest
import soundfile
from PIL import Image

from triptych.media import preview


@pytest.fixture
def tones(tmp_path):
    """Half a second of silence, half a second of a loud low tone, half a second of a soft high one."""
    rate, t = 16_000, np.arange(8000) / 16_000
    samples = np.concatenate([np.zeros(8000), 0.8 * np.sin(2 * np.pi * 300 * t), 0.2 * np.sin(2 * np.pi * 4000 * t)])
    path = tmp_path / "tones.wav"
    soundfile.write(path, samples, rate)
    return path


def test_peaks_are_the_extremes_of_each_piece(tones):
    peaks = preview.compute_peaks(tones, 3)
    assert peaks.shape == (3, 2)
    assert peaks[:, 1] == pytest.approx([0, 0.8, 0.2], abs=0.06)
    assert peaks[:, 0] == pytest.approx([0, -0.8, -0.2], abs=0.06)
    assert preview.compute_peaks(tones, 2, 0.5, 1.0)[:, 1] == pytest.approx([0.8, 0.8], abs=0.06)
    assert preview.compute_peaks(tones, 20_000).shape == (20_000, 2)


def test_a_spectrogram_is_bright_where_the_tone_is(tones):
    pil_image = Image.open(io.BytesIO(preview.render_spectrogram(tones, 90)))
    assert pil_image.mode == "P"
    shade = np.asarray(pil_image, int)
    assert shade.shape[1] <= 90
    third = shade.shape[1] // 3
    assert shade[:, 2 : third - 4].max() == 0
    low, high = shade[:, third + 4 : 2 * third - 4].mean(axis=1), shade[:, 2 * third + 4 :].mean(axis=1)
    assert low.argmax() > high.argmax() + 20  # low frequencies at the bottom
    colours = np.asarray(pil_image.convert("RGB"), int).sum(axis=2)
    assert colours.max() > 600
    assert colours[0, 5] < 20


def test_spectrogram_of_silence_is_black(tmp_path):
    soundfile.write(tmp_path / "silence.wav", np.zeros(8000), 16_000)
    assert np.asarray(Image.open(io.BytesIO(preview.render_spectrogram(tmp_path / "silence.wav", 50)))).max() == 0


def test_thumbnail_keeps_the_aspect_ratio(tmp_path):
    Image.new("RGB", (300, 100), "red").save(tmp_path / "wide.png")
    thumbnail = Image.open(io.BytesIO(preview.render_thumbnail(tmp_path / "wide.png", 60)))
    assert thumbnail.size == (60, 20)
    assert thumbnail.format == "JPEG"
