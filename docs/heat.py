"""Draws docs/heat.png, where words look in made scenes of two things: python docs/heat.py RUN WORLD"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from triptych.attribution import heat
from triptych.checkpoint import load
from triptych.data.synthetic import Truth, read_truth
from triptych.evaluation.localisation import overlap
from triptych.interfaces import Source
from triptych.space import Space

SHOWN, SIDE, GAP, LINE = 5, 168, 12, 22
HOT, FRAME = np.array([255, 60, 0]), "#111"


def warmed(picture: Image.Image, values: np.ndarray, places: list[tuple[float, ...]]) -> Image.Image:
    """A picture in grey, and red where it is hot."""
    pixels = np.asarray(picture.convert("L").convert("RGB").resize((SIDE, SIDE)), dtype=float)
    strength = np.zeros((SIDE, SIDE, 1))
    scaled = np.clip((values - values.min()) / max(1e-9, float(values.max() - values.min())), 0, 1)
    for value, (x0, y0, x1, y1) in zip(scaled, places, strict=True):
        strength[round(y0 * SIDE) : round(y1 * SIDE), round(x0 * SIDE) : round(x1 * SIDE)] = value
    mixed = pixels * (1 - 0.75 * strength) + HOT * 0.75 * strength
    return Image.fromarray(mixed.astype(np.uint8))


def nouns(truth: Truth) -> tuple[str, list] | None:
    """A caption that names both things of a scene of two, and one word for each."""
    if len(truth.performers) != 2:
        return None
    for caption in truth.captions:
        named = {w.actors[0]: w for w in reversed(caption.words) if w.factor == "category"}
        if len(named) == 2:
            return caption.text, [named[0], named[1]]
    return None


def row(space: Space, world: Path, truth: Truth) -> list[tuple[Image.Image, str]]:
    """The scene, then the heat of a word for each of its things, with that thing's boxes."""
    path = world / f"images/{truth.id}.png"
    picture, (text, words) = Image.open(path), nouns(truth) or ("", [])
    cells = [(picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS), "the scene")]
    values, pieces, regions = heat(space, Source("image", path), Source("text", text)).view_from("text")
    for word in words:
        asking = [i for i, piece in enumerate(pieces) if overlap(piece, (word.start, word.end))]
        shown = warmed(picture, values[asking].mean(dim=0).numpy(), list(regions))
        pen, scale = ImageDraw.Draw(shown), SIDE / picture.width
        for box in word.boxes:
            pen.rectangle([scale * edge for edge in box], outline=FRAME, width=2)
        cells.append((shown, f"“{word.text}”"))
    return cells


def main(run: str, world: str) -> None:
    """Lay out the first scenes of two things of the test split."""
    space, folder = load(Path(run)), Path(world)
    truths = [truth for truth in read_truth(folder) if truth.split == "test" and nouns(truth)][:SHOWN]
    sheet = Image.new("RGB", (SHOWN * (SIDE + GAP) + GAP, 3 * (SIDE + LINE + GAP) + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for column, truth in enumerate(truths):
        for line, (cell, title) in enumerate(row(space, folder, truth)):
            x, y = GAP + column * (SIDE + GAP), GAP + line * (SIDE + LINE + GAP)
            sheet.paste(cell, (x, y))
            pen.text((x, y + SIDE + 2), title, "#333", font)
    sheet.quantize(128).save(Path(__file__).with_suffix(".png"), optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
