"""AudioCNN: truncation and positions."""

import math

import numpy as np
import pytest
import soundfile
import torch

from triptych.encoders import ENCODERS
from triptych.encoders.audio_cnn import sinusoidal_positions
from triptych.interfaces import Source


def test_long_audio_is_truncated(tmp_path):
    encoder = ENCODERS["audio_cnn"](max_seconds=0.5)
    soundfile.write(tmp_path / "long.wav", np.linspace(0, 0.5, 32_000), 16_000)
    untrimmed = encoder.prepare(Source("audio", tmp_path / "long.wav"))
    start = encoder.prepare(Source("audio", tmp_path / "long.wav", 0.0, 0.5))
    later = encoder.prepare(Source("audio", tmp_path / "long.wav", 1.0, 1.5))
    assert torch.equal(untrimmed, start)
    assert untrimmed.shape == later.shape
    assert not torch.equal(untrimmed, later)


def test_sinusoidal_positions_match_naive_loop():
    positions = sinusoidal_positions(5, 6, torch.zeros((), dtype=torch.float64))
    assert positions.shape == (5, 6)
    for position in range(5):
        for i in range(3):
            angle = position * 1000.0 ** (-2 * i / 6)
            assert positions[position, i].item() == pytest.approx(math.sin(angle))
            assert positions[position, 3 + i].item() == pytest.approx(math.cos(angle))
