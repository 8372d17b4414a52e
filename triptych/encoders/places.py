"""Where the parts of an encoder lie in a picture, a sound or a text."""

from __future__ import annotations

import math
from collections.abc import Iterable

from triptych.contracts import Place, Source

WHOLE: Place = (0.0, 0.0, 1.0, 1.0)


def grid(rows: int, columns: int, within: Place = WHOLE, shift: float = 0.0) -> list[Place]:
    """Tiles of a picture, or of a box in it, row by row; shifted by a share of a tile, and cut at the box's edges."""
    left, top, right, bottom = within
    across = [_tile(i + shift, columns, left, right) for i in range(columns)]
    down = [_tile(i + shift, rows, top, bottom) for i in range(rows)]
    return [(x0, y0, x1, y1) for y0, y1 in down for x0, x1 in across]


def square_grid(parts: int, within: Place = WHOLE) -> list[Place]:
    """Tiles of so many rows as columns; parts that come before them, such as a class token, lie nowhere."""
    side = math.isqrt(parts)
    return [()] * (parts - side * side) + grid(side, side, within)


def middle(width: float, height: float, across: float, down: float) -> Place:
    """The box in the middle of a picture that is so wide and so high, in the picture's own unit."""
    x, y = min(1.0, across / width), min(1.0, down / height)
    return ((1 - x) / 2, (1 - y) / 2, (1 + x) / 2, (1 + y) / 2)


def steps(source: Source, parts: int, hop: float, first: float, length: float | None = None) -> list[Place]:
    """Moments of `length` (else of one hop) seconds, one each hop; the middle of the first is `first` after the start.

    They are cut at the start of what is heard, never at its end: where that is, the parts do not tell.
    """
    start, half = source.start or 0.0, (hop if length is None else length) / 2
    middles = [start + first + i * hop for i in range(parts)]
    return [(max(start, middle - half), middle + half) for middle in middles]


def characters(words: str, spans: Iterable[tuple[int, int]]) -> list[Place]:
    """Characters of a text without the white space around them; an empty span is a mark, which lies nowhere."""
    found: list[Place] = []
    for start, end in spans:
        piece = words[start:end]
        first = start + len(piece) - len(piece.lstrip())
        found.append((first, first + len(piece.strip())) if piece.strip() else ())
    return found


def _tile(place: float, count: int, low: float, high: float) -> tuple[float, float]:
    step = (high - low) / count
    return max(low, low + place * step), min(high, low + (place + 1) * step)
