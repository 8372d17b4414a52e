"""Convolutions and pools along time that never see padding: what several 1-D encoders are made of."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class MaskedConv1d(nn.Module):
    """A 1-D convolution of odd kernel that keeps the length, then ReLU; with `norm`, each moment is normalised first.

    y_t = relu(norm(Σ_k W_k · x_{t+k} + b)),  x beyond the item = 0
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, norm: bool) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(in_channels, out_channels, kernel, padding=kernel // 2)
        # Made for ReLU: the library's own start shrinks the signal by a third a layer or more.
        nn.init.kaiming_normal_(self.convolution.weight, nonlinearity="relu")
        nn.init.zeros_(self.convolution.bias)  # pyright: ignore[reportArgumentType]
        # Of each moment alone: a norm over time or over the batch would let padding or neighbours in.
        self.norm = nn.LayerNorm(out_channels) if norm else None

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(N, channels_in, L) and (N, L) -> (N, channels_out, L)."""
        # Zeroing what is padding makes it look like the convolution's own border.
        x = self.convolution(x.masked_fill(~mask[:, None], 0))
        if self.norm is not None:
            x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return F.relu(x)


def masked_max_pool(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum of three moments, at every second one: (N, C, L) -> (N, C, ⌈L / 2⌉). For x >= 0, as after ReLU."""
    return F.max_pool1d(x.masked_fill(~mask[:, None], 0), 3, stride=2, padding=1), mask[:, ::2]
