"""AudioConv1d against plain convolutions and pools."""

import torch
import torch.nn.functional as F

from tests.encoders.test_encoders_from_scratch import build_encoder


@torch.inference_mode()
def test_parts_match_plain_convolutions(sources):
    encoder = build_encoder("audio_conv1d", sources)
    frames = encoder.prepare(sources["audio"][2])  # (frames, mels)
    x = frames.T[None]
    for layer, kernel in zip(encoder.convolutions, (11, 5, 3), strict=True):
        x = F.conv1d(x, layer.convolution.weight, layer.convolution.bias, padding=kernel // 2)
        x = F.relu(F.layer_norm(x.transpose(1, 2), x.shape[1:2]).transpose(1, 2))
        x = F.max_pool1d(x, 3, stride=2, padding=1)
    parts, mask = encoder(frames[None], torch.ones(1, len(frames), dtype=torch.bool))
    assert parts.shape == (1, -(-len(frames) // 8), encoder.feature_dim)
    assert mask.all()
    assert torch.allclose(parts, x.transpose(1, 2), atol=1e-5)
