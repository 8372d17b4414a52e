"""Synthetic datasets shared by the tests of this folder."""

import pytest

from triptych.data.synthetic import SyntheticConfig, generate, read_annotations

CONFIGS = {
    "easy": SyntheticConfig(scenes=400, seed=5, novel_fraction=0.1),
    "hard": SyntheticConfig(scenes=60, max_objects=3, difficulty="hard", seconds=3.0, image_size=96, captions=8),
}


@pytest.fixture(scope="session")
def generated(tmp_path_factory):
    """Folder, annotations and configuration of each dataset."""
    folders = {
        name: generate(config, tmp_path_factory.mktemp("synthetic") / name).parent for name, config in CONFIGS.items()
    }
    return {name: (folder, read_annotations(folder), CONFIGS[name]) for name, folder in folders.items()}


@pytest.fixture(params=list(CONFIGS))
def dataset(request, generated):
    return generated[request.param]


@pytest.fixture
def easy(generated):
    return generated["easy"][:2]


@pytest.fixture
def hard(generated):
    return generated["hard"][:2]
