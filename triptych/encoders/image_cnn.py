"""A small CNN over pixels, trained from scratch. Parts are image regions, ordered row by row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from triptych.encoders.image_layers import ImageConvolutions, read_square
from triptych.encoders.part_locations import grid_regions
from triptych.interfaces import Encoder, Region, Source


class ImageCNN(Encoder):
    """Four convolutions over pixels, with learned position embeddings. Each part covers 8 × 8 pixels.

    parts_r = conv(pixels)_r + position(r),  (image_size / 8)² regions, row by row

    Source: a small version of common strided CNNs.
    Use when: you have thousands of images, and no pretrained network suits them.
    Beware: images are resized to image_size × image_size pixels, which changes their aspect ratio.
    """

    modality = "image"
    part_name = "region"

    def __init__(self, feature_dim: int = 128, image_size: int = 64) -> None:
        super().__init__()
        self.feature_dim, self.image_size = feature_dim, image_size
        self.layers = ImageConvolutions(
            "image_cnn", feature_dim, image_size, (3, 3, 3, 3), (2, 2, 2, 1), [False] * 4, nn.GELU
        )
        self.position_embedding = nn.Parameter(torch.randn(self.layers.grid_size**2, feature_dim) * 0.5)
        self.mlp = nn.Sequential(
            nn.Linear(feature_dim, 2 * feature_dim), nn.GELU(), nn.Linear(2 * feature_dim, feature_dim)
        )

    def prepare(self, source: Source) -> Tensor:
        return read_square(source, self.image_size)  # (size, size, 3)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.layers(inputs) + self.position_embedding  # (N, P, feature_dim)
        return parts + self.mlp(parts), mask[:, :1].expand(-1, parts.shape[1])

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG002
        # A part is centred on the first pixel of its tile, because strided convolutions start at the first pixel.
        return grid_regions(self.layers.grid_size, self.layers.grid_size, shift=-3.5 / 8)
