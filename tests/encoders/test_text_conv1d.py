"""TextConv1d: its vocabulary and its receptive field."""

import pytest
import torch

from tests.encoders.test_encoders_from_scratch import SMALL, build_encoder
from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.errors import CheckpointError


def test_text_encoders_share_vocabulary_format(sources):
    """Both text encoders save the same file."""
    conv_encoder = build_encoder("text_conv1d", sources)
    transformer_encoder = ENCODERS["text_transformer"]()
    transformer_encoder.fit_vocabulary(sources["text"])
    assert conv_encoder.extra_files() == transformer_encoder.extra_files()
    fresh = ENCODERS["text_conv1d"](**SMALL["text_conv1d"])
    with pytest.raises(CheckpointError, match="has no vocabulary; train it"):
        fresh.prepare(sources["text"][0])
    fresh.load_extra_files(transformer_encoder.extra_files())
    assert torch.equal(fresh.prepare(sources["text"][2]), conv_encoder.prepare(sources["text"][2]))


def test_text_conv1d_receptive_field(sources):
    encoder = build_encoder("text_conv1d", sources, num_layers=2)
    token_ids = encoder.prepare(sources["text"][2])
    changed = token_ids.clone()
    changed[-1] = (changed[-1] + 1) % 200
    with torch.inference_mode():
        before, after = (encoder(*collate([w]))[0][0] for w in (token_ids, changed))
    assert torch.allclose(before[:-3], after[:-3], atol=1e-6)
    assert not torch.allclose(before[-3], after[-3], atol=1e-4)
