"""TextTransformer: token order and truncation."""

import torch

from triptych.encoders.text_transformer import TextTransformer
from triptych.interfaces import Source


@torch.inference_mode()
def test_parts_depend_on_the_order_of_tokens():
    torch.manual_seed(0)
    encoder = TextTransformer(feature_dim=16, num_heads=2).eval()
    ids = torch.arange(1, 6)[None]
    mask = torch.ones(1, 5, dtype=torch.bool)
    forward_parts, backward_parts = encoder(ids, mask)[0], encoder(ids.flip(1), mask)[0]
    assert not torch.allclose(forward_parts.mean(dim=1), backward_parts.mean(dim=1), atol=1e-3)


@torch.inference_mode()
def test_long_texts_are_truncated(sources):
    encoder = TextTransformer(feature_dim=16, num_heads=2, max_length=4).eval()
    encoder.fit_vocabulary(sources["text"])
    ids = encoder.prepare(Source("text", "bell " * 50))
    assert ids.shape == (4,)
    parts, _ = encoder(ids[None], torch.ones(1, 4, dtype=torch.bool))
    assert parts.shape == (1, 4, 16)
