"""The convolutions of image encoders against a plain forward pass."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from triptych.encoders.image_layers import ImageConvolutions, read_square
from triptych.errors import RecipeError


def build_layers(**changes):
    settings = {"feature_dim": 32, "image_size": 32, "kernels": (5, 3, 3), "strides": (2, 1, 1)}
    return ImageConvolutions("x", **settings | {"pools": (True, False, False), "activation": nn.ReLU} | changes)


def test_layers_match_plain_forward_pass():
    torch.manual_seed(0)
    layers = build_layers()
    pixels = torch.randint(256, (3, 32, 32, 3), dtype=torch.uint8)
    x = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
    for i, (kernel, stride) in enumerate(((5, 2), (3, 1), (3, 1))):
        weight, bias = layers.get_parameter(f"convolutions.{i}.weight"), layers.get_parameter(f"convolutions.{i}.bias")
        x = F.relu(F.group_norm(F.conv2d(x, weight, bias, stride=stride, padding=kernel // 2), 8))
        x = F.max_pool2d(x, 2) if i == 0 else x
    parts = layers(pixels)
    assert layers.grid_size == 8
    assert parts.shape == (3, 64, 32)
    for row in range(8):
        for column in range(8):
            assert torch.allclose(parts[:, row * 8 + column], x[:, :, row, column], atol=1e-5)


def test_pixels_are_resized_to_a_square(sources):
    pixels = read_square(sources["image"][0], 16)
    assert pixels.shape == (16, 16, 3)
    assert pixels.dtype == torch.uint8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feature_dim": 48}, "feature_dim = 48: must be a multiple of 32"),
        ({"feature_dim": 0}, "feature_dim = 0: must be between"),
        ({"image_size": 34}, "image_size = 34: must be a multiple of 4"),
        ({"image_size": 8}, "image_size = 8: must be between"),
    ],
)
def test_invalid_settings_raise(change, message):
    with pytest.raises(RecipeError, match=f"^x: {message}"):
        build_layers(**change)
