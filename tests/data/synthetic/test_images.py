"""The images of synthetic data agree with their annotations."""

from pathlib import Path

import numpy as np
from PIL import Image

from triptych.data.synthetic import FACTORS
from triptych.data.synthetic.images import COLOURS


def read_pixels(folder: Path, scene) -> np.ndarray:
    return np.asarray(Image.open(folder / f"images/{scene.id}.png"), dtype=float)


def test_object_colour_fills_its_boxes_and_nothing_outside(easy):
    folder, scenes = easy
    for scene in scenes:
        pixels = read_pixels(folder, scene)
        outside = np.ones(pixels.shape[:2], dtype=bool)
        near = {name: np.linalg.norm(pixels - value, axis=2) < 60 for name, value in COLOURS.items()}
        for annotation in scene.objects:
            for x0, y0, x1, y1 in annotation.boxes:
                fractions = {name: mask[y0:y1, x0:x1].mean() for name, mask in near.items()}
                assert max(fractions, key=lambda name: fractions[name]) == annotation.attributes.colour, (
                    scene.id,
                    fractions,
                )
                assert fractions[annotation.attributes.colour] > 0.12
                outside[y0:y1, x0:x1] = False
        assert not any(mask[outside].any() for mask in near.values())


def test_boxes_are_tight(easy):
    folder, scenes = easy
    for scene in scenes:
        pixels = read_pixels(folder, scene)
        foreground = np.abs(pixels - np.median(pixels, axis=(0, 1))).max(axis=2) > 40
        for annotation in scene.objects:
            if annotation.attributes.category == "bee":  # its wings are almost as pale as the background
                continue
            x0, y0, x1, y1 = annotation.box
            rows, columns = np.nonzero(foreground[y0:y1, x0:x1])
            margins = (columns.min(), rows.min(), x1 - x0 - 1 - columns.max(), y1 - y0 - 1 - rows.max())
            assert max(margins) <= 1, (scene.id, annotation.attributes, margins)


def test_copies_do_not_overlap_and_lie_in_the_cell_of_their_factors(dataset):
    folder, scenes, _ = dataset
    for scene in scenes:
        size = read_pixels(folder, scene).shape[0]
        covered = np.zeros((size, size), dtype=int)
        for annotation in scene.objects:
            assert len(annotation.boxes) == annotation.attributes.count
            for x0, y0, x1, y1 in annotation.boxes:
                assert 0 <= x0 < x1 <= size
                assert 0 <= y0 < y1 <= size
                covered[y0:y1, x0:x1] += 1
            x0, y0, x1, y1 = annotation.box
            assert FACTORS["side"].values[int((x0 + x1) / 2 / size * 3)] == annotation.attributes.side
            assert FACTORS["height"].values[2 - int((y0 + y1) / 2 / size * 3)] == annotation.attributes.height
        assert covered.max() == 1
