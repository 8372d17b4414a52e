"""HEIC and AVIF images: pixels, orientation, limits, damaged files, and worker processes."""

import sys
from contextlib import closing, suppress

import numpy as np
import pytest
from PIL import Image

from tests.media.heif_files import save_heic
from tests.media.test_image import make_half_red
from triptych.errors import MediaError
from triptych.media import image, limits, modalities_of, sandbox


@pytest.fixture(params=["heic", "avif"])
def photo(request, tmp_path):
    """Left half red, right half blue."""
    path = tmp_path / f"photo.{request.param}"
    pil_image = make_half_red().resize((96, 64))
    save_heic(pil_image, path) if request.param == "heic" else pil_image.save(path)
    return path


def test_photos_are_decoded_in_this_process_and_in_a_worker(photo):
    assert modalities_of(photo) == ("image",)
    assert image.read_size(photo) == (96, 64)
    with closing(sandbox.WorkerPool(30.0, 2_000_000_000)) as pool, pool.sandbox():
        in_worker = image.read_pixels(photo, 16)
    pixels = image.read_pixels(photo, 16)
    assert (pixels == in_worker).all()
    assert pixels[8, 2].tolist() == pytest.approx([255, 0, 0], abs=12)
    assert pixels[8, 13].tolist() == pytest.approx([0, 0, 255], abs=12)


def test_the_content_of_a_photo_decides_not_its_extension(photo, tmp_path):
    renamed = photo.rename(tmp_path / "photo.jpg")
    assert image.load(renamed).size == (96, 64)


def test_a_photo_with_too_many_pixels_is_not_decoded(photo, monkeypatch):
    monkeypatch.setattr(limits, "MAX_PIXELS", 96 * 64 - 1)
    with pytest.raises(MediaError, match="96 × 64 pixels; at most"):
        image.load(photo)


def test_a_photo_of_too_many_bytes_is_not_read(photo, monkeypatch):
    monkeypatch.setattr(limits, "MAX_IMAGE_BYTES", 100)
    with pytest.raises(MediaError, match="scale the image down"):
        image.load(photo)


@pytest.mark.parametrize("fraction", [0.02, 0.2, 0.6, 0.97])
def test_a_truncated_photo_is_one_clear_error(photo, fraction):
    photo.write_bytes(photo.read_bytes()[: int(photo.stat().st_size * fraction)])
    with pytest.raises(MediaError, match=r"photo\.(heic|avif): "):
        image.load(photo)


def test_a_damaged_photo_never_raises_another_error(photo):
    content, rng = photo.read_bytes(), np.random.default_rng(0)
    for _ in range(25):
        damaged = np.frombuffer(content, np.uint8).copy()
        damaged[rng.integers(8, len(content), 12)] = rng.integers(0, 256, 12)
        photo.write_bytes(damaged.tobytes())
        with suppress(MediaError):  # any other exception fails the test
            assert image.load(photo).mode == "RGB"


def test_without_its_library_heic_is_an_error_that_names_the_package(tmp_path, monkeypatch):
    save_heic(Image.new("RGB", (64, 64)), tmp_path / "photo.heic")
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    with pytest.raises(MediaError, match="run: pip install pi-heif"):
        image.load(tmp_path / "photo.heic")
