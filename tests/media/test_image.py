"""Images: pixels, orientation, transparency and damaged files."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.media.media_files import make_slow_jpeg
from triptych.errors import MediaError
from triptych.media import image, limits


def make_half_red(mode="RGB"):
    """Left half red, right half blue."""
    pixels = np.zeros((40, 40, 3), np.uint8)
    pixels[:, :20, 0] = 255
    pixels[:, 20:, 2] = 255
    return Image.fromarray(pixels).convert(mode)


@pytest.mark.parametrize("extension", ["png", "jpg", "webp", "gif", "bmp", "tiff"])
def test_formats_round_trip(extension, tmp_path):
    path = tmp_path / f"half.{extension}"
    make_half_red().save(path)
    pixels = image.read_pixels(path, 16)
    assert pixels.shape == (16, 16, 3)
    assert pixels.dtype == np.uint8
    assert pixels[8, 2].tolist() == pytest.approx([255, 0, 0], abs=12)
    assert pixels[8, 13].tolist() == pytest.approx([0, 0, 255], abs=12)


@pytest.mark.parametrize("extension", ["jpg", "png", "webp", "tiff"])
def test_exif_orientation_is_applied(extension, tmp_path):
    path = tmp_path / f"turned.{extension}"
    exif = Image.Exif()
    exif[0x0112] = 3  # taken upside down
    make_half_red().save(path, exif=exif)
    assert image.read_pixels(path, 16)[8, 2].tolist() == pytest.approx([0, 0, 255], abs=12)


def test_transparency_is_composited_on_white(tmp_path):
    path = tmp_path / "clear.png"
    Image.new("RGBA", (20, 20), (0, 0, 0, 0)).save(path)
    assert (image.read_pixels(path, 8) == 255).all()


@pytest.mark.parametrize("extension", ["png", "tiff"])
def test_sixteen_bit_grey_is_scaled(extension, tmp_path):
    path = tmp_path / f"deep.{extension}"
    Image.fromarray(np.full((20, 20), 32768, np.uint16)).save(path)
    assert image.read_pixels(path, 8).astype(int) == pytest.approx(np.full((8, 8, 3), 128), abs=1)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_high_bit_depth_grey_is_scaled_or_an_error(dtype, tmp_path):
    path = tmp_path / "deep.tiff"
    max_value = 1.0 if dtype is np.float32 else 65_535
    ramp = np.tile(np.linspace(0, max_value, 16), (16, 1)).astype(dtype)
    Image.fromarray(ramp).save(path)
    assert image.read_pixels(path, 16)[:, :, 0] == pytest.approx(ramp / max_value * 255, abs=1)
    for wrong in (ramp - dtype(max_value) / 2, ramp * 3):
        Image.fromarray(wrong.astype(dtype)).save(path)
        with pytest.raises(MediaError, match=rf"deep.tiff: grey values from .* allowed: 0 to {max_value:g}"):
            image.read_pixels(path, 16)
    if dtype is np.float32:
        Image.fromarray(np.full((4, 4), np.nan, np.float32)).save(path)
        with pytest.raises(MediaError, match="grey values from nan"):
            image.read_pixels(path, 16)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_every_tiff_mode_decodes_to_the_same_image(mode, tmp_path):
    path = tmp_path / "half.tiff"
    grey = Image.fromarray(np.repeat(np.repeat([[20, 220]], 20, 1), 40, 0).astype(np.uint8)).convert("RGB")
    grey.convert(mode).save(path)
    pixels = image.read_pixels(path, 16)
    assert pixels[8, 2].max() < 50
    assert pixels[8, 13].min() > 200


def test_palettes_and_grey_keep_their_transparency(tmp_path):
    Image.new("LA", (20, 20), (0, 0)).save(tmp_path / "grey.png")
    Image.new("P", (20, 20), 0).save(tmp_path / "palette.png", transparency=0)
    for name in ("grey.png", "palette.png"):
        assert (image.read_pixels(tmp_path / name, 8) == 255).all()


def test_animated_gif_gives_its_first_frame(tmp_path):
    path = tmp_path / "moving.gif"
    red, blue = Image.new("RGB", (20, 20), "red"), Image.new("RGB", (20, 20), "blue")
    red.save(path, save_all=True, append_images=[blue])
    assert image.read_pixels(path, 8)[4, 4].tolist() == [255, 0, 0]


def test_a_wrong_extension_is_ignored(tmp_path):
    make_half_red().save(tmp_path / "really.png")
    (tmp_path / "really.png").rename(tmp_path / "named.jpg")
    assert image.read_pixels(tmp_path / "named.jpg", 16)[8, 2].tolist() == pytest.approx([255, 0, 0], abs=2)


def test_formats_that_run_programs_are_an_error(tmp_path):
    path = tmp_path / "drawing.png"
    make_half_red().save(path, format="EPS")
    with pytest.raises(MediaError, match="cannot be read as an image"):
        image.read_pixels(path, 16)


def test_errors_for_bad_images_name_the_file(tmp_path, monkeypatch):
    whole = tmp_path / "whole.png"
    make_half_red().save(whole)
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:60])
    (tmp_path / "text.png").write_text("I am not an image")
    (tmp_path / "empty.png").write_bytes(b"")
    cases = {"missing.png": "no such image", "cut.png": "broken image", "text.png": "cannot be read as an image"}
    for name, message in {**cases, "empty.png": "the file is empty"}.items():
        with pytest.raises(MediaError, match=message) as caught:
            image.read_pixels(tmp_path / name, 16)
        assert name in str(caught.value)
    monkeypatch.setattr(limits, "MAX_PIXELS", 1000)
    with pytest.raises(MediaError, match="40 × 40 pixels; at most"):
        image.read_pixels(whole, 16)


def test_decompression_bomb_is_an_error_before_decoding(tmp_path):
    path = tmp_path / "bomb.png"
    Image.new("1", (20_000, 20_000)).save(path)
    assert path.stat().st_size < 100_000
    with pytest.raises(MediaError, match=r"400000000 pixels.*scale the image down"):
        image.read_pixels(path, 16)


SHRINK = """
import os, sys
from pathlib import Path
from PIL import ImageOps
from triptych.errors import MediaError
from triptych.media import image, limits

