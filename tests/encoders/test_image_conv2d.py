"""ImageConv2d: its grid of regions."""

from tests.encoders.test_encoders_from_scratch import build_encoder
from triptych.data.loader import collate


def test_image_conv2d_returns_grid(sources):
    encoder = build_encoder("image_conv2d", sources, image_size=64)
    parts, mask = encoder(*collate([encoder.prepare(source) for source in sources["image"]]))
    assert parts.shape == (4, 16, 32)
    assert mask.shape == (4, 16)
    assert mask.all()
