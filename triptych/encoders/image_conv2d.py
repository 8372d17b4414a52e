"""Five convolutions and three max pools over pixels, trained from scratch. Parts are regions, row by row."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from triptych.encoders.image_layers import ImageConvolutions, read_square
from triptych.encoders.part_locations import grid_regions
from triptych.interfaces import Encoder, Region, Source

KERNELS, STRIDES, POOLS = (7, 5, 3, 3, 3), (2, 1, 1, 1, 1), (True, True, False, False, True)


class ImageConv2d(Encoder):
    """Convolutions with kernels of 7, 5, 3, 3 and 3 pixels. Each part covers 16 × 16 pixels.

    x ← pool(relu(norm(conv(x)))), pools after layers 1, 2 and 5;  parts_r = x_r, (image_size / 16)² regions

    Source: Aytar et al. 2017 (See, Hear, and Read: the image network of the student) after Krizhevsky et al. 2012, with
    five convolutions and three pools. The kernel sizes, the channels and the norm per image are choices of triptych.
    Use when: you train with the objective `distill`, and all modalities share layers (space.shared_hidden_dim).
    Beware: parts have no positional encoding, unlike the parts of `image_cnn`. Images are resized to image_size ×
    image_size pixels, which changes their aspect ratio.
    """

    modality = "image"
    part_name = "region"

    def __init__(self, feature_dim: int = 128, image_size: int = 64) -> None:
        super().__init__()
        self.feature_dim, self.image_size = feature_dim, image_size
        self.layers = ImageConvolutions("image_conv2d", feature_dim, image_size, KERNELS, STRIDES, POOLS, nn.ReLU)

    def prepare(self, source: Source) -> Tensor:
        return read_square(source, self.image_size)  # (size, size, 3)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        parts = self.layers(inputs)  # (N, P, feature_dim)
        return parts, mask[:, :1].expand(-1, parts.shape[1])

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG002
        return grid_regions(self.layers.grid_size, self.layers.grid_size)
