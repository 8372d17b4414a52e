"""A made world with known answers: the data of the demo and of the tests."""

from triptych.data.world.scenes import FACTORS
from triptych.data.world.truth import Truth, read_truth
from triptych.data.world.words import phrases
from triptych.data.world.world import PRESETS, Knobs, World, make

__all__ = ["FACTORS", "PRESETS", "Knobs", "Truth", "World", "make", "phrases", "read_truth"]
