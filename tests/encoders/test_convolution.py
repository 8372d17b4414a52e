"""Conv2dSame against a naive loop."""

import numpy as np
import pytest
import torch

from triptych.encoders.convolution import Conv2dSame


@pytest.mark.parametrize("size", [(7, 10), (8, 9), (3, 4)])
@pytest.mark.parametrize(("kernel", "stride", "groups"), [(1, 1, 1), (3, 1, 2), (3, 2, 2), (5, 2, 1), (4, 3, 1)])
def test_conv2d_same_matches_naive_loop(size, kernel, stride, groups):
    """Output pixel i starts at input pixel i · stride − before, where `before` is the smaller half of the padding."""
    torch.manual_seed(0)
    layer = Conv2dSame(4, 6, kernel, stride, groups).double()
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(2, 4, *size, dtype=torch.float64)
    outs = [-(-s // stride) for s in size]
    before = [max(0, (out - 1) * stride + kernel - s) // 2 for out, s in zip(outs, size, strict=True)]
    expected = layer.bias[None, :, None, None].expand(2, 6, *outs).clone()
    for row, column, i, j in np.ndindex(*outs, kernel, kernel):
        y, z = row * stride - before[0] + i, column * stride - before[1] + j
        if 0 <= y < size[0] and 0 <= z < size[1]:
            for out in range(6):
                first = out // (6 // groups) * (4 // groups)
                input_pixels = x[:, first : first + 4 // groups, y, z]
                expected[:, out, row, column] += input_pixels @ layer.weight[out, :, i, j]
    assert torch.allclose(layer(x), expected)


@pytest.mark.parametrize("size", [(7, 10), (8, 9)])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (3, 2), (5, 2)])
def test_symmetric_padding_matches_torch(size, kernel, stride):
    torch.manual_seed(0)
    layer = Conv2dSame(4, 6, kernel, stride, groups=2, symmetric=True)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    reference = torch.nn.Conv2d(4, 6, kernel, stride, padding=(kernel - 1) // 2, groups=2)
    reference.load_state_dict(layer.state_dict())
    x = torch.randn(2, 4, *size)
    assert torch.allclose(layer(x), reference(x), atol=1e-6)
