"""Pictures: pixels, orientation, transparency, limits, and bad files."""

import numpy as np
import pytest
from PIL import Image

from triptych.errors import MediaError
from triptych.media import image


def half_red(mode="RGB"):
    """Left half red, right half blue."""
    pixels = np.zeros((40, 40, 3), np.uint8)
    pixels[:, :20, 0] = 255
    pixels[:, 20:, 2] = 255
    return Image.fromarray(pixels).convert(mode)


@pytest.mark.parametrize("ending", ["png", "jpg", "webp", "gif", "bmp", "tiff"])
def test_formats_come_back_as_they_went_in(ending, tmp_path):
    path = tmp_path / f"half.{ending}"
    half_red().save(path)
    pixels = image.read(path, 16)
    assert pixels.shape == (16, 16, 3)
    assert pixels.dtype == np.uint8
    assert pixels[8, 2].tolist() == pytest.approx([255, 0, 0], abs=12)
    assert pixels[8, 13].tolist() == pytest.approx([0, 0, 255], abs=12)


def test_exif_turns_the_picture(tmp_path):
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 3  # taken upside down
    half_red().save(path, exif=exif)
    assert image.read(path, 16)[8, 2].tolist() == pytest.approx([0, 0, 255], abs=12)


def test_transparency_lies_on_white(tmp_path):
    path = tmp_path / "clear.png"
    Image.new("RGBA", (20, 20), (0, 0, 0, 0)).save(path)
    assert (image.read(path, 8) == 255).all()


def test_sixteen_bit_grey_is_scaled(tmp_path):
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((20, 20), 32768, np.uint16)).save(path)
    assert image.read(path, 8).astype(int) == pytest.approx(np.full((8, 8, 3), 128), abs=1)


def test_bad_pictures_are_named_with_what_to_do(tmp_path, monkeypatch):
    whole = tmp_path / "whole.png"
    half_red().save(whole)
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:60])
    (tmp_path / "text.png").write_text("I am not a picture")
    (tmp_path / "empty.png").write_bytes(b"")
    cases = {"missing.png": "no such picture", "cut.png": "broken picture", "text.png": "cannot be read as a picture"}
    for name, message in {**cases, "empty.png": "cannot be read as a picture"}.items():
        with pytest.raises(MediaError, match=message) as caught:
            image.read(tmp_path / name, 16)
        assert name in str(caught.value)
    monkeypatch.setattr(image, "MOST_PIXELS", 1000)
    with pytest.raises(MediaError, match="40 × 40 pixels; at most"):
        image.read(whole, 16)


def test_a_bomb_of_a_picture_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "bomb.png"
    Image.new("1", (20_000, 20_000)).save(path)
    assert path.stat().st_size < 100_000
    with pytest.raises(MediaError, match=r"400000000 pixels.*scale it down"):
        image.read(path, 16)


def test_damaged_pictures_never_crash(tmp_path):
    rng = np.random.default_rng(0)
    refused = 0
    for ending in ("png", "jpg", "gif", "webp", "bmp", "tiff"):
        whole = tmp_path / f"whole.{ending}"
        half_red().save(whole)
        data = whole.read_bytes()
        for trial in range(40):
            damaged = bytearray(data[: rng.integers(1, len(data))] if trial % 2 else data)
            for _ in range(6):
                damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
            path = tmp_path / f"damaged.{ending}"
            path.write_bytes(damaged)
            try:
                assert image.read(path, 16).shape == (16, 16, 3)
            except MediaError:
                refused += 1
    assert refused > 60
