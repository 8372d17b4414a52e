"""Picture files to RGB pixels."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from triptych.errors import MediaError

# Pillow warns of what we refuse or repair ourselves; set once here, as filters are not safe to change on threads.
warnings.filterwarnings("ignore", module=r"PIL\.")

MOST_PIXELS = 64_000_000
READABLE = "png, jpg, webp, gif, bmp or tiff"


def read(path: Path, size: int) -> np.ndarray:
    """RGB pixels (size, size, 3) uint8: turned as EXIF says, transparency on white, squeezed to a square."""
    if not path.is_file():
        raise MediaError(f"{path}: no such picture file")
    try:
        with Image.open(path) as picture:
            _check_size(path, picture)
            picture.draft("RGB", (size, size))  # lets JPEG decode at a fraction of its size
            upright = ImageOps.exif_transpose(picture)
            pixels = _on_white(upright).resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)
            return np.asarray(pixels)
    except MediaError:
        raise
    except Image.DecompressionBombError as error:
        raise MediaError(f"{path}: {error}; at most {MOST_PIXELS / 1e6:g} million pixels: scale it down") from error
    except UnidentifiedImageError as error:
        raise MediaError(f"{path}: cannot be read as a picture; give {READABLE}") from error
    except Exception as error:  # a decoder may fail in any way at all on damaged data
        raise MediaError(f"{path}: broken picture data ({error}); replace the file or leave it out") from error


def _check_size(path: Path, picture: Image.Image) -> None:
    if picture.width * picture.height > MOST_PIXELS:
        found = f"{picture.width} × {picture.height} pixels"
        raise MediaError(f"{path}: {found}; at most {MOST_PIXELS / 1e6:g} million: scale it down")


def _on_white(picture: Image.Image) -> Image.Image:
    if picture.mode in {"RGBA", "LA", "PA"} or "transparency" in picture.info:
        clear = picture.convert("RGBA")
        white = Image.new("RGBA", clear.size, "white")
        return Image.alpha_composite(white, clear).convert("RGB")
    if picture.mode.startswith("I;16"):  # Pillow clips 16-bit grey to white instead of scaling it
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    return picture.convert("RGB")
