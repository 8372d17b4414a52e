"""Shared fixtures: a small synthetic data set, and a space trained on it briefly."""

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from bench.real_data import install_weights
from tests.plugin_packages import package_folder
from triptych.data.synthetic import SyntheticConfig, generate
from triptych.encoders.weights import FOLDER_VARIABLE
from triptych.recipe import Recipe
from triptych.training.loop import train

# No test depends on the clock: an example may take as long as a busy machine needs.
hypothesis.settings.register_profile("triptych", deadline=None)
hypothesis.settings.load_profile("triptych")

# Two test processes share two cores.
torch.set_num_threads(1)

TINY_OVERRIDES = [
    "space.embed_dim=32",
    "space.encoders.audio.feature_dim=32",
    "space.encoders.image.feature_dim=32",
    "space.encoders.text.feature_dim=32",
    "space.encoders.text.num_layers=1",
    "training.epochs=2",
    "training.batch_size=16",
    "training.eval_every=0",
]


def have_identical_weights(first, second) -> bool:
    """Return whether two spaces have bit-identical weights."""
    first_weights, second_weights = first.state_dict(), second.state_dict()
    return first_weights.keys() == second_weights.keys() and all(
        torch.equal(first_weights[name], second_weights[name]) for name in first_weights
    )


@pytest.fixture(scope="session", autouse=True)
def isolated_folders(tmp_path_factory):
    """Use a temporary feature cache and a temporary folder of weights instead of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIPTYCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("weights")))
        install_weights()
        yield


@pytest.fixture(scope="session")
def synthetic_manifest(tmp_path_factory) -> Path:
    """The manifest of 80 synthetic scenes."""
    return generate(SyntheticConfig(scenes=80, captions=2, max_objects=1), tmp_path_factory.mktemp("made") / "world")


@pytest.fixture(scope="session")
def tiny_recipe(synthetic_manifest) -> Recipe:
    """A recipe for three modalities that trains in about a second."""
    return Recipe.load("trimodal", [*TINY_OVERRIDES, f"data.manifest={synthetic_manifest}"])


@pytest.fixture(scope="session")
def run_dir(tiny_recipe, tmp_path_factory) -> Path:
    """The folder of a finished run. Tests must not change it."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(tiny_recipe, folder, show_progress=False)
    return folder


@pytest.fixture
def site(tmp_path) -> Iterator[Path]:
    """A folder on sys.path, for packages with plug-ins."""
    with package_folder(tmp_path / "site") as folder:
        yield folder


@pytest.fixture(scope="session")
def image_text_run(tiny_recipe, tmp_path_factory) -> Path:
    """The folder of a finished run without audio. Tests must not change it."""
    folder = tmp_path_factory.mktemp("trained") / "image-text"
    train(tiny_recipe.restrict_to(("image", "text")), folder, seed=1, show_progress=False)
    return folder


@pytest.fixture(scope="session")
def audio_text_run(tiny_recipe, tmp_path_factory) -> Path:
    """The folder of a finished run without images, with another dimension. Tests must not change it."""
    folder = tmp_path_factory.mktemp("trained") / "audio-text"
    recipe = tiny_recipe.restrict_to(("audio", "text"))
    train(recipe, folder, seed=2, overrides=["space.embed_dim=24"], show_progress=False)
    return folder
