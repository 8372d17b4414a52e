"""A 2-D convolution as TensorFlow's networks have it: 'same' padding, the odd row and column at the end."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Conv2dSame(nn.Module):
    """Output ⌈size / stride⌉; padding max(0, (⌈size / stride⌉ − 1) · stride + kernel − size), the larger half last."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.kernel, self.stride, self.groups = kernel, stride, groups
        weight = torch.zeros(out_channels, in_channels // groups, kernel, kernel)
        # Convolutions on a CPU are two to four times faster so.
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        if self.kernel == self.stride == self.groups == 1:
            # One product for all pixels, over the channels that lie side by side.
            return F.linear(x.movedim(1, 3), self.weight.flatten(1), self.bias).movedim(3, 1)
        pad_height, pad_width = (self._total_padding(size) for size in x.shape[2:])
        if torch.compiler.is_exporting():  # the exporter loses a padded kernel, so there the picture is padded
            x = F.pad(x, (pad_width // 2, pad_width - pad_width // 2, pad_height // 2, pad_height - pad_height // 2))
            return F.conv2d(x, self.weight, self.bias, self.stride, groups=self.groups)
        # Where the padding is odd, the small kernel gets a first row of zeros rather than the picture a last one.
        weight = (
            F.pad(self.weight, (pad_width % 2, 0, pad_height % 2, 0))
            if pad_height % 2 or pad_width % 2
            else self.weight
        )
        padding = ((pad_height + 1) // 2, (pad_width + 1) // 2)
        return F.conv2d(x, weight, self.bias, self.stride, padding, groups=self.groups)

    def _total_padding(self, size: int) -> int:
        return max(0, (-(-size // self.stride) - 1) * self.stride + self.kernel - size)
