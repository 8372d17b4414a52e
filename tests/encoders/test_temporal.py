"""Masked convolutions and pools against naive loops."""

from typing import Any

import torch

from triptych.encoders.temporal import MaskedConv1d, masked_max_pool


def test_masked_conv1d_matches_naive_loop():
    torch.manual_seed(0)
    layer: Any = MaskedConv1d(3, 4, 5, norm=True).double()
    x, mask = torch.randn(2, 3, 9, dtype=torch.float64), torch.arange(9) < torch.tensor([[9], [6]])
    output = layer(x, mask)
    weight, bias = layer.convolution.weight, layer.convolution.bias
    for n in range(2):
        for t in range(int(mask[n].sum())):
            taps = [(k, t + k - 2) for k in range(5) if 0 <= t + k - 2 < mask[n].sum()]
            y: Any = sum((weight[:, :, k] @ x[n, :, position] for k, position in taps), bias.clone())
            y = (y - y.mean()) / (y.var(correction=0) + 1e-5).sqrt()
            assert torch.allclose(output[n, :, t], y.clamp_min(0))


def test_masked_max_pool_keeps_maximum_of_three():
    x = torch.tensor([[[1.0, 5, 2, 0, 3, 9]]])
    pooled, mask = masked_max_pool(x, torch.tensor([[True, True, True, True, True, False]]))
    assert pooled.tolist() == [[[5, 5, 3]]]  # the 9 is padding
    assert mask.tolist() == [[True, True, True]]
