"""Pixels through five convolutions and three pools, trained from scratch; its parts are regions, row by row."""

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

KERNELS, POOLED = (7, 5, 3, 3, 3), (True, True, False, False, True)  # the first convolution also halves


class ImageConv2d(Encoder):
    """Pixels through convolutions of 7, 5, 3, 3 and 3 pixels: one vector for each 16 × 16 pixels.

    x ← pool(relu(norm(conv(x)))), with a pool after the first, second and last;  parts_r = x_r, (size / 16)² regions

    Source: Aytar et al. 2017 (See, Hear, and Read: the student's image network) after Krizhevsky et al. 2012: five
    convolutions, three pools; sizes, widths and the norm of each picture alone are ours.
    Use when: as the image side of `distill`, under layers that all modalities share.
    Beware: a part does not know where it is; `image_cnn` has positions. Pictures are squeezed to size × size.
    """

    modality = "image"
    kind = "region"

    def __init__(self, width: int = 128, size: int = 64) -> None:
        super().__init__()
        check_range("image_conv2d: width", width, 32, 8192)
        check_range("image_conv2d: size", size, 16, 4096)
        if size % 16:
            raise RecipeError(f"image_conv2d: size = {size}: must be a multiple of 16")
        if width % 32:
            raise RecipeError(f"image_conv2d: width = {width}: must be a multiple of 32")
        self.width, self.size = width, size
        channels = (3, width // 4, width // 2, width, width, width)
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
        return torch.from_numpy(image.read(Path(source.content), self.size, image.moment(source)).copy())

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = inputs.movedim(3, 1).to(next(self.parameters()).dtype) / 127.5 - 1  # (N, 3, size, size), channels last
        for convolution, norm, pooled in zip(self.convolutions, self.norms, POOLED, strict=True):
            x = F.relu(norm(convolution(x)))
            if pooled:
                x = F.max_pool2d(x, 2)
        parts = x.movedim(1, 3).flatten(1, 2)  # (N, P, width)
        return parts, mask[:, :1].expand(-1, parts.shape[1])

    def places(self, source: Source, parts: int) -> Sequence[Place]:  # noqa: ARG002
        return grid(self.size // 16, self.size // 16)
