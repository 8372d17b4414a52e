"""A small frozen encoder and images for the tests of the feature cache."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.interfaces import Source


def make_encoder(seed=0, **settings):
    torch.manual_seed(seed)
    encoder = ENCODERS["image_cnn"](**{"feature_dim": 32, "image_size": 32, **settings}).eval()
    encoder.frozen = True
    return encoder


def count_encoded(encoder):
    """Count the sources that go through an encoder."""
    batch_sizes, forward = [], encoder.forward
    encoder.forward = lambda inputs, mask: (batch_sizes.append(len(inputs)), forward(inputs, mask))[1]
    return batch_sizes


def make_images(folder: Path, count: int, seed: int = 0) -> list[Source]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for i in range(count):
        Image.fromarray(rng.integers(0, 255, (24, 30, 3), dtype=np.uint8)).save(folder / f"{i:04}.png")
    return [Source("image", folder / f"{i:04}.png") for i in range(count)]


@torch.inference_mode()
def encode_parts(encoder, source):
    parts, mask = encoder(*collate([encoder.prepare(source)]))
    return parts[0][mask[0]]
