"""A small convolutional network over pixels, trained from scratch; its parts are regions, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.contracts import Encoder, Place, Source
from triptych.encoders.places import grid
from triptych.errors import RecipeError, check_range
from triptych.media import image


class ImageCNN(Encoder):
    """Pixels through four convolutions, then one vector for each 8 × 8 pixels, which knows where it is.

    parts_r = conv(pixels)_r + position(r),  (size / 8)² regions, row by row

    Source: the common strided CNN, made small.
    Use when: there are thousands of pictures and no pretrained network suits them.
    Beware: pictures are squeezed to size × size, whatever their shape.
    """

    modality = "image"
    kind = "region"

    def __init__(self, width: int = 128, size: int = 64) -> None:
        super().__init__()
        check_range("image_cnn: width", width, 32, 8192)
        check_range("image_cnn: size", size, 16, 4096)
        if size % 8:
            raise RecipeError(f"image_cnn: size = {size}: must be a multiple of 8")
        if width % 32:
            raise RecipeError(f"image_cnn: width = {width}: must be a multiple of 32")
        self.width, self.size = width, size
        channels = (3, width // 4, width // 2, width, width)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], 3, stride=2 if i < 3 else 1, padding=1) for i in range(4)
        )
        # Group norm sees one picture at a time: the vector does not depend on the batch, in training either.
        self.norms = nn.ModuleList(nn.GroupNorm(8, c) for c in channels[1:])
        self.position = nn.Parameter(torch.randn((size // 8) ** 2, width) * 0.5)
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        # Convolutions on a CPU are two to four times faster so.
        self.convolutions.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def prepare(self, source: Source) -> Tensor:
        # (size, size, 3) uint8: four times smaller to keep than floats
        return torch.from_numpy(image.read(Path(source.content), self.size, image.moment(source)).copy())

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = inputs.movedim(3, 1).to(self.position.dtype) / 127.5 - 1  # (N, 3, size, size), channels last
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.gelu(norm(convolution(x)))
        parts = x.movedim(1, 3).flatten(1, 2) + self.position  # (N, P, width)
        return parts + self.mix(parts), mask[:, :1].expand(-1, parts.shape[1])

    def places(self, source: Source, parts: int) -> Sequence[Place]:  # noqa: ARG002
        # Each stride of the convolutions starts at the first pixel: a part looks around the first pixel of its tile.
        return grid(self.size // 8, self.size // 8, shift=-3.5 / 8)
