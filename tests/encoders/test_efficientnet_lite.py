"""EfficientNet-lite0 and -lite2 against the published networks."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from bench.real_data import all_contain_word, read_flickr8k_captions
from tests.encoders.test_encoders_pretrained import build_encoder
from tests.real_data import find_dataset_or_skip
from triptych.data.loader import collate
from triptych.encoders.weights import parse_state_dict
from triptych.interfaces import Source

pytestmark = pytest.mark.slow


DOGS = slice(151, 269)  # dog breeds of ImageNet, Chihuahua to Mexican hairless


@pytest.mark.parametrize(
    ("name", "size", "num_blocks", "strided"),
    [("efficientnet_lite0", 224, 16, {1, 3, 5, 11}), ("efficientnet_lite2", 260, 21, {1, 4, 7, 15})],
)
@torch.inference_mode()
def test_efficientnet_matches_published_network(name, size, num_blocks, strided):
    """Against the published weights without folding: batch norms after convolutions, 'same' padding."""
    encoder = build_encoder(name)
    published = parse_state_dict(encoder.weights_files[0].read())

    def convolve(x, conv, norm, stride=1, active=True):
        weight = published[f"{conv}.weight"]
        kernel, size = weight.shape[2], x.shape[2]
        total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
        x = F.pad(x, (total // 2, total - total // 2) * 2)
        groups = x.shape[1] if weight.shape[1] == 1 else 1
        x = F.conv2d(x, weight, stride=stride, groups=groups)
        mean, variance, scale, shift = (
            published[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")
        )
        x = F.batch_norm(x, mean, variance, scale, shift, eps=1e-3)
        return x.clamp(0, 6) if active else x

    pixels = np.random.default_rng(0).integers(0, 255, (2, size, size, 3), dtype=np.uint8)
    x = convolve((torch.from_numpy(pixels).movedim(3, 1) - 127.0) / 128, "_conv_stem", "_bn0", 2)
    for index in range(num_blocks):
        name, before = f"_blocks.{index}", x
        if index:
            x = convolve(x, f"{name}._expand_conv", f"{name}._bn0")
        x = convolve(x, f"{name}._depthwise_conv", f"{name}._bn1", 2 if index in strided else 1)
        x = convolve(x, f"{name}._project_conv", f"{name}._bn2", active=False)
        x = x + before if x.shape == before.shape else x
    x = convolve(x, "_conv_head", "_bn1")
    logits = x.mean(dim=(2, 3)) @ published["_fc.weight"].T + published["_fc.bias"]
    inputs, mask = torch.from_numpy(pixels), torch.ones(2, size, dtype=torch.bool)
    parts, _ = encoder(inputs, mask)
    assert parts.shape[1] == encoder.variant.grid_size**2
    assert torch.allclose(parts, x.flatten(2).transpose(1, 2), atol=1e-4)
    assert torch.allclose(encoder.class_probabilities(parts.mean(dim=1)), logits.softmax(dim=1), atol=1e-5)


@pytest.mark.parametrize("name", ["efficientnet_lite0", "efficientnet_lite2"])
@torch.inference_mode()
def test_efficientnet_classifies_dogs_in_real_images(name):
    encoder = build_encoder(name)
    captions = read_flickr8k_captions(find_dataset_or_skip("flickr8k"))
    dogs = [path for path, captions_of_image in captions.items() if all_contain_word(captions_of_image, "dog")][::25][
        :40
    ]
    others = [
        path
        for path, captions_of_image in captions.items()
        if not any("dog" in s or "puppy" in s for s in captions_of_image)
    ][::150][:40]
    accuracies = {}
    for group, paths in (("dogs", dogs), ("others", others)):
        parts, _ = encoder(*collate([encoder.prepare(Source("image", path)) for path in paths]))
        best = encoder.class_probabilities(parts.mean(dim=1)).topk(5).indices
        is_dog = (best >= DOGS.start) & (best < DOGS.stop)
        accuracies[group] = (is_dog[:, 0].float().mean(), is_dog.any(dim=1).float().mean())
    assert len(dogs) == len(others) == 40
    assert accuracies["dogs"][0] >= 0.7  # top-1
    assert accuracies["dogs"][1] >= 0.85  # top-5
    assert accuracies["others"][0] <= 0.1


def test_efficientnet_uses_centre_crop(tmp_path):
    encoder = build_encoder("efficientnet_lite0")
    pixels = np.zeros((256, 512, 3), dtype=np.uint8)  # red encodes the column, green the row
    pixels[..., 0], pixels[..., 1] = np.arange(512) // 2, np.arange(256)[:, None]
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    crop = encoder.prepare(Source("image", tmp_path / "wide.png")).int()
    assert crop.shape == (224, 224, 3)
    # The middle 224 of 256 rows, and as many columns.
    for edge, expected in ((crop[:, 0, 0], 72), (crop[:, -1, 0], 183), (crop[0, :, 1], 16), (crop[-1, :, 1], 239)):
        assert (edge - expected).abs().max() <= 1
