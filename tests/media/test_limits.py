"""Limits on size and decoding time."""

import pytest
from PIL import Image

from tests.media import media_files
from triptych.errors import MediaError
from triptych.media import audio, image, limits

RATE = 16_000


@pytest.mark.parametrize("extension", ["wav", "m4a"])
def test_errors_for_limits_name_the_file(extension, tmp_path, monkeypatch):
    path = media_files.save_audio(tmp_path / f"long.{extension}", media_files.noise(2.0, RATE), RATE, channels=2)
    cases = {
        "MAX_SAMPLES": (1000, "samples at once; at most 1,000: read segments of the file"),
        "MAX_CHANNELS": (1, "16000 Hz and 2 channels; need .* at most 1 channels"),
        "MAX_SAMPLE_RATE": (8000, "16000 Hz and 2 channels; need 1000 to 8000 Hz"),
        "MAX_CPU_SECONDS": (-1.0, "not decoded within -1 s"),
        "MAX_FILE_BYTES": (1000, r"GB per file: split the file"),
    }
    for name, (value, message) in cases.items():
        with monkeypatch.context() as patch:
            patch.setattr(limits, name, value)
            with pytest.raises(MediaError, match=message) as caught:
                audio.read(path, RATE)
        assert str(path) in str(caught.value)
    monkeypatch.setattr(limits, "MAX_DURATION", 0.5)
    with pytest.raises(MediaError, match="hours per file: split the file"):
        audio.read_duration(path)


@pytest.mark.parametrize("size", [(1, 501), (501, 1), (70_000, 200), (1, 60_000)])
def test_side_limits(size, tmp_path):
    path = tmp_path / "strip.png"
    Image.new("1", size).save(path)
    with pytest.raises(
        MediaError, match=r"strip.png: \d+ × \d+ pixels; the longer side may have at most 65,535 pixels and at most 500"
    ):
        image.load(path)


def test_narrow_images_are_read(tmp_path):
    path = tmp_path / "gradient.png"
    Image.linear_gradient("L").resize((1, 500)).save(path)
    assert image.read_pixels(path, 16).shape == (16, 16, 3)
