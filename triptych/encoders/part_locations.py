"""Where the parts of an encoder lie in a picture, a sound or a text."""

from __future__ import annotations

import math
from collections.abc import Iterable

from triptych.interfaces import Region, Source

FULL_IMAGE: Region = (0.0, 0.0, 1.0, 1.0)


def grid_regions(rows: int, columns: int, box: Region = FULL_IMAGE, shift: float = 0.0) -> list[Region]:
    """Tiles of a picture, or of a box in it, row by row; shifted by a share of a tile, and cut at the box's edges."""
    left, top, right, bottom = box
    x_spans = [_tile_span(i + shift, columns, left, right) for i in range(columns)]
    y_spans = [_tile_span(i + shift, rows, top, bottom) for i in range(rows)]
    return [(x0, y0, x1, y1) for y0, y1 in y_spans for x0, x1 in x_spans]


def square_grid_regions(parts: int, box: Region = FULL_IMAGE) -> list[Region]:
    """Tiles of so many rows as columns; parts that come before them, such as a class token, lie nowhere."""
    side = math.isqrt(parts)
    return [()] * (parts - side * side) + grid_regions(side, side, box)


def centre_crop_region(width: float, height: float, crop_width: float, crop_height: float) -> Region:
    """The box in the middle of a picture that is so wide and so high, in the picture's own unit."""
    width_fraction, height_fraction = min(1.0, crop_width / width), min(1.0, crop_height / height)
    return ((1 - width_fraction) / 2, (1 - height_fraction) / 2, (1 + width_fraction) / 2, (1 + height_fraction) / 2)


def time_spans(
    source: Source, parts: int, hop: float, first_centre: float, duration: float | None = None
) -> list[Region]:
    """Moments of `max_length` (else of one hop) seconds, one each hop; the middle of the first is `first` after the start.

    They are cut at the start of what is heard, never at its end: where that is, the parts do not tell.
    """
    start, half = source.start or 0.0, (hop if duration is None else duration) / 2
    centres = [start + first_centre + i * hop for i in range(parts)]
    return [(max(start, centre - half), centre + half) for centre in centres]


def character_spans(text: str, spans: Iterable[tuple[int, int]]) -> list[Region]:
    """Characters of a text without the white space around them; an empty span is a mark, which lies nowhere."""
    regions: list[Region] = []
    for start, end in spans:
        token = text[start:end]
        first = start + len(token) - len(token.lstrip())
        regions.append((first, first + len(token.strip())) if token.strip() else ())
    return regions


def _tile_span(position: float, count: int, low: float, high: float) -> tuple[float, float]:
    step = (high - low) / count
    return max(low, low + position * step), min(high, low + (position + 1) * step)
