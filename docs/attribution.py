"""Draw docs/attribution.png, the attribution of words in synthetic scenes: python docs/attribution.py RUN DATA"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from triptych.attribution import compute_attribution
from triptych.checkpoint import load
from triptych.data.synthetic import SceneAnnotation, read_annotations
from triptych.evaluation.localisation import intersection_size
from triptych.interfaces import Region, Source
from triptych.space import Space

NUM_SCENES, SIDE, GAP, LINE = 5, 168, 12, 22
HIGHLIGHT, FRAME = np.array([255, 60, 0]), "#111"


def overlay_attribution(image: Image.Image, values: np.ndarray, regions: list[Region]) -> Image.Image:
    """Return the image in grey, with the attribution of its regions in red."""
    pixels = np.asarray(image.convert("L").convert("RGB").resize((SIDE, SIDE)), dtype=float)
    strength = np.zeros((SIDE, SIDE, 1))
    scaled = np.clip((values - values.min()) / max(1e-9, float(values.max() - values.min())), 0, 1)
    for value, (x0, y0, x1, y1) in zip(scaled, regions, strict=True):
        strength[round(y0 * SIDE) : round(y1 * SIDE), round(x0 * SIDE) : round(x1 * SIDE)] = value
    mixed = pixels * (1 - 0.75 * strength) + HIGHLIGHT * 0.75 * strength
    return Image.fromarray(mixed.astype(np.uint8))


def find_nouns(scene: SceneAnnotation) -> tuple[str, list] | None:
    """Return a caption that names both objects of a scene with two objects, and one word for each."""
    if len(scene.objects) != 2:
        return None
    for caption in scene.captions:
        words = {w.object_indices[0]: w for w in reversed(caption.words) if w.factor == "category"}
        if len(words) == 2:
            return caption.text, [words[0], words[1]]
    return None


def draw_scene(space: Space, folder: Path, scene: SceneAnnotation) -> list[tuple[Image.Image, str]]:
    """Return the scene, then the attribution of a word for each of its objects, with the boxes of that object."""
    path = folder / f"images/{scene.id}.png"
    image, (text, words) = Image.open(path), find_nouns(scene) or ("", [])
    cells = [(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS), "the scene")]
    values, tokens, regions = compute_attribution(space, Source("image", path), Source("text", text)).view_from("text")
    for word in words:
        selected = [i for i, token in enumerate(tokens) if intersection_size(token, (word.start, word.end))]
        cell = overlay_attribution(image, values[selected].mean(dim=0).numpy(), list(regions))
        pen, scale = ImageDraw.Draw(cell), SIDE / image.width
        for box in word.boxes:
            pen.rectangle([scale * edge for edge in box], outline=FRAME, width=2)
        cells.append((cell, f"“{word.text}”"))
    return cells


def main(run: str, data: str) -> None:
    """Draw the first scenes with two objects of the test split."""
    space, folder = load(Path(run)), Path(data)
    scenes = [scene for scene in read_annotations(folder) if scene.split == "test" and find_nouns(scene)][:NUM_SCENES]
    sheet = Image.new("RGB", (NUM_SCENES * (SIDE + GAP) + GAP, 3 * (SIDE + LINE + GAP) + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for column, scene in enumerate(scenes):
        for line, (cell, title) in enumerate(draw_scene(space, folder, scene)):
            x, y = GAP + column * (SIDE + GAP), GAP + line * (SIDE + LINE + GAP)
            sheet.paste(cell, (x, y))
            pen.text((x, y + SIDE + 2), title, "#333", font)
    sheet.quantize(128).save(Path(__file__).with_suffix(".png"), optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
