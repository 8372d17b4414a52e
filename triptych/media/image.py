"""Picture files, and frames of films, to RGB pixels."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from triptych.errors import MediaError
from triptych.media import limits

if TYPE_CHECKING:
    from triptych.contracts import Source

# Pillow warns of what we refuse or repair ourselves; set once here, as filters are not safe to change on threads.
warnings.filterwarnings("ignore", module=r"PIL\.")

READABLE = "png, jpg, webp, gif, bmp, tiff, or a film"
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # others run programs or read other files


def read(path: Path, size: int, at: float | None = None) -> np.ndarray:
    """RGB pixels (size, size, 3) uint8, squeezed to a square; of a film the frame at a second, else in its middle."""
    return np.asarray(load(path, size, at).resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0))


def load(path: Path, size: int = 0, at: float | None = None) -> Image.Image:
    """An RGB picture: turned as EXIF says, transparency on white; of a film the frame at a second, else in its middle.

    Where it will be scaled to `size`, a JPEG is decoded at a fraction of its own, never below it.
    """
    limits.check_file(path, "picture")
    try:
        with Image.open(path, formats=FORMATS) as picture:
            limits.check_pixels(path, picture.width, picture.height)
            if size:
                picture.draft("RGB", (size, size))
            return _as_rgb(path, ImageOps.exif_transpose(picture))
    except MediaError:
        raise
    except Image.DecompressionBombError as error:
        most = f"at most {limits.MOST_PIXELS / 1e6:g} million pixels"
        raise MediaError(f"{path}: {error}; {most}: scale it down") from error
    except UnidentifiedImageError:
        return _frame(path, at)
    except Exception as error:  # a decoder may fail in any way at all on damaged data
        raise MediaError(f"{path}: broken picture data ({error}); replace the file or leave it out") from error


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
        clear = picture.convert("RGBA")
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
