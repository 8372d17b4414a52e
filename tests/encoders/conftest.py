"""What the tests of encoders share: a few sources of each modality."""

import numpy as np
import pytest
import soundfile
from PIL import Image

from triptych.interfaces import Source

CAPTIONS = [
    "two red bells ring low",
    "a frog",
    "three blue birds sing high by the river this morning",
    "a drum, slowly",
]


@pytest.fixture
def sources(tmp_path):
    """Four sources of each modality, of different lengths and sizes."""
    rng = np.random.default_rng(0)
    by_modality = {"text": [Source("text", caption) for caption in CAPTIONS], "audio": [], "image": []}
    for i in range(4):
        soundfile.write(tmp_path / f"{i}.wav", rng.normal(0, 0.1, 4000 + 7777 * i), 16_000)
        by_modality["audio"].append(Source("audio", tmp_path / f"{i}.wav"))
        Image.fromarray(rng.integers(0, 255, (20 + i, 30, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
        by_modality["image"].append(Source("image", tmp_path / f"{i}.png"))
    return by_modality
