"""Picture files, and frames of films, to RGB pixels."""

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
    from triptych.contracts import Source

# Pillow warns of what we refuse or repair ourselves; set once here, as filters are not safe to change on threads.
warnings.filterwarnings("ignore", module=r"PIL\.")

# libtiff writes to stderr what Pillow then raises for; it is one of the libraries that come with Pillow.
with suppress(OSError, AttributeError):
    _libraries = ctypes.CDLL(cast(Any, Image.core).__file__)
    _libraries.TIFFSetErrorHandler(None)
    _libraries.TIFFSetWarningHandler(None)

READABLE = "png, jpg, webp, gif, bmp, tiff, or a film"
BLOCK = 4096  # bytes that are decoded before the clock is looked at
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # others run programs or read other files


def _square(answer: Any, arguments: Mapping[str, Any]) -> np.ndarray:
    if sandbox.pixels(answer, arguments).shape[:2] != (arguments["size"], arguments["size"]):
        raise ValueError("pixels of another size")
    return answer


def _picture(answer: Any, arguments: Mapping[str, Any]) -> Image.Image:
    return Image.fromarray(sandbox.pixels(answer, arguments))


@sandbox.decoder(_square)
def read(path: Path, size: int, at: float | None = None) -> np.ndarray:
    """RGB pixels (size, size, 3) uint8, squeezed to a square; of a film the frame at a second, else in its middle."""
    return np.asarray(load(path, size, at).resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0))


@sandbox.decoder(_picture)
def load(path: Path, size: int = 0, at: float | None = None) -> Image.Image:
    """An RGB picture: turned as EXIF says, transparency on white; of a film the frame at a second, else in its middle.

    Where it will be scaled to `size`, a JPEG is decoded at a fraction of its own, never below it.
    """
    limits.check_file(path, "picture")
    try:
        with _opened(path) as picture:
            limits.check_pixels(path, picture.width, picture.height)
            if size:
                picture.draft("RGB", (size, size))
            ImageOps.exif_transpose(picture, in_place=True)
            return _as_rgb(path, picture)
    except UnidentifiedImageError:
        return _frame(path, at)


def size(path: Path) -> tuple[int, int] | None:
    """Width and height of a picture, by its header; None where the file is no picture."""
    try:
        with _opened(path) as picture:
            return picture.size
    except UnidentifiedImageError:
        return None


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """A picture as Pillow opens it; UnidentifiedImageError where it is none, MediaError where it is a broken one."""
    try:
        with path.open("rb") as file, Image.open(cast(IO[bytes], _Reader(path, file)), formats=FORMATS) as picture:
            limits.check_picture_bytes(path, path.stat().st_size)
            cast(Any, picture).decodermaxblock = BLOCK
            yield picture
    except (MediaError, UnidentifiedImageError):
        raise
    except Image.DecompressionBombError as error:
        most = f"at most {limits.MOST_PIXELS / 1e6:g} million pixels"
        raise MediaError(f"{path}: {error}; {most}: scale it down") from error
    except Exception as error:  # a decoder may fail in any way at all on damaged data
        raise MediaError(f"{path}: broken picture data ({error}); replace the file or leave it out") from error


class _Reader:
    """A file as Pillow needs it, and no more: with a name or a descriptor, it or libtiff would map the file.

    A mapped file that becomes shorter while it is read ends the process (SIGBUS).
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._file, self._deadline = file, limits.Deadline(path)

    def read(self, size: int = -1) -> bytes:
        self._deadline.check()
        return self._file.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()


def moment(source: Source) -> float | None:
    """The second whose frame stands for a source: the middle of its moment of a film; None where it has none."""
    if source.start is None and source.end is None:
        return None
    from triptych.media import video  # loads PyAV, which pictures do without

    return video.middle(Path(source.content), source.start, source.end)


def _frame(path: Path, at: float | None) -> Image.Image:
    from triptych.media import video  # loads PyAV, which pictures do without

    if not video.is_film(path):
        raise MediaError(f"{path}: cannot be read as a picture; give {READABLE}")
    return video.frames(path, [video.middle(path) if at is None else at])[0]


def _as_rgb(path: Path, picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I") or picture.mode == "F":  # Pillow would clip these to white instead of scaling them
        return Image.fromarray(_eight_bits(path, np.asarray(picture))).convert("RGB")
    if picture.mode in {"RGBA", "LA", "PA", "La", "RGBa"} or "transparency" in picture.info:
        clear = picture if picture.mode == "RGBA" else picture.convert("RGBA")
        white = Image.new("RGBA", clear.size, "white")
        return Image.alpha_composite(white, clear).convert("RGB")
    return picture.convert("RGB")


def _eight_bits(path: Path, grey: np.ndarray) -> np.ndarray:
    """Whole numbers are of 16 bits, fractions lie within 0 and 1: what cameras and scanners write."""
    most = 1.0 if grey.dtype.kind == "f" else 65_535
    low, high = grey.min(), grey.max()
    if not (low >= 0 and high <= most):  # also NaN
        raise MediaError(
            f"{path}: grey values from {low:g} to {high:g}; they should lie within 0 and {most:g}: save as 8 bits"
        )
    return (grey * 255).round().astype(np.uint8) if most == 1.0 else (grey >> 8).astype(np.uint8)
