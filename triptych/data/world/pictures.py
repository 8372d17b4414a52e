"""Draw a scene: silhouettes on a soft background, and the box of every copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from triptych.data.world.scenes import FACTORS, Actor, Scene, pick

Box = tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels; x1 and y1 are the first ones outside
Colour = tuple[int, int, int]
Point = tuple[float, float]

COLOURS: dict[str, Colour] = {
    "red": (217, 56, 58),
    "yellow": (242, 182, 12),
    "green": (56, 158, 82),
    "blue": (46, 108, 209),
    "purple": (142, 68, 173),
    "black": (44, 46, 54),
}
SHADES: dict[str, Colour] = {
    "cream": (250, 243, 228),
    "mist": (224, 233, 241),
    "rose": (247, 228, 228),
    "mint": (226, 241, 231),
    "stone": (222, 220, 216),
}
TONES: dict[str, tuple[Colour, float]] = {  # what an actor's colour is mixed with, and how much of it
    "main": ((0, 0, 0), 0.0),
    "dark": ((0, 0, 0), 0.42),
    "pale": ((255, 255, 255), 0.55),
    "light": ((255, 255, 255), 0.78),
}
HOP = 1 / 16  # of the picture
FINE = 4  # pixels are drawn this many times finer and averaged, for smooth edges


@dataclass(frozen=True)
class Ellipse:
    """An ellipse in its box; tone is a key of TONES."""

    points: tuple[Point, Point]
    tone: str = "main"


@dataclass(frozen=True)
class Polygon:
    """A filled polygon; tone is a key of TONES."""

    points: tuple[Point, ...]
    tone: str = "main"


Shape = Ellipse | Polygon


def _oval(x0: float, y0: float, x1: float, y1: float, tone: str = "main") -> Ellipse:
    return Ellipse(((x0, y0), (x1, y1)), tone)


def _shape(*points: Point, tone: str = "main") -> Polygon:
    return Polygon(points, tone)


# Each look fills a square of side 1, y downwards; later shapes lie on top.
LOOKS: dict[str, tuple[Shape, ...]] = {
    "bell": (
        _oval(0.39, 0.0, 0.61, 0.22),
        _oval(0.38, 0.78, 0.62, 1.0, "dark"),
        _oval(0.24, 0.1, 0.76, 0.64),
        _shape((0.24, 0.36), (0.76, 0.36), (0.83, 0.7), (1.0, 0.88), (0.0, 0.88), (0.17, 0.7)),
        _shape((0.33, 0.3), (0.41, 0.3), (0.35, 0.72), (0.27, 0.72), tone="light"),
    ),
    "drum": (
        _oval(0.0, 0.64, 1.0, 1.0),
        _shape((0.0, 0.26), (1.0, 0.26), (1.0, 0.82), (0.0, 0.82)),
        _shape((0.02, 0.42), (0.27, 0.84), (0.35, 0.84), (0.1, 0.42), tone="dark"),
        _shape((0.52, 0.46), (0.27, 0.84), (0.35, 0.84), (0.6, 0.46), tone="dark"),
        _shape((0.4, 0.46), (0.65, 0.84), (0.73, 0.84), (0.48, 0.46), tone="dark"),
        _shape((0.9, 0.42), (0.65, 0.84), (0.73, 0.84), (0.98, 0.42), tone="dark"),
        _oval(0.0, 0.08, 1.0, 0.46),
        _oval(0.07, 0.13, 0.93, 0.4, "light"),
    ),
    "bird": (
        _shape((0.0, 0.2), (0.38, 0.46), (0.24, 0.68)),
        _oval(0.18, 0.34, 0.84, 0.84),
        _oval(0.54, 0.12, 0.88, 0.48),
        _shape((0.84, 0.22), (1.0, 0.34), (0.84, 0.38), tone="dark"),
        _shape((0.46, 0.8), (0.52, 0.8), (0.52, 0.98), (0.46, 0.98), tone="dark"),
        _shape((0.6, 0.8), (0.66, 0.8), (0.66, 0.98), (0.6, 0.98), tone="dark"),
        _shape((0.26, 0.44), (0.66, 0.5), (0.42, 0.74), tone="dark"),
        _oval(0.69, 0.2, 0.8, 0.31, "light"),
    ),
    "frog": (
        _oval(0.0, 0.5, 0.34, 0.94),
        _oval(0.66, 0.5, 1.0, 0.94),
        _oval(0.1, 0.08, 0.44, 0.46),
        _oval(0.56, 0.08, 0.9, 0.46),
        _oval(0.06, 0.26, 0.94, 0.9),
        _oval(0.17, 0.13, 0.37, 0.36, "light"),
        _oval(0.63, 0.13, 0.83, 0.36, "light"),
        _oval(0.23, 0.19, 0.33, 0.31, "dark"),
        _oval(0.67, 0.19, 0.77, 0.31, "dark"),
        _shape((0.24, 0.56), (0.76, 0.56), (0.62, 0.68), (0.38, 0.68), tone="dark"),
    ),
    "bee": (
        _oval(0.2, 0.0, 0.52, 0.5, "pale"),
        _oval(0.5, 0.0, 0.82, 0.5, "pale"),
        _shape((0.0, 0.63), (0.16, 0.5), (0.16, 0.76)),
        _oval(0.06, 0.3, 0.86, 0.96),
        _oval(0.66, 0.38, 1.0, 0.84),
        _shape((0.24, 0.37), (0.34, 0.33), (0.34, 0.94), (0.24, 0.89), tone="light"),
        _shape((0.48, 0.3), (0.58, 0.31), (0.58, 0.95), (0.48, 0.96), tone="light"),
        _oval(0.82, 0.5, 0.92, 0.6, "light"),
    ),
    "clock": (
        _shape((0.16, 1.0), (0.26, 1.0), (0.4, 0.8), (0.28, 0.74)),
        _shape((0.84, 1.0), (0.74, 1.0), (0.6, 0.8), (0.72, 0.74)),
        _oval(0.03, 0.0, 0.97, 0.94),
        _oval(0.19, 0.16, 0.81, 0.78, "light"),
        _shape((0.46, 0.2), (0.54, 0.2), (0.54, 0.51), (0.46, 0.51), tone="dark"),
        _shape((0.46, 0.43), (0.72, 0.55), (0.69, 0.63), (0.46, 0.53), tone="dark"),
    ),
    "whistle": (
        _oval(0.0, 0.3, 0.6, 0.9),
        _shape((0.3, 0.3), (1.0, 0.3), (1.0, 0.52), (0.56, 0.56), (0.3, 0.6)),
        _shape((0.9, 0.3), (1.0, 0.3), (1.0, 0.52), (0.9, 0.53), tone="dark"),
        _oval(0.2, 0.1, 0.36, 0.3, "dark"),
        _oval(0.16, 0.46, 0.44, 0.74, "light"),
        _shape((0.56, 0.3), (0.7, 0.3), (0.62, 0.43), tone="light"),
    ),
    "horn": (
        _shape((0.62, 0.34), (0.76, 0.26), (0.96, 0.04), (0.96, 0.88), (0.76, 0.66), (0.62, 0.56)),
        _oval(0.9, 0.04, 1.0, 0.88, "dark"),
        _shape((0.06, 0.36), (0.7, 0.34), (0.7, 0.56), (0.06, 0.54)),
        _shape((0.0, 0.32), (0.08, 0.38), (0.08, 0.52), (0.0, 0.58), tone="dark"),
        _oval(0.2, 0.42, 0.62, 0.92),
        _oval(0.31, 0.57, 0.51, 0.79, "light"),
        _shape((0.3, 0.24), (0.37, 0.24), (0.37, 0.42), (0.3, 0.42), tone="dark"),
        _shape((0.45, 0.24), (0.52, 0.24), (0.52, 0.42), (0.45, 0.42), tone="dark"),
    ),
}

# Where the copies of one actor may stand, in steps from the middle of its cell.
LAYOUTS: dict[int, tuple[tuple[Point, ...], ...]] = {
    1: (((0, 0),),),
    2: (((-0.5, 0), (0.5, 0)), ((0, -0.5), (0, 0.5)), ((-0.5, -0.5), (0.5, 0.5)), ((-0.5, 0.5), (0.5, -0.5))),
    3: (((-0.5, 0.5), (0.5, 0.5), (0, -0.5)), ((-0.5, -0.5), (0.5, -0.5), (0, 0.5))),
    4: (((-0.5, -0.5), (0.5, -0.5), (-0.5, 0.5), (0.5, 0.5)),),
}


def draw(
    scene: Scene, size: int, jitter: float, noise: float, rng: np.random.Generator, hopping: Sequence[bool] = ()
) -> tuple[Image.Image, list[list[Box]]]:
    """The picture of a scene, and for each actor the boxes of its copies; those that hop are off their place."""
    canvas = Image.new("RGB", (size * FINE, size * FINE), SHADES[scene.shade])
    pen = ImageDraw.Draw(canvas)
    boxes = [
        _draw_actor(pen, actor, size, jitter, rng, hops=bool(hopping) and hopping[place])
        for place, actor in enumerate(scene.actors)
    ]
    pixels = np.asarray(canvas.reduce(FINE), dtype=np.float32)
    # a little light from above keeps the background from being one exact value
    pixels = pixels * np.linspace(1.015, 0.965, size, dtype=np.float32)[:, None, None]
    pixels = pixels + rng.standard_normal(pixels.shape, dtype=np.float32) * (255 * noise)
    return Image.fromarray(np.clip(pixels + 0.5, 0, 255).astype(np.uint8)), boxes


def _draw_actor(
    pen: ImageDraw.ImageDraw, actor: Actor, size: int, jitter: float, rng: np.random.Generator, hops: bool
) -> list[Box]:
    cell = size / 3
    layout = pick(LAYOUTS[actor.count], rng)
    # one copy has the cell for itself; several share it two by two, with a pixel between them
    largest, shrink = (0.88 * cell, 0.35) if actor.count == 1 else (0.49 * cell, 0.14)
    side = int(largest * (1 - shrink * jitter * rng.random()))
    step = side + 1
    slack = max(0.0, cell - side - step * (actor.count > 1)) / 2
    shift = slack * jitter * rng.uniform(-1, 1, size=2)
    column, row = FACTORS["side"].values.index(actor.side), FACTORS["height"].values.index(actor.height)
    middle_x, middle_y = (column + 0.5) * cell + shift[0], (2.5 - row) * cell + shift[1]
    if hops:
        middle_y += size * HOP if actor.height == "high" else -size * HOP  # what is high has no room above
    mirrored = bool(rng.random() < 0.5)
    boxes = []
    for across, down in layout:
        left, top = int(middle_x + across * step - side / 2), int(middle_y + down * step - side / 2)
        boxes.append(_draw_thing(pen, actor, (left, top), side, mirrored))
    return boxes


def _draw_thing(pen: ImageDraw.ImageDraw, actor: Actor, corner: Point, side: int, mirrored: bool) -> Box:
    main = COLOURS[actor.colour]
    fills = {tone: _mix(main, other, share) for tone, (other, share) in TONES.items()}
    left, top = corner[0] * FINE, corner[1] * FINE
    scale = side * FINE - 1  # Pillow also fills the pixel that a shape ends on
    every: list[Point] = []
    for shape in LOOKS[actor.thing]:
        points = [(left + scale * (1 - x if mirrored else x), top + scale * y) for x, y in shape.points]
        every += points
        if isinstance(shape, Ellipse):
            (x0, y0), (x1, y1) = points
            pen.ellipse((min(x0, x1), y0, max(x0, x1), y1), fill=fills[shape.tone])
        else:
            pen.polygon(points, fill=fills[shape.tone])
    xs, ys = [x / FINE for x, _ in every], [y / FINE for _, y in every]
    return int(min(xs)), int(min(ys)), int(max(xs)) + 1, int(max(ys)) + 1


def _mix(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue
