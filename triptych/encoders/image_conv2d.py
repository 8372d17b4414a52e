"""Pixels through five convolutions and three pools, trained from scratch; its parts are regions, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.encoders.part_locations import grid_regions
from triptych.errors import RecipeError, check_range
from triptych.interfaces import Encoder, Region, Source
from triptych.media import image

KERNELS, HAS_POOL = (7, 5, 3, 3, 3), (True, True, False, False, True)  # the first convolution also halves


class ImageConv2d(Encoder):
    """Pixels through convolutions of 7, 5, 3, 3 and 3 pixels: one vector for each 16 × 16 pixels.

    x ← pool(relu(norm(conv(x)))), with a pool after the first, second and last;  parts_r = x_r, (size / 16)² regions

    Source: Aytar et al. 2017 (See, Hear, and Read: the student's image network) after Krizhevsky et al. 2012: five
    convolutions, three pools; sizes, widths and the norm of each picture alone are ours.
    Use when: as the image side of `distill`, under layers that all modalities share.
    Beware: a part does not know where it is; `image_cnn` has positions. Pictures are squeezed to size × size.
    """

    modality = "image"
    part_name = "region"

    def __init__(self, feature_dim: int = 128, image_size: int = 64) -> None:
        super().__init__()
        check_range("image_conv2d: feature_dim", feature_dim, 32, 8192)
        check_range("image_conv2d: image_size", image_size, 16, 4096)
        if image_size % 16:
            raise RecipeError(f"image_conv2d: image_size = {image_size}: must be a multiple of 16")
        if feature_dim % 32:
            raise RecipeError(f"image_conv2d: feature_dim = {feature_dim}: must be a multiple of 32")
        self.feature_dim, self.image_size = feature_dim, image_size
        channels = (3, feature_dim // 4, feature_dim // 2, feature_dim, feature_dim, feature_dim)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], kernel, stride=1 if i else 2, padding=kernel // 2)
            for i, kernel in enumerate(KERNELS)
        )
        # Group norm sees one picture at a time: the vector does not depend on the batch, in training either.
        self.norms = nn.ModuleList(nn.GroupNorm(8, c) for c in channels[1:])
        # Convolutions on a CPU are two to four times faster so.
        self.convolutions.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def prepare(self, source: Source) -> Tensor:
        # (size, size, 3) uint8: four times smaller to keep than floats
        return torch.from_numpy(
            image.read_pixels(Path(source.content), self.image_size, image.frame_time(source)).copy()
        )

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = inputs.movedim(3, 1).to(next(self.parameters()).dtype) / 127.5 - 1  # (N, 3, size, size), channels last
        for convolution, norm, has_pool in zip(self.convolutions, self.norms, HAS_POOL, strict=True):
            x = F.relu(norm(convolution(x)))
            if has_pool:
                x = F.max_pool2d(x, 2)
        parts = x.movedim(1, 3).flatten(1, 2)  # (N, P, width)
        return parts, mask[:, :1].expand(-1, parts.shape[1])

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG002
        return grid_regions(self.image_size // 16, self.image_size // 16)
