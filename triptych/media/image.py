"""Decode image files and video frames to RGB pixels."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from triptych.errors import MediaError
from triptych.media import limits, sandbox

if TYPE_CHECKING:
    from triptych.interfaces import Pixels, Source

# This module handles the problems that Pillow warns of. The filter is set once: changing filters is not thread-safe.
warnings.filterwarnings("ignore", module=r"PIL\.")

# Pillow's libtiff prints errors to stderr, although Pillow raises them as well.
with suppress(OSError, AttributeError):
    _pillow_library = ctypes.CDLL(cast(Any, Image.core).__file__)
    _pillow_library.TIFFSetErrorHandler(None)
    _pillow_library.TIFFSetWarningHandler(None)

SUPPORTED_FORMATS = "png, jpg, heic, avif, webp, gif, bmp, tiff, or a video"
BLOCK_BYTES = 4096  # bytes decoded between two checks of the deadline
# Other formats run programs or open other files.
PILLOW_FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "PPM")
# In the first bytes of a file: the brands of HEIF images that libheif decodes, of any HEIF image, and of AVIF images.
HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}
HEIF_BRANDS, AVIF_BRANDS = {b"mif1", b"msf1"}, {b"avif", b"avis"}
HEADER_BYTES = 64


def _validate_square(reply: Any, arguments: Mapping[str, Any]) -> np.ndarray:
    if sandbox.validate_pixels(reply, arguments).shape[:2] != (arguments["size"], arguments["size"]):
        raise ValueError("pixels of the wrong size")
    return reply


def _to_pil_image(reply: Any, arguments: Mapping[str, Any]) -> Image.Image:
    return Image.fromarray(sandbox.validate_pixels(reply, arguments))


def load_source(source: Source, size: int = 0) -> Image.Image:
    """Load the RGB image of a source: a file, the middle frame of a segment of a video, or an image in memory."""
    if isinstance(source.content, str | Path):
        return load(Path(source.content), size, frame_time(source))
    pixels = cast("Pixels", source.content)
    limits.check_pixels(Path(str(pixels)), pixels.image.width, pixels.image.height)
    return _to_rgb(Path(str(pixels)), ImageOps.exif_transpose(pixels.image))


def read_source_pixels(source: Source, size: int) -> np.ndarray:
    """Return the image of a source, resized to a square, as RGB pixels (size, size, 3) uint8."""
    if isinstance(source.content, str | Path):
        return read_pixels(Path(source.content), size, frame_time(source))
    return _resize_to_square(load_source(source), size)


def _resize_to_square(pil_image: Image.Image, size: int) -> np.ndarray:
    return np.asarray(pil_image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0))


@sandbox.decoder(_validate_square)
def read_pixels(path: Path, size: int, time: float | None = None) -> np.ndarray:
    """Return an image, resized to a square, as RGB pixels (size, size, 3) uint8; a video gives the frame at `time`."""
    return _resize_to_square(load(path, size, time), size)


@sandbox.decoder(_to_pil_image)
def load(path: Path, size: int = 0, time: float | None = None) -> Image.Image:
    """Load an RGB image: rotate it by its EXIF orientation, and composite transparent pixels on white.

    For a video, load the frame at `time` (seconds; None: the middle). If `size` is given, a JPEG may be decoded at a
    lower resolution, but not below `size` pixels.
    """
    limits.check_file(path, "image")
    try:
        with _open_image(path) as pil_image:
            limits.check_pixels(path, pil_image.width, pil_image.height)
            if size:
                pil_image.draft("RGB", (size, size))
            ImageOps.exif_transpose(pil_image, in_place=True)
            limits.check_pixels(path, pil_image.width, pil_image.height)  # HEIC can be larger than its header says
            return _to_rgb(path, pil_image)
    except UnidentifiedImageError:
        return _load_video_frame(path, time)


def read_size(path: Path) -> tuple[int, int] | None:
    """Return width and height of an image from its header; None if the file is not an image."""
    try:
        with _open_image(path) as pil_image:
            return pil_image.size
    except UnidentifiedImageError:
        return None


@contextmanager
def _open_image(path: Path) -> Iterator[Image.Image]:
    """Open an image with Pillow. Raise UnidentifiedImageError if it is not an image, MediaError if it is damaged."""
    try:
        with (
            path.open("rb") as file,
            _open_with_decoder(path, cast(IO[bytes], _UnmappedFile(path, file))) as pil_image,
        ):
            limits.check_image_bytes(path, path.stat().st_size)
            cast(Any, pil_image).decodermaxblock = BLOCK_BYTES
            yield pil_image
    except (MediaError, UnidentifiedImageError):
        raise
    except Image.DecompressionBombError as error:
        limit = f"at most {limits.MAX_PIXELS / 1e6:g} million pixels"
        raise MediaError(f"{path}: {error}; {limit}: scale the image down") from error
    except Exception as error:  # decoders raise many types of exceptions on damaged data
        raise MediaError(f"{path}: broken image data ({error}); replace or remove the file") from error


def _open_with_decoder(path: Path, file: IO[bytes]) -> Image.Image:
    """Open an image with libheif if the image is HEIC, otherwise with Pillow."""
    header = file.read(HEADER_BYTES)
    file.seek(0)
    brand = header[8:12] if header[4:8] == b"ftyp" else b""
    if brand in HEIC_BRANDS | HEIF_BRANDS | AVIF_BRANDS:  # the decoders of these formats read the complete file
        limits.check_image_bytes(path, path.stat().st_size)
    if brand in HEIC_BRANDS or (brand in HEIF_BRANDS and not any(name in header for name in AVIF_BRANDS)):
        try:
            from pi_heif import HeifImageFile
        except ImportError as error:
            raise MediaError(f"{path}: HEIC needs the package pi-heif; run: pip install pi-heif") from error
        return HeifImageFile(file)
    return Image.open(file, formats=PILLOW_FORMATS)


class _UnmappedFile:
    """A file object without name and descriptor, so that neither Pillow nor libtiff memory-maps the file.

    If a mapped file is truncated while it is read, the process ends with SIGBUS.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._file, self._deadline = file, limits.Deadline(path)

    def read(self, size: int = -1) -> bytes:
        self._deadline.check()
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def frame_time(source: Source) -> float | None:
    """Return the middle of a source's segment in seconds; None if the source has no segment."""
    if source.start is None and source.end is None:
        return None
    from triptych.media import video  # imports PyAV, which images do not need

    return video.find_midpoint(source.path, source.start, source.end)


