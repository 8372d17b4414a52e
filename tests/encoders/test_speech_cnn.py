"""SpeechCNN against the published architecture, and its input norms."""

import numpy as np
import soundfile
import torch
import torch.nn.functional as F

from tests.encoders.test_encoders_from_scratch import build_encoder
from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.interfaces import Source


def test_speech_cnn_matches_published_architecture(sources):
    """The layers of the paper: 2-D convolutions with mel bands as height."""
    encoder = build_encoder("speech_cnn", sources, feature_dim=1024, norm="batch")
    shapes = [tuple(c.convolution.weight.shape) for c in encoder.convolutions]
    assert shapes == [(128, 40, 1), (256, 128, 11), (512, 256, 17), (512, 512, 17), (1024, 512, 17)]
    encoder = build_encoder("speech_cnn", sources, norm="batch").train()
    frames = encoder.prepare(sources["audio"][1])
    x = frames.T[None, None]  # (1, 1, 40, frames)
    x = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()
    for number, layer in enumerate(encoder.convolutions):
        weight, bias = layer.convolution.weight, layer.convolution.bias
        # The first: (out, 1, bands, 1); the others: (out, in, 1, kernel).
        kernel = weight[:, :, None] if number else weight.movedim(2, 1)[:, :, :, None]
        x = F.relu(F.conv2d(x, kernel, bias, padding=(0, weight.shape[2] // 2)))
        if number:
            x = F.max_pool2d(x, (1, 3), stride=(1, 2), padding=(0, 1))
    parts, mask = encoder(*collate([frames]))
    assert mask.all()
    assert torch.allclose(parts, x.squeeze(2).transpose(1, 2), atol=1e-5)
    assert parts.shape[1] == -(-len(frames) // 16)


def test_batch_norm_uses_real_frames_only(sources):
    encoder = build_encoder("speech_cnn", sources, norm="batch").train()
    frames = [encoder.prepare(source) for source in sources["audio"]]
    inputs, mask = collate(frames)
    values = torch.cat(frames)
    scaled = encoder.input_norm(inputs, mask)
    expected = (values - values.mean()) / (values.var(correction=0) + 1e-5).sqrt()
    assert torch.allclose(scaled[mask], expected, atol=1e-5)
    assert torch.equal(scaled[~mask], torch.zeros_like(scaled[~mask]))
    assert torch.allclose(encoder.input_norm.norm.running_mean, 0.1 * values.mean(), atol=1e-4)


def test_item_norm_removes_gain_and_contrast(sources):
    encoder = build_encoder("speech_cnn", sources)
    inputs, mask = collate([encoder.prepare(source) for source in sources["audio"]])
    scaled = encoder.input_norm(inputs, mask)
    for row, row_mask in zip(scaled, mask, strict=True):
        assert torch.allclose(row[row_mask].mean(), torch.zeros(()), atol=1e-5)
        assert torch.allclose(row[row_mask].std(correction=0), torch.ones(()), atol=1e-4)
    assert torch.allclose(encoder.input_norm(2 * inputs - 5, mask)[mask], scaled[mask], atol=1e-4)


def test_speech_features_are_gain_invariant(tmp_path):
    """Features are dB below the maximum, so a louder recording has the same."""
    encoder = ENCODERS["speech_cnn"](feature_dim=8)
    samples = np.random.default_rng(0).normal(0, 0.05, 16_000)
    for name, gain in (("soft", 1.0), ("loud", 4.0)):
        soundfile.write(tmp_path / f"{name}.wav", gain * samples, 16_000, subtype="FLOAT")
    soft, loud = (encoder.prepare(Source("audio", tmp_path / f"{name}.wav")) for name in ("soft", "loud"))
    assert soft.shape == (101, 40)
    assert soft.max() == 0
    assert soft.min() >= -80
    assert torch.allclose(soft, loud, atol=1e-3)
    silence = tmp_path / "silence.wav"
    soundfile.write(silence, np.zeros(8000), 16_000)
    parts, _ = encoder(*collate([encoder.prepare(Source("audio", silence))]))
    assert torch.isfinite(parts).all()