path, when, transpose = Path(sys.argv[1]), sys.argv[2], ImageOps.exif_transpose

def shrink(*_):
    os.truncate(path, 4096)

def shrink_opened(opened, **options):
    opened.load()
    shrink()
    return transpose(opened, **options)

if when == "before its pixels are read":
    limits.check_pixels = shrink
else:
    ImageOps.exif_transpose = shrink_opened
try:
    print(image.load(path).size)
except MediaError as error:
    print(error)
"""


@pytest.mark.parametrize("when", ["before its pixels are read", "before its pixels are used"])
@pytest.mark.parametrize(("extension", "compression"), [("bmp", None), ("tiff", None), ("tiff", "tiff_lzw")])
def test_a_file_truncated_during_reading_does_not_crash(extension, compression, when, tmp_path):
    """Truncating a memory-mapped file ends the process, so no library may map an image."""
    path = tmp_path / f"shrinks.{extension}"
    pixels = np.random.default_rng(0).integers(0, 256, (600, 600), np.uint8)
    Image.fromarray(pixels).save(path, compression=compression)
    done = subprocess.run([sys.executable, "-c", SHRINK, path, when], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert str(path) in done.stdout or done.stdout == "(600, 600)\n"
    assert done.stderr == ""


def test_slow_decoding_times_out(tmp_path, monkeypatch):
    path = tmp_path / "slow.jpg"
    path.write_bytes(make_slow_jpeg(500, 3000))
    monkeypatch.setattr(limits, "MAX_CPU_SECONDS", 0.05)
    with pytest.raises(MediaError, match=r"slow.jpg: not decoded within 0.05 s of CPU time"):
        image.load(path)
