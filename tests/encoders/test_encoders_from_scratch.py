"""Properties of the encoders that are trained from scratch, with small settings."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.errors import RecipeError

SMALL = {
    "speech_cnn": {"feature_dim": 16},
    "audio_conv1d": {"feature_dim": 16, "n_mels": 16},
    "image_conv2d": {"feature_dim": 32, "image_size": 32},
    "text_conv1d": {"feature_dim": 16, "num_layers": 2},
}


def build_encoder(name, sources, **settings) -> Any:
    torch.manual_seed(0)
    encoder = ENCODERS[name](**SMALL[name] | settings).eval()
    encoder.fit_vocabulary(sources[encoder.modality])
    return encoder


def embeddings(encoder, sources):
    """Return the normalised means of the real parts, as a space computes them."""
    with torch.inference_mode():
        parts, mask = encoder(*collate([encoder.prepare(source) for source in sources]))
    return F.normalize(torch.stack([p[m].mean(dim=0) for p, m in zip(parts, mask, strict=True)]), dim=1)


@pytest.mark.parametrize(("name", "settings"), [*((name, {}) for name in SMALL), ("speech_cnn", {"norm": "batch"})])
def test_invariant_to_padding_and_batch(name, settings, sources):
    encoder = build_encoder(name, sources, **settings)
    items = sources[encoder.modality]
    batched = embeddings(encoder, items)
    separate = torch.cat([embeddings(encoder, [source]) for source in items])
    assert torch.allclose(batched, separate, atol=1e-6)
    assert not torch.allclose(batched[0], batched[1], atol=1e-2)


@pytest.mark.parametrize("name", SMALL)
def test_padding_is_ignored_and_gets_no_gradient(name, sources):
    encoder = build_encoder(name, sources).train()
    inputs, mask = collate([encoder.prepare(source) for source in sources[encoder.modality]])
    parts, part_mask = encoder(inputs, mask)
    garbage = inputs.clone()
    garbage[~mask] = 7
    parts_with_garbage, _ = encoder(garbage, mask)
    assert torch.allclose(parts[part_mask], parts_with_garbage[part_mask], atol=1e-6)
    (parts[part_mask] ** 2).mean().backward()
    for parameter_name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", ["speech_cnn", "audio_conv1d"])
def test_gradients_match_finite_differences(name, sources):
    encoder = build_encoder(name, sources, feature_dim=8).double()
    torch.manual_seed(1)
    inputs = torch.randn(2, 40, encoder.n_mels, dtype=torch.float64)
    mask = torch.arange(40) < torch.tensor([[40], [25]])
    target = torch.randn(encoder(inputs, mask)[0].shape, dtype=torch.float64)

    def loss(weight):
        parts, part_mask = torch.func.functional_call(encoder, {key: weight}, (inputs, mask))
        return ((parts - target)[part_mask] ** 2).mean()

    for key in ("convolutions.0.convolution.weight", "convolutions.2.convolution.bias"):
        weight = dict(encoder.named_parameters())[key].detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(weight), weight)
        for _ in range(3):
            direction = torch.randn_like(weight)
            with torch.no_grad():
                slope = (loss(weight + 1e-6 * direction) - loss(weight - 1e-6 * direction)) / 2e-6
            assert torch.allclose(slope, (gradient * direction).sum(), rtol=1e-4, atol=1e-7)


def test_invalid_settings_raise():
    for name, settings in [
        ("speech_cnn", {"feature_dim": 0}),
        ("speech_cnn", {"feature_dim": 12}),
        ("speech_cnn", {"max_seconds": float("inf")}),
        ("speech_cnn", {"norm": "layer"}),
        ("audio_conv1d", {"hop_ms": 0.0}),
        ("audio_conv1d", {"feature_dim": 7}),
        ("image_conv2d", {"image_size": 40}),
        ("image_conv2d", {"feature_dim": 48}),
        ("text_conv1d", {"num_layers": 0}),
        ("text_conv1d", {"vocab_size": 10}),
    ]:
        with pytest.raises(RecipeError, match=f"^{name}: .*{next(iter(settings))}"):
            ENCODERS[name](**settings)
