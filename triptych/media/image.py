"""Picture files to RGB pixels."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from triptych.errors import MediaError

MOST_PIXELS = 64_000_000
READABLE = "png, jpg, webp, gif, bmp or tiff"


def read(path: Path, size: int) -> np.ndarray:
    """RGB pixels (size, size, 3) uint8: turned as EXIF says, transparency on white, squeezed to a square."""
    if not path.is_file():
        raise MediaError(f"{path}: no such picture file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own size warning: our limit below is stricter and clearer
            with Image.open(path) as picture:
                if picture.width * picture.height > MOST_PIXELS:
                    raise MediaError(
                        f"{path}: {picture.width} × {picture.height} pixels; at most {MOST_PIXELS / 1e6:g} million: "
                        "scale it down"
                    )
                picture.draft("RGB", (size, size))  # lets JPEG decode at a fraction of its size
                upright = ImageOps.exif_transpose(picture)
                pixels = _on_white(upright).resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)
                return np.asarray(pixels)
    except Image.DecompressionBombError as error:
        raise MediaError(f"{path}: {error}; at most {MOST_PIXELS / 1e6:g} million pixels: scale it down") from error
    except UnidentifiedImageError as error:
        raise MediaError(f"{path}: cannot be read as a picture; give {READABLE}") from error
    except (OSError, ValueError, SyntaxError, EOFError, IndexError) as error:
        raise MediaError(f"{path}: broken picture data ({error}); replace the file or leave it out") from error


def _on_white(picture: Image.Image) -> Image.Image:
    if picture.mode in {"RGBA", "LA", "PA"} or "transparency" in picture.info:
        clear = picture.convert("RGBA")
        white = Image.new("RGBA", clear.size, "white")
        return Image.alpha_composite(white, clear).convert("RGB")
    if picture.mode.startswith("I;16"):  # Pillow clips 16-bit grey to white instead of scaling it
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    return picture.convert("RGB")
