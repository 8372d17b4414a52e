"""Sources of each modality for the tests of encoders."""

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from tests.encoders import tiny_models
from triptych.interfaces import Source

CAPTIONS = [
    "two red bells ring low",
    "a frog",
    "three blue birds sing high by the river this morning",
    "a drum, slowly",
]
TEXTS = ["a dog barks", "two red bells", "three blue birds sing slowly on the roof", "rain", "the bell rings low"]
# Architectures of tests/encoders/tiny_models.py: the encoder they are tested with, and its settings.
BACKBONES = {
    "bert": ("hf_text", {}),
    "roberta": ("hf_text", {}),
    "t5": ("hf_text", {}),
    "clip": ("hf_text", {}),
    "vit": ("hf_image", {}),
    "convnext": ("hf_image", {}),
    "siglip": ("hf_image", {}),
    "wav2vec2": ("hf_audio", {"max_seconds": 0.8}),
    "spectrogram_transformer": ("hf_audio", {"max_seconds": 0.6}),
    "whisper": ("hf_audio", {"max_seconds": 1.5}),
    "clap": ("hf_audio", {"max_seconds": 0.8}),
}


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


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """The folders of tiny models of every architecture in BACKBONES."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("models")
    return {name: getattr(tiny_models, name)(root / name) for name in BACKBONES}


@pytest.fixture(scope="session")
def five_sources(tmp_path_factory):
    """Five sources of each modality, of different lengths and sizes."""
    folder, rng = tmp_path_factory.mktemp("media"), np.random.default_rng(0)
    by_modality = {"text": [Source("text", caption) for caption in TEXTS], "audio": [], "image": []}
    for i in range(5):
        soundfile.write(folder / f"{i}.wav", rng.normal(0, 0.1, 2500 + 3777 * (i // 2)), 16_000)
        by_modality["audio"].append(Source("audio", folder / f"{i}.wav"))
        Image.fromarray(rng.integers(0, 255, (40 + 9 * i, 60, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        by_modality["image"].append(Source("image", folder / f"{i}.png"))
    return by_modality
