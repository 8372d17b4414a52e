"""ImageCNN: positions, and the size of the grid."""

import torch

from triptych.encoders.image_cnn import ImageCNN


@torch.inference_mode()
def test_positions_are_added_before_the_mlp():
    torch.manual_seed(0)
    encoder = ImageCNN(feature_dim=32, image_size=32)
    pixels = torch.randint(256, (2, 32, 32, 3), dtype=torch.uint8)
    parts, mask = encoder(pixels, torch.ones(2, 32, dtype=torch.bool))
    x = encoder.layers(pixels) + encoder.position_embedding
    assert parts.shape == (2, 16, 32)
    assert mask.shape == (2, 16)
    assert mask.all()
    assert torch.allclose(parts, x + encoder.mlp(x))
    uniform = torch.full((1, 32, 32, 3), 128, dtype=torch.uint8)
    parts, _ = encoder(uniform, torch.ones(1, 32, dtype=torch.bool))
    assert not torch.allclose(parts[0, 5], parts[0, 6], atol=1e-2), "inner regions of a uniform image have positions"
