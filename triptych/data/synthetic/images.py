"""Draw the image of a scene: silhouettes on a plain background, with the box of every copy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from triptych.data.synthetic.scenes import FACTORS, Scene, SceneObject, choose_uniformly

Box = tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels; x1 and y1 are exclusive
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
BACKGROUND_COLOURS: dict[str, Colour] = {
    "cream": (250, 243, 228),
    "mist": (224, 233, 241),
    "rose": (247, 228, 228),
    "mint": (226, 241, 231),
    "stone": (222, 220, 216),
}
# The colour to mix with the colour of the object, and the weight of the mixed-in colour.
TONES: dict[str, tuple[Colour, float]] = {
    "main": ((0, 0, 0), 0.0),
    "dark": ((0, 0, 0), 0.42),
    "pale": ((255, 255, 255), 0.55),
    "light": ((255, 255, 255), 0.78),
}
HOP = 1 / 16  # height of a hop, as a fraction of the image
SUPERSAMPLING = 4  # images are drawn at this multiple of their size, and then reduced


@dataclass(frozen=True)
class SilhouetteShape:
    """A filled shape. The points are the corners of a polygon, or two opposite corners of the box of an ellipse."""

    points: tuple[Point, ...]
    tone: str  # a key of TONES


def _make_ellipse(x0: float, y0: float, x1: float, y1: float, tone: str = "main") -> SilhouetteShape:
    return SilhouetteShape(((x0, y0), (x1, y1)), tone)


def _make_polygon(*points: Point, tone: str = "main") -> SilhouetteShape:
    return SilhouetteShape(points, tone)


# Each silhouette fills the unit square. The y axis points downwards. Later shapes cover earlier shapes.
SILHOUETTES: dict[str, tuple[SilhouetteShape, ...]] = {
    "bell": (
        _make_ellipse(0.39, 0.0, 0.61, 0.22),
        _make_ellipse(0.38, 0.78, 0.62, 1.0, "dark"),
        _make_ellipse(0.24, 0.1, 0.76, 0.64),
        _make_polygon((0.24, 0.36), (0.76, 0.36), (0.83, 0.7), (1.0, 0.88), (0.0, 0.88), (0.17, 0.7)),
        _make_polygon((0.33, 0.3), (0.41, 0.3), (0.35, 0.72), (0.27, 0.72), tone="light"),
    ),
    "drum": (
        _make_ellipse(0.0, 0.64, 1.0, 1.0),
        _make_polygon((0.0, 0.26), (1.0, 0.26), (1.0, 0.82), (0.0, 0.82)),
        _make_polygon((0.02, 0.42), (0.27, 0.84), (0.35, 0.84), (0.1, 0.42), tone="dark"),
        _make_polygon((0.52, 0.46), (0.27, 0.84), (0.35, 0.84), (0.6, 0.46), tone="dark"),
        _make_polygon((0.4, 0.46), (0.65, 0.84), (0.73, 0.84), (0.48, 0.46), tone="dark"),
        _make_polygon((0.9, 0.42), (0.65, 0.84), (0.73, 0.84), (0.98, 0.42), tone="dark"),
        _make_ellipse(0.0, 0.08, 1.0, 0.46),
        _make_ellipse(0.07, 0.13, 0.93, 0.4, "light"),
    ),
    "bird": (
        _make_polygon((0.0, 0.2), (0.38, 0.46), (0.24, 0.68)),
        _make_ellipse(0.18, 0.34, 0.84, 0.84),
        _make_ellipse(0.54, 0.12, 0.88, 0.48),
        _make_polygon((0.84, 0.22), (1.0, 0.34), (0.84, 0.38), tone="dark"),
        _make_polygon((0.46, 0.8), (0.52, 0.8), (0.52, 0.98), (0.46, 0.98), tone="dark"),
        _make_polygon((0.6, 0.8), (0.66, 0.8), (0.66, 0.98), (0.6, 0.98), tone="dark"),
        _make_polygon((0.26, 0.44), (0.66, 0.5), (0.42, 0.74), tone="dark"),
        _make_ellipse(0.69, 0.2, 0.8, 0.31, "light"),
    ),
    "frog": (
        _make_ellipse(0.0, 0.5, 0.34, 0.94),
        _make_ellipse(0.66, 0.5, 1.0, 0.94),
        _make_ellipse(0.1, 0.08, 0.44, 0.46),
        _make_ellipse(0.56, 0.08, 0.9, 0.46),
        _make_ellipse(0.06, 0.26, 0.94, 0.9),
        _make_ellipse(0.17, 0.13, 0.37, 0.36, "light"),
        _make_ellipse(0.63, 0.13, 0.83, 0.36, "light"),
        _make_ellipse(0.23, 0.19, 0.33, 0.31, "dark"),
        _make_ellipse(0.67, 0.19, 0.77, 0.31, "dark"),
        _make_polygon((0.24, 0.56), (0.76, 0.56), (0.62, 0.68), (0.38, 0.68), tone="dark"),
    ),
    "bee": (
        _make_ellipse(0.2, 0.0, 0.52, 0.5, "pale"),
        _make_ellipse(0.5, 0.0, 0.82, 0.5, "pale"),
        _make_polygon((0.0, 0.63), (0.16, 0.5), (0.16, 0.76)),
        _make_ellipse(0.06, 0.3, 0.86, 0.96),
        _make_ellipse(0.66, 0.38, 1.0, 0.84),
        _make_polygon((0.24, 0.37), (0.34, 0.33), (0.34, 0.94), (0.24, 0.89), tone="light"),
        _make_polygon((0.48, 0.3), (0.58, 0.31), (0.58, 0.95), (0.48, 0.96), tone="light"),
        _make_ellipse(0.82, 0.5, 0.92, 0.6, "light"),
    ),
    "clock": (
        _make_polygon((0.16, 1.0), (0.26, 1.0), (0.4, 0.8), (0.28, 0.74)),
        _make_polygon((0.84, 1.0), (0.74, 1.0), (0.6, 0.8), (0.72, 0.74)),
        _make_ellipse(0.03, 0.0, 0.97, 0.94),
        _make_ellipse(0.19, 0.16, 0.81, 0.78, "light"),
        _make_polygon((0.46, 0.2), (0.54, 0.2), (0.54, 0.51), (0.46, 0.51), tone="dark"),
        _make_polygon((0.46, 0.43), (0.72, 0.55), (0.69, 0.63), (0.46, 0.53), tone="dark"),
    ),
    "whistle": (
        _make_ellipse(0.0, 0.3, 0.6, 0.9),
        _make_polygon((0.3, 0.3), (1.0, 0.3), (1.0, 0.52), (0.56, 0.56), (0.3, 0.6)),
        _make_polygon((0.9, 0.3), (1.0, 0.3), (1.0, 0.52), (0.9, 0.53), tone="dark"),
        _make_ellipse(0.2, 0.1, 0.36, 0.3, "dark"),
        _make_ellipse(0.16, 0.46, 0.44, 0.74, "light"),
        _make_polygon((0.56, 0.3), (0.7, 0.3), (0.62, 0.43), tone="light"),
    ),
    "horn": (
        _make_polygon((0.62, 0.34), (0.76, 0.26), (0.96, 0.04), (0.96, 0.88), (0.76, 0.66), (0.62, 0.56)),
        _make_ellipse(0.9, 0.04, 1.0, 0.88, "dark"),
        _make_polygon((0.06, 0.36), (0.7, 0.34), (0.7, 0.56), (0.06, 0.54)),
        _make_polygon((0.0, 0.32), (0.08, 0.38), (0.08, 0.52), (0.0, 0.58), tone="dark"),
        _make_ellipse(0.2, 0.42, 0.62, 0.92),
        _make_ellipse(0.31, 0.57, 0.51, 0.79, "light"),
        _make_polygon((0.3, 0.24), (0.37, 0.24), (0.37, 0.42), (0.3, 0.42), tone="dark"),
        _make_polygon((0.45, 0.24), (0.52, 0.24), (0.52, 0.42), (0.45, 0.42), tone="dark"),
    ),
}

# Positions of the copies of an object, in steps from the centre of its cell.
LAYOUTS: dict[int, tuple[tuple[Point, ...], ...]] = {
    1: (((0, 0),),),
    2: (((-0.5, 0), (0.5, 0)), ((0, -0.5), (0, 0.5)), ((-0.5, -0.5), (0.5, 0.5)), ((-0.5, 0.5), (0.5, -0.5))),
    3: (((-0.5, 0.5), (0.5, 0.5), (0, -0.5)), ((-0.5, -0.5), (0.5, -0.5), (0, 0.5))),
    4: (((-0.5, -0.5), (0.5, -0.5), (-0.5, 0.5), (0.5, 0.5)),),
}


def draw_image(
    scene: Scene, size: int, jitter: float, noise: float, rng: np.random.Generator, is_hopping: Sequence[bool] = ()
) -> tuple[Image.Image, list[list[Box]]]:
    """Draw a scene. Return the image and, for each object, the boxes of its copies. Hopping objects are displaced."""
    canvas = Image.new("RGB", (size * SUPERSAMPLING, size * SUPERSAMPLING), BACKGROUND_COLOURS[scene.background_colour])
    pen = ImageDraw.Draw(canvas)
    boxes = [
        _draw_object(pen, obj, size, jitter, rng, is_hopping=bool(is_hopping) and is_hopping[index])
        for index, obj in enumerate(scene.objects)
    ]
    pixels = np.asarray(canvas.reduce(SUPERSAMPLING), dtype=np.float32)
    # A vertical gradient keeps the background from being one constant value.
    pixels = pixels * np.linspace(1.015, 0.965, size, dtype=np.float32)[:, None, None]
    pixels = pixels + rng.standard_normal(pixels.shape, dtype=np.float32) * (255 * noise)
    return Image.fromarray(np.clip(pixels + 0.5, 0, 255).astype(np.uint8)), boxes


def _draw_object(
    pen: ImageDraw.ImageDraw, obj: SceneObject, size: int, jitter: float, rng: np.random.Generator, is_hopping: bool
) -> list[Box]:
    cell = size / 3
    layout = choose_uniformly(LAYOUTS[obj.count], rng)
    # A single copy fills the cell. Several copies share the cell in a grid of 2 × 2, one pixel apart.
    largest, shrink = (0.88 * cell, 0.35) if obj.count == 1 else (0.49 * cell, 0.14)
    side = int(largest * (1 - shrink * jitter * rng.random()))
    step = side + 1
    slack = max(0.0, cell - side - step * (obj.count > 1)) / 2
    shift = slack * jitter * rng.uniform(-1, 1, size=2)
    column, row = FACTORS["side"].values.index(obj.side), FACTORS["height"].values.index(obj.height)
    middle_x, middle_y = (column + 0.5) * cell + shift[0], (2.5 - row) * cell + shift[1]
    if is_hopping:
        middle_y += size * HOP if obj.height == "high" else -size * HOP  # objects at the top hop downwards
    is_mirrored = bool(rng.random() < 0.5)
    boxes = []
    for across, down in layout:
        left, top = int(middle_x + across * step - side / 2), int(middle_y + down * step - side / 2)
        boxes.append(_draw_copy(pen, obj, (left, top), side, is_mirrored))
    return boxes


def _draw_copy(pen: ImageDraw.ImageDraw, obj: SceneObject, corner: Point, side: int, is_mirrored: bool) -> Box:
    main = COLOURS[obj.colour]
    fills = {tone: _mix_colours(main, other, weight) for tone, (other, weight) in TONES.items()}
    left, top = corner[0] * SUPERSAMPLING, corner[1] * SUPERSAMPLING
    scale = side * SUPERSAMPLING - 1  # Pillow includes the end pixel of a shape
    all_points: list[Point] = []
    for shape in SILHOUETTES[obj.category]:
        points = [(left + scale * (1 - x if is_mirrored else x), top + scale * y) for x, y in shape.points]
        all_points += points
        if len(points) == 2:
            (x0, y0), (x1, y1) = points
            pen.ellipse((min(x0, x1), y0, max(x0, x1), y1), fill=fills[shape.tone])
        else:
            pen.polygon(points, fill=fills[shape.tone])
    xs, ys = [x / SUPERSAMPLING for x, _ in all_points], [y / SUPERSAMPLING for _, y in all_points]
    return int(min(xs)), int(min(ys)), int(max(xs)) + 1, int(max(ys)) + 1


def _mix_colours(colour: Colour, other: Colour, weight: float) -> Colour:
    red, green, blue = (round(a + (b - a) * weight) for a, b in zip(colour, other, strict=True))
    return red, green, blue
