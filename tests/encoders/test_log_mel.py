"""The log-mel input of audio encoders."""

import pytest
import torch

from triptych.encoders.log_mel import LogMelInput
from triptych.errors import RecipeError
from triptych.interfaces import Source
from triptych.media import audio


def test_frames_are_scaled_decibels(make_tone):
    source = make_tone(1.0)
    log_mel = LogMelInput("x", 16_000, 32, 10.0, 5.0, min_mels=8)
    decibels = audio.log_mel_spectrogram(audio.read(source.content, 16_000), 16_000, 32, 640, 160)
    frames = log_mel.prepare(source)
    assert frames.shape == (101, 32)
    assert torch.allclose(frames, (decibels + 40) / 40)
    assert log_mel.frame_seconds == pytest.approx(0.01)


def test_segments_are_read_and_long_audio_is_truncated(make_tone):
    source = make_tone(3.0)
    log_mel = LogMelInput("x", 16_000, 32, 10.0, 1.0, min_mels=8)
    assert torch.equal(log_mel.prepare(source), log_mel.prepare(Source("audio", source.content, 0.0, 1.0)))
    assert len(log_mel.prepare(Source("audio", source.content, 1.0, 1.5))) == 51


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"sample_rate": 10}, "sample_rate"),
        ({"n_mels": 4}, "n_mels"),
        ({"hop_ms": 0.0}, "hop_ms"),
        ({"max_seconds": float("nan")}, "max_seconds"),
    ],
)
def test_invalid_settings_raise(change, key):
    settings = {"sample_rate": 16_000, "n_mels": 32, "hop_ms": 10.0, "max_seconds": 5.0} | change
    with pytest.raises(RecipeError, match=f"^x: {key} = .*must be"):
        LogMelInput("x", **settings, min_mels=8)
