"""Masked 1-D convolutions and pools along time."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class MaskedConv1d(nn.Module):
    """A length-preserving 1-D convolution with an odd kernel, an optional layer norm per time step, and ReLU.

    y_t = relu(norm(Σ_k W_k · x_{t+k} + b)),  where x = 0 outside the item
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, norm: bool) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(in_channels, out_channels, kernel, padding=kernel // 2)
        # The weights get He initialisation, because PyTorch's default reduces the signal by a third or more per layer.
        nn.init.kaiming_normal_(self.convolution.weight, nonlinearity="relu")
        nn.init.zeros_(self.convolution.bias)  # pyright: ignore[reportArgumentType]
        # Each time step is normalised separately, because a norm over time or over the batch would depend on other
        # items.
        self.norm = nn.LayerNorm(out_channels) if norm else None

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map an input (N, in_channels, L) and a mask (N, L) to an output (N, out_channels, L)."""
        # Padding is set to 0, so that the result does not depend on padding.
        x = self.convolution(x.masked_fill(~mask[:, None], 0))
        if self.norm is not None:
            x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return F.relu(x)


def masked_max_pool(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Apply a max pool of size 3 and stride 2: (N, C, L) -> (N, C, ⌈L / 2⌉). All x must be >= 0, as after ReLU."""
    return F.max_pool1d(x.masked_fill(~mask[:, None], 0), 3, stride=2, padding=1), mask[:, ::2]
