"""A small made world of which we know which pairs are wrong, and its audit."""

import csv
from pathlib import Path

import pytest

from triptych.audit.audit import Audit, audit
from triptych.data.damage import damage, swaps_of
from triptych.data.noise import read_swaps
from triptych.data.world import World, make
from triptych.encoders.efficientnet_lite0 import EfficientNetLite0
from triptych.encoders.minilm import MiniLM

# As the audit's own recipe, but smaller, and contrasted: quick on a few hundred rows.
RECIPE = """
name = "small"
[space]
width = 64
[space.encoders]
image = { name = "efficientnet_lite0" }
text = { name = "minilm" }
[[objectives]]
name = "infonce"
pairs = [["image", "text"]]
[training]
epochs = 38
batch = 64
learning_rate = 3e-3
"""
SHARE = 0.2


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """The recipe of a quick audit."""
    for encoder in (EfficientNetLite0, MiniLM):
        if encoder.missing():
            pytest.skip(f"{encoder.__name__}: {encoder.missing()}")
    path = tmp_path_factory.mktemp("recipe") / "small.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="session")
def wrong(tmp_path_factory) -> Path:
    """A manifest of 200 pictures with captions, a fifth of which belong to another."""
    made = make(World(scenes=200, captions=2, actors=1, size=48, seconds=1.0), tmp_path_factory.mktemp("audited") / "w")
    with made.open(newline="") as file:
        rows = list(csv.DictReader(file))
    right = made.with_name("right.csv")
    with right.open("w", newline="") as file:
        columns = ["id", "image", "caption_1", "caption_2"]
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return damage(right, made.with_name("wrong.csv"), SHARE, show=False)[0].path


@pytest.fixture(scope="session")
def swapped(wrong) -> set[str]:
    """Which rows are wrong."""
    return {swap.id for swap in read_swaps(swaps_of(wrong))}


@pytest.fixture(scope="session")
def audited(wrong, small) -> Audit:
    """The audit of that manifest, beside it."""
    return audit(wrong, wrong.parent / "audit", folds=2, recipe=str(small), show=False)
