"""What several tests share: a tiny world, and a space trained on it for a moment."""

from pathlib import Path

import pytest
import torch

from triptych.data.world import World, make
from triptych.recipe import Recipe
from triptych.training.loop import train

# Two test processes share two cores; more threads would only fight.
torch.set_num_threads(1)

QUICK = [
    "space.width=32",
    "space.encoders.audio.width=32",
    "space.encoders.image.width=32",
    "space.encoders.text.width=32",
    "space.encoders.text.layers=1",
    "training.epochs=2",
    "training.batch=16",
    "training.validate=0",
]


def identical(first, second) -> bool:
    """Whether two spaces have the same weights, bit by bit."""
    one, other = first.state_dict(), second.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """No test reads or writes the features of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIPTYCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """The manifest of 80 scenes."""
    return make(World(scenes=80, captions=2, actors=1), tmp_path_factory.mktemp("made") / "world")


@pytest.fixture(scope="session")
def quick(world) -> Recipe:
    """A tri-modal recipe that trains in about a second."""
    return Recipe.load("trimodal", [*QUICK, f"data.manifest={world}"])


@pytest.fixture(scope="session")
def run(quick, tmp_path_factory) -> Path:
    """The folder of a finished run. Read only."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(quick, folder, show=False)
    return folder
