"""Properties of every registered encoder: parts do not depend on the batch or on padding."""

import pytest
import torch

from tests.encoders.conftest import CAPTIONS
from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.errors import CheckpointError, MediaError, RecipeError, TrainingError
from triptych.interfaces import Source


@pytest.fixture(params=ENCODERS.known_names())
def encoder(request, sources):
    encoder_class = ENCODERS[request.param]
    if reason := encoder_class.unavailable_reason():
        pytest.skip(f"{request.param}: {reason}")
    torch.manual_seed(0)
    encoder = encoder_class().eval()
    encoder.fit_vocabulary(sources[encoder.modality])
    return encoder


@torch.inference_mode()
def parts_of(encoder, sources):
    """Return the real parts of each source, computed in one batch."""
    parts, mask = encoder(*collate([encoder.prepare(source) for source in sources]))
    return [p[m] for p, m in zip(parts, mask, strict=True)]


def mean_embedding(parts):
    """Return the normalised mean of the parts, as a space computes it."""
    return torch.nn.functional.normalize(parts.mean(dim=0), dim=0)


def test_invariant_to_batch_and_order(encoder, sources):
    items = sources[encoder.modality]
    batched = parts_of(encoder, items)
    assert {p.shape[1] for p in batched} == {encoder.feature_dim}
    for i, source in enumerate(items):
        separate = parts_of(encoder, [source])[0]
        assert separate.shape == batched[i].shape
        assert torch.allclose(separate, batched[i], atol=1e-5), "padding or neighbours leak"
        assert torch.allclose(mean_embedding(separate), mean_embedding(batched[i]), atol=1e-6, rtol=0)
    reversed_parts = parts_of(encoder, items[::-1])[::-1]
    for forward_parts, backward_parts in zip(batched, reversed_parts, strict=True):
        assert torch.allclose(forward_parts, backward_parts, atol=1e-5)


def test_padding_content_is_ignored(encoder, sources):
    inputs, mask = collate([encoder.prepare(source) for source in sources[encoder.modality]])
    garbage = inputs.clone()
    garbage[~mask] = 7
    with torch.inference_mode():
        (clean, clean_mask), (parts_with_garbage, _) = encoder(inputs, mask), encoder(garbage, mask)
    assert torch.allclose(clean[clean_mask], parts_with_garbage[clean_mask], atol=1e-6)


def test_different_sources_differ_and_parts_are_ordered(encoder, sources):
    first, second = parts_of(encoder, sources[encoder.modality][2:])
    length = min(len(first), len(second))
    assert not torch.allclose(first[:length], second[:length], atol=1e-2)
    if length > 1:
        assert not torch.allclose(first[:-1], first[1:], atol=1e-2), "all parts are alike"


@pytest.mark.slow
def test_gradients_reach_every_parameter(encoder, sources):
    encoder.train()
    parts, mask = encoder(*collate([encoder.prepare(source) for source in sources[encoder.modality]]))
    (parts[mask] ** 2).mean().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_state_survives_saving(encoder, sources):
    restored = type(encoder)().eval()
    restored.load_state_dict(encoder.state_dict())
    if encoder.extra_files():
        restored.load_extra_files(encoder.extra_files())
    for original_parts, restored_parts in zip(
        *(parts_of(e, sources[encoder.modality]) for e in (encoder, restored)), strict=True
    ):
        assert torch.equal(original_parts, restored_parts)


def test_invalid_settings_raise():
    text = ENCODERS["text_transformer"]()
    with pytest.raises(CheckpointError, match="has no vocabulary; train it"):
        text.prepare(Source("text", "a bell"))
    with pytest.raises(TrainingError, match="no captions to learn a vocabulary from"):
        text.fit_vocabulary([])
    text.fit_vocabulary(Source("text", c) for c in CAPTIONS)
    with pytest.raises(MediaError, match=r"the text .*is empty"):
        text.prepare(Source("text", " \n "))
    for name, settings in [
        ("audio_cnn", {"hop_ms": 0.0}),
        ("audio_cnn", {"sample_rate": 0}),
        ("audio_cnn", {"max_seconds": float("nan")}),
        ("image_cnn", {"feature_dim": 0}),
        ("text_transformer", {"num_heads": 0}),
        ("text_transformer", {"num_layers": 0}),
        ("text_transformer", {"vocab_size": 10}),
    ]:
        with pytest.raises(RecipeError, match=f"{name}: {next(iter(settings))} = .*must be"):
            ENCODERS[name](**settings)
    for name, settings in {
        "audio_cnn": {"n_mels": 20},
        "image_cnn": {"image_size": 60},
        "text_transformer": {"num_heads": 3},
    }.items():
        with pytest.raises(RecipeError, match=name):
            ENCODERS[name](**settings)
