"""Media in memory become files without loss, named by their content."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.data.dataset_replicas import WAV, png_bytes
from triptych.data.media_folder import MediaFolder
from triptych.errors import InputError
from triptych.interfaces import Pixels, Source, Waveform
from triptych.media import audio, image

RNG = np.random.default_rng(0)
SAMPLES = (RNG.normal(size=4000) * 0.3).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    return MediaFolder(tmp_path / "media")


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_audio_read_from_the_file_equals_audio_in_memory(folder, rate):
    path = folder.add_cell((SAMPLES, rate), "audio")
    assert path == folder.add_cell({"array": SAMPLES, "sampling_rate": rate, "path": None}, "audio")
    assert path != folder.add_cell((SAMPLES, rate + 1), "audio")
    in_memory = audio.read_source(Source("audio", Waveform(SAMPLES, rate)), 16000, 10.0)
    np.testing.assert_array_equal(audio.read_source(Source("audio", path), 16000, 10.0), in_memory)


def make_images():
    rgb = Image.fromarray(RNG.integers(0, 256, (7, 5, 3)).astype(np.uint8))
    rotated = rgb.copy()
    rotated.getexif()[0x0112] = 6  # rotated by 90 degrees
    jpeg = io.BytesIO()
    rgb.save(jpeg, "JPEG", exif=rotated.getexif())
    return {
        "RGB": rgb,
        "grey": rgb.convert("L"),
        "palette": rgb.convert("P"),
        "transparent": rgb.convert("RGBA"),
        "CMYK": rgb.convert("CMYK"),
        "float": Image.fromarray(RNG.random((4, 4)).astype(np.float32)),
        "rotated JPEG": Image.open(jpeg),
    }


@pytest.mark.parametrize("mode", make_images())
def test_the_image_read_from_the_file_equals_the_image_in_memory(folder, mode):
    value = make_images()[mode]
    path = folder.add_cell(value, "image")
    in_memory = image.load_source(Source("image", Pixels(value)))
    np.testing.assert_array_equal(np.asarray(image.load(path)), np.asarray(in_memory))


def test_equal_contents_are_one_file_with_equal_bytes(tmp_path):
    contents = []
    for name in ("a", "b"):
        folder = MediaFolder(tmp_path / name)
        cells = [(SAMPLES, 8000), (SAMPLES.copy(), 8000)]
        (path,) = {folder.add_cell(cell, "audio") for cell in cells}
        assert path is not None
        assert folder.written == [path]
        assert path
        contents.append((path.name, path.read_bytes()))
    assert contents[0] == contents[1]


def test_bytes_are_written_unchanged_and_paths_are_kept(folder, tmp_path):
    for cell in (WAV, bytearray(WAV), {"bytes": WAV, "path": None}, {"bytes": WAV, "path": "x.flac"}):
        path = folder.add_cell(cell, "audio")
        assert path.suffix == ".wav", "the first bytes decide"
        assert path.read_bytes() == WAV
    assert folder.add_cell({"bytes": b"any", "path": "clip.mp3"}, "audio").suffix == ".mp3"
    assert folder.add_cell(png_bytes(3), None).suffix == ".png"
    given = tmp_path / "mine.wav"
    for cell in (given, str(given), {"bytes": None, "path": str(given)}, {"path": given}):
        assert folder.add_cell(cell, "audio") == given
    assert folder.add_cell(tmp_path / "film.mp4", "video") == tmp_path / "film.mp4"


@pytest.mark.parametrize("cell", [None, float("nan"), "", " ", {"bytes": None, "path": None}])
def test_empty_cells_have_no_file(folder, cell):
    assert folder.add_cell(cell, "audio") is None
    assert folder.add_cell(cell, None) is None


@pytest.mark.parametrize(
    ("cell", "media_type", "message"),
    [
        ((SAMPLES, 0), "audio", "sampling rate 0"),
        ((SAMPLES, 16000.0), "audio", r"sampling rate 16000\.0; need a positive integer"),
        (SAMPLES, "audio", "needs its sampling rate"),
        ((SAMPLES.astype(complex), 8000), "audio", "dtype complex128"),
        ((SAMPLES[:0], 8000), "audio", "not empty"),
        (np.full((4, 4), 300, np.int32), "image", "dtype int32"),
        (np.zeros((5, 5, 7), np.uint8), "image", r"shape \(5, 5, 7\)"),
        ((SAMPLES, 8000), "image", "is audio, but modality is 'image'"),
        (b"unknown bytes", "audio", "bytes of an unknown format"),
        (np.zeros((4, 4, 3), np.uint8), "video", "ndarray is not a file"),
        ("https://example.org/a.wav", "audio", "URLs are not downloaded"),
        (Source("audio", "a.wav", 1.0, 2.0), "audio", "give start and end as columns"),
        (7, "audio", "int is not an input"),
    ],
)
def test_unusable_cells_raise_and_nothing_is_written(folder, cell, media_type, message):
    with pytest.raises(InputError, match=message):
        folder.add_cell(cell, media_type)
    assert not folder.folder.exists()
