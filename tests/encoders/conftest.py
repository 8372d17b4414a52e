"""Sources of each modality for the tests of encoders."""

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


def write_audio(path, samples, rate=16_000):
    """Write samples to a WAV file and return its source."""
    soundfile.write(path, samples, rate, subtype="FLOAT")
    return Source("audio", path)


@pytest.fixture
def make_tone(tmp_path):
    """A function that writes a rising tone of some seconds."""

    def make(seconds, rate=16_000):
        time = np.arange(round(seconds * rate)) / rate
        return write_audio(tmp_path / f"{seconds}.wav", 0.3 * np.sin(2 * np.pi * (300 + 400 * time) * time), rate)

    return make
