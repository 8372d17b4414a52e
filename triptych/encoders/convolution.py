"""A 2-D convolution with the padding of TensorFlow or of PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Conv2dSame(nn.Module):
    """A 2-D convolution with the output size ⌈size / stride⌉.

    The total padding is max(0, (⌈size / stride⌉ − 1) · stride + kernel − size), as in TensorFlow. If the total is odd,
    the end gets the larger half. With symmetric = True, the padding is kernel // 2 at both ends, as usual in PyTorch.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        symmetric: bool = False,
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.groups, self.symmetric = kernel, stride, groups, symmetric
        weight = torch.zeros(out_channels, in_channels // groups, kernel, kernel)
        # On a CPU, convolutions in the memory format channels_last are two to four times as fast.
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        if self.kernel == self.stride == self.groups == 1:
            # A 1 × 1 convolution is one matrix product over all pixels, because the channels are contiguous.
            return F.linear(x.movedim(1, 3), self.weight.flatten(1), self.bias).movedim(3, 1)
        if self.symmetric:
            return F.conv2d(x, self.weight, self.bias, self.stride, self.kernel // 2, groups=self.groups)
        pad_height, pad_width = (self._total_padding(size) for size in x.shape[2:])
        if torch.compiler.is_exporting():  # the exporter cannot pad the kernel, so the image is padded
            x = F.pad(x, (pad_width // 2, pad_width - pad_width // 2, pad_height // 2, pad_height - pad_height // 2))
            return F.conv2d(x, self.weight, self.bias, self.stride, groups=self.groups)
        # If the padding is odd, zeros are added to the start of the kernel, because the kernel is smaller than the
        # image.
        weight = self.weight
        if pad_height % 2 or pad_width % 2:
            weight = F.pad(weight, (pad_width % 2, 0, pad_height % 2, 0))
        padding = ((pad_height + 1) // 2, (pad_width + 1) // 2)
        return F.conv2d(x, weight, self.bias, self.stride, padding, groups=self.groups)

    def _total_padding(self, size: int) -> int:
        return max(0, (-(-size // self.stride) - 1) * self.stride + self.kernel - size)