def _load_video_frame(path: Path, time: float | None) -> Image.Image:
    from triptych.media import video  # imports PyAV, which images do not need

    if not video.is_video(path):
        raise MediaError(f"{path}: cannot be read as an image; give {SUPPORTED_FORMATS}")
    return video.read_frames(path, [video.find_midpoint(path) if time is None else time])[0]


def _to_rgb(path: Path, pil_image: Image.Image) -> Image.Image:
    if pil_image.mode.startswith("I") or pil_image.mode == "F":  # Pillow would clip these modes, not scale them
        return Image.fromarray(_to_uint8(path, np.asarray(pil_image))).convert("RGB")
    if pil_image.mode in {"RGBA", "LA", "PA", "La", "RGBa"} or "transparency" in pil_image.info:
        rgba = pil_image if pil_image.mode == "RGBA" else pil_image.convert("RGBA")
        background = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(background, rgba).convert("RGB")
    return pil_image.convert("RGB")


def _to_uint8(path: Path, grey: np.ndarray) -> np.ndarray:
    """Scale grey values to 8 bits: integers from 0 to 65,535, floats from 0 to 1."""
    max_value = 1.0 if np.issubdtype(grey.dtype, np.floating) else 65_535
    low, high = grey.min(), grey.max()
    if not (low >= 0 and high <= max_value):  # true for NaN as well
        problem = f"grey values from {low:g} to {high:g}; allowed: 0 to {max_value:g}"
        raise MediaError(f"{path}: {problem}. Save the image with 8 bits")
    return (grey * 255).round().astype(np.uint8) if max_value == 1.0 else (grey >> 8).astype(np.uint8)
