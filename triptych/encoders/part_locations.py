"""Locations of the parts of an encoder in an image, an audio file or a text."""

from __future__ import annotations

import math
from collections.abc import Iterable

from triptych.interfaces import Region, Source

FULL_IMAGE: Region = (0.0, 0.0, 1.0, 1.0)


def grid_regions(rows: int, columns: int, box: Region = FULL_IMAGE, shift: float = 0.0) -> list[Region]:
    """Return the tiles of an image, or of a box in the image, row by row.

    Tiles are shifted by a fraction and clipped.
    """
    left, top, right, bottom = box
    x_spans = [_tile_span(i + shift, columns, left, right) for i in range(columns)]
    y_spans = [_tile_span(i + shift, rows, top, bottom) for i in range(rows)]
    return [(x0, y0, x1, y1) for y0, y1 in y_spans for x0, x1 in x_spans]


def square_grid_regions(parts: int, box: Region = FULL_IMAGE) -> list[Region]:
    """Return the tiles of a square grid. Parts before the grid, such as a class token, get no location."""
    side = math.isqrt(parts)
    return [()] * (parts - side * side) + grid_regions(side, side, box)


def centre_crop_region(width: float, height: float, crop_width: float, crop_height: float) -> Region:
    """Return the box of the centred crop of an image. All sizes are in the same unit."""
    width_fraction, height_fraction = min(1.0, crop_width / width), min(1.0, crop_height / height)
    return ((1 - width_fraction) / 2, (1 - height_fraction) / 2, (1 + width_fraction) / 2, (1 + height_fraction) / 2)


def time_spans(
    source: Source, parts: int, hop: float, first_centre: float, duration: float | None = None
) -> list[Region]:
    """Return one time span of `duration` seconds (default: hop) per part. The first span is centred on `first_centre`.

    Time spans are clipped at the start of the source. Time spans may exceed the end of the source, because this
    function does not know the length of the source.
    """
    start, half = source.start or 0.0, (hop if duration is None else duration) / 2
    centres = [start + first_centre + i * hop for i in range(parts)]
    return [(max(start, centre - half), centre + half) for centre in centres]


def character_spans(text: str, spans: Iterable[tuple[int, int]]) -> list[Region]:
    """Return character spans without surrounding white space.

    Special tokens, whose spans are empty, get no location.
    """
    regions: list[Region] = []
    for start, end in spans:
        token = text[start:end]
        first = start + len(token) - len(token.lstrip())
        regions.append((first, first + len(token.strip())) if token.strip() else ())
    return regions


def _tile_span(position: float, count: int, low: float, high: float) -> tuple[float, float]:
    step = (high - low) / count
    return max(low, low + position * step), min(high, low + (position + 1) * step)
