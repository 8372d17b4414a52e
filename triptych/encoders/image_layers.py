"""Pixel input and convolutions, shared by all image encoders that are trained from scratch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.errors import RecipeError, check_range
from triptych.interfaces import Source
from triptych.media import image


class ImageConvolutions(nn.Module):
    """Convolutions over square images, each followed by a group norm, an activation and an optional 2 × 2 max pool.

    x ← pool(activation(norm(conv(x)))). The arguments kernels, strides and pools have one entry per layer. The first
    layer has feature_dim / 4 channels, the second feature_dim / 2, and each later layer feature_dim. Error messages
    start with the name `encoder`.
    """

    def __init__(
        self,
        encoder: str,
        feature_dim: int,
        image_size: int,
        kernels: Sequence[int],
        strides: Sequence[int],
        pools: Sequence[bool],
        activation: type[nn.Module],
    ) -> None:
        super().__init__()
        total_stride = 1
        for stride, has_pool in zip(strides, pools, strict=True):
            total_stride *= stride * (2 if has_pool else 1)
        check_range(f"{encoder}: feature_dim", feature_dim, 32, 8192)
        check_range(f"{encoder}: image_size", image_size, 16, 4096)
        if image_size % total_stride:
            raise RecipeError(f"{encoder}: image_size = {image_size}: must be a multiple of {total_stride}")
        if feature_dim % 32:
            raise RecipeError(f"{encoder}: feature_dim = {feature_dim}: must be a multiple of 32")
        self.grid_size, self.pools, self.activation = image_size // total_stride, tuple(pools), activation()
        channels = (3, feature_dim // 4, feature_dim // 2, *[feature_dim] * (len(kernels) - 2))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], kernel, stride=stride, padding=kernel // 2)
            for i, (kernel, stride) in enumerate(zip(kernels, strides, strict=True))
        )
        # Group norm normalises each image separately, so that embeddings do not depend on the batch, even in training.
        self.norms = nn.ModuleList(nn.GroupNorm(8, c) for c in channels[1:])
        # On a CPU, convolutions in the memory format channels_last are two to four times as fast.
        self.convolutions.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def forward(self, pixels: Tensor) -> Tensor:
        """Map pixels (N, size, size, 3) uint8 to regions (N, grid_size², feature_dim), row by row."""
        x = pixels.movedim(3, 1).to(next(self.parameters()).dtype) / 127.5 - 1  # (N, 3, size, size), channels last
        for convolution, norm, has_pool in zip(self.convolutions, self.norms, self.pools, strict=True):
            x = self.activation(norm(convolution(x)))
            if has_pool:
                x = F.max_pool2d(x, 2)
        return x.movedim(1, 3).flatten(1, 2)


def read_square(source: Source, size: int) -> Tensor:
    """Return the pixels of a source, resized to a square: (size, size, 3) uint8."""
    return torch.from_numpy(image.read_source_pixels(source, size).copy())
