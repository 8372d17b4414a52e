"""A small convolutional network over pixels, trained from scratch; its parts are regions, row by row."""

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


class ImageCNN(Encoder):
    """Pixels through four convolutions, then one vector for each 8 × 8 pixels, which knows where it is.

    parts_r = conv(pixels)_r + position(r),  (size / 8)² regions, row by row

    Source: the common strided CNN, made small.
    Use when: there are thousands of pictures and no pretrained network suits them.
    Beware: pictures are squeezed to size × size, whatever their shape.
    """

    modality = "image"
    part_name = "region"

    def __init__(self, feature_dim: int = 128, image_size: int = 64) -> None:
        super().__init__()
        check_range("image_cnn: feature_dim", feature_dim, 32, 8192)
        check_range("image_cnn: image_size", image_size, 16, 4096)
        if image_size % 8:
            raise RecipeError(f"image_cnn: image_size = {image_size}: must be a multiple of 8")
        if feature_dim % 32:
            raise RecipeError(f"image_cnn: feature_dim = {feature_dim}: must be a multiple of 32")
        self.feature_dim, self.image_size = feature_dim, image_size
        channels = (3, feature_dim // 4, feature_dim // 2, feature_dim, feature_dim)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], 3, stride=2 if i < 3 else 1, padding=1) for i in range(4)
        )
        # Group norm sees one picture at a time: the vector does not depend on the batch, in training either.
        self.norms = nn.ModuleList(nn.GroupNorm(8, c) for c in channels[1:])
        self.position_embedding = nn.Parameter(torch.randn((image_size // 8) ** 2, feature_dim) * 0.5)
        self.mlp = nn.Sequential(
            nn.Linear(feature_dim, 2 * feature_dim), nn.GELU(), nn.Linear(2 * feature_dim, feature_dim)
        )
        # Convolutions on a CPU are two to four times faster so.
        self.convolutions.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def prepare(self, source: Source) -> Tensor:
        # (size, size, 3) uint8: four times smaller to keep than floats
        return torch.from_numpy(
            image.read_pixels(Path(source.content), self.image_size, image.frame_time(source)).copy()
        )

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = inputs.movedim(3, 1).to(self.position_embedding.dtype) / 127.5 - 1  # (N, 3, size, size), channels last
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.gelu(norm(convolution(x)))
        parts = x.movedim(1, 3).flatten(1, 2) + self.position_embedding  # (N, P, width)
        return parts + self.mlp(parts), mask[:, :1].expand(-1, parts.shape[1])

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG002
        # Each stride of the convolutions starts at the first pixel: a part looks around the first pixel of its tile.
        return grid_regions(self.image_size // 8, self.image_size // 8, shift=-3.5 / 8)
