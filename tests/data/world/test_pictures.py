"""The pictures of a made world really show what its truth says."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triptych.data.world import FACTORS, World, make, read_truth
from triptych.data.world.pictures import COLOURS

WORLDS = {
    "easy": World(scenes=300, seed=5, novel=0.1),
    "hard": World(scenes=60, actors=3, difficulty="hard", size=96),
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Of each world its folder, its truth and its settings."""
    folders = {name: make(world, tmp_path_factory.mktemp("worlds") / name).parent for name, world in WORLDS.items()}
    return {name: (folder, read_truth(folder), WORLDS[name]) for name, folder in folders.items()}


@pytest.fixture(params=list(WORLDS))
def world(request, worlds):
    return worlds[request.param]


@pytest.fixture
def easy(worlds):
    return worlds["easy"][:2]


def pixels_of(folder: Path, truth) -> np.ndarray:
    return np.asarray(Image.open(folder / f"images/{truth.id}.png"), dtype=float)


def test_boxes_hold_the_colour_and_nothing_outside_does(easy):
    folder, truths = easy
    for truth in truths:
        pixels = pixels_of(folder, truth)
        outside = np.ones(pixels.shape[:2], dtype=bool)
        near = {name: np.linalg.norm(pixels - value, axis=2) < 60 for name, value in COLOURS.items()}
        for each in truth.performers:
            for x0, y0, x1, y1 in each.boxes:
                shares = {name: mask[y0:y1, x0:x1].mean() for name, mask in near.items()}
                assert max(shares, key=lambda name: shares[name]) == each.actor.colour, (truth.id, shares)
                assert shares[each.actor.colour] > 0.12
                outside[y0:y1, x0:x1] = False
        assert not any(mask[outside].any() for mask in near.values())


def test_boxes_are_tight(easy):
    folder, truths = easy
    for truth in truths:
        pixels = pixels_of(folder, truth)
        strange = np.abs(pixels - np.median(pixels, axis=(0, 1))).max(axis=2) > 40
        for each in truth.performers:
            if each.actor.thing == "bee":  # its wings are almost as pale as the background
                continue
            x0, y0, x1, y1 = each.box
            rows, columns = np.nonzero(strange[y0:y1, x0:x1])
            found = (columns.min(), rows.min(), x1 - x0 - 1 - columns.max(), y1 - y0 - 1 - rows.max())
            assert max(found) <= 1, (truth.id, each.actor, found)


def test_copies_stand_apart_in_the_place_the_factors_name(world):
    folder, truths, _ = world
    for truth in truths:
        size = pixels_of(folder, truth).shape[0]
        covered = np.zeros((size, size), dtype=int)
        for each in truth.performers:
            assert len(each.boxes) == each.actor.count
            for x0, y0, x1, y1 in each.boxes:
                assert 0 <= x0 < x1 <= size
                assert 0 <= y0 < y1 <= size
                covered[y0:y1, x0:x1] += 1
            x0, y0, x1, y1 = each.box
            assert FACTORS["side"].values[int((x0 + x1) / 2 / size * 3)] == each.actor.side
            assert FACTORS["height"].values[2 - int((y0 + y1) / 2 / size * 3)] == each.actor.height
        assert covered.max() == 1
