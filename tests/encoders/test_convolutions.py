"""The convolutional encoders that are trained from scratch, against plain re-writings of them."""

from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F

from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.encoders.temporal import MaskedConv1d, masked_max_pool
from triptych.errors import CheckpointError, RecipeError
from triptych.interfaces import Source

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
    """Unit means of the real parts, all in one batch, as a space makes them."""
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


def test_speech_cnn_matches_published_architecture(sources):
    """The paper's layers, written as it has them: 2-D, with the input's bands as height."""
    encoder = build_encoder("speech_cnn", sources, feature_dim=1024, norm="batch")
    shapes = [tuple(c.convolution.weight.shape) for c in encoder.convolutions]
    assert shapes == [(128, 40, 1), (256, 128, 11), (512, 256, 17), (512, 512, 17), (1024, 512, 17)]
    encoder = build_encoder("speech_cnn", sources, norm="batch").train()
    frames = encoder.prepare(sources["audio"][1])
    x = frames.T[None, None]  # (1, 1, 40, frames)
    x = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()
    for number, layer in enumerate(encoder.convolutions):
        weight, bias = layer.convolution.weight, layer.convolution.bias
        # The first: (out, 1, bands, 1); the others: (out, in, 1, kernel).
        kernel = weight[:, :, None] if number else weight.movedim(2, 1)[:, :, :, None]
        x = F.relu(F.conv2d(x, kernel, bias, padding=(0, weight.shape[2] // 2)))
        if number:
            x = F.max_pool2d(x, (1, 3), stride=(1, 2), padding=(0, 1))
    parts, mask = encoder(*collate([frames]))
    assert mask.all()
    assert torch.allclose(parts, x.squeeze(2).transpose(1, 2), atol=1e-5)
    assert parts.shape[1] == -(-len(frames) // 16)


def test_batch_norm_uses_real_frames_only(sources):
    encoder = build_encoder("speech_cnn", sources, norm="batch").train()
    frames = [encoder.prepare(source) for source in sources["audio"]]
    inputs, mask = collate(frames)
    values = torch.cat(frames)
    scaled = encoder.input_norm(inputs, mask)
    expected = (values - values.mean()) / (values.var(correction=0) + 1e-5).sqrt()
    assert torch.allclose(scaled[mask], expected, atol=1e-5)
    assert torch.equal(scaled[~mask], torch.zeros_like(scaled[~mask]))
    assert torch.allclose(encoder.input_norm.norm.running_mean, 0.1 * values.mean(), atol=1e-4)


def test_item_norm_removes_gain_and_contrast(sources):
    encoder = build_encoder("speech_cnn", sources)
    inputs, mask = collate([encoder.prepare(source) for source in sources["audio"]])
    scaled = encoder.input_norm(inputs, mask)
    for row, row_mask in zip(scaled, mask, strict=True):
        assert torch.allclose(row[row_mask].mean(), torch.zeros(()), atol=1e-5)
        assert torch.allclose(row[row_mask].std(correction=0), torch.ones(()), atol=1e-4)
    assert torch.allclose(encoder.input_norm(2 * inputs - 5, mask)[mask], scaled[mask], atol=1e-4)


def test_speech_features_are_gain_invariant(tmp_path):
    """40 bands, 10 ms apart, in dB below the loudest: a louder recording is the same."""
    encoder = ENCODERS["speech_cnn"](feature_dim=8)
    samples = np.random.default_rng(0).normal(0, 0.05, 16_000)
    for name, gain in (("soft", 1.0), ("loud", 4.0)):
        soundfile.write(tmp_path / f"{name}.wav", gain * samples, 16_000, subtype="FLOAT")
    soft, loud = (encoder.prepare(Source("audio", tmp_path / f"{name}.wav")) for name in ("soft", "loud"))
    assert soft.shape == (101, 40)
    assert soft.max() == 0
    assert soft.min() >= -80
    assert torch.allclose(soft, loud, atol=1e-3)
    silence = tmp_path / "silence.wav"
    soundfile.write(silence, np.zeros(8000), 16_000)
    parts, _ = encoder(*collate([encoder.prepare(Source("audio", silence))]))
    assert torch.isfinite(parts).all()


def test_masked_conv1d_matches_naive_loop():
    torch.manual_seed(0)
    layer: Any = MaskedConv1d(3, 4, 5, norm=True).double()
    x, mask = torch.randn(2, 3, 9, dtype=torch.float64), torch.arange(9) < torch.tensor([[9], [6]])
    output = layer(x, mask)
    weight, bias = layer.convolution.weight, layer.convolution.bias
    for n in range(2):
        for t in range(int(mask[n].sum())):
            taps = [(k, t + k - 2) for k in range(5) if 0 <= t + k - 2 < mask[n].sum()]
            y: Any = sum((weight[:, :, k] @ x[n, :, position] for k, position in taps), bias.clone())
            y = (y - y.mean()) / (y.var(correction=0) + 1e-5).sqrt()
            assert torch.allclose(output[n, :, t], y.clamp_min(0))


def test_masked_max_pool_keeps_maximum_of_three():
    x = torch.tensor([[[1.0, 5, 2, 0, 3, 9]]])
    pooled, mask = masked_max_pool(x, torch.tensor([[True, True, True, True, True, False]]))
    assert pooled.tolist() == [[[5, 5, 3]]]  # the 9 is padding
    assert mask.tolist() == [[True, True, True]]


def test_text_encoders_share_vocabulary_format(sources):
    """One kind of saved file for both: text_transformer's, as before."""
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


def test_image_conv2d_returns_grid(sources):
    encoder = build_encoder("image_conv2d", sources, image_size=64)
    parts, mask = encoder(*collate([encoder.prepare(source) for source in sources["image"]]))
    assert parts.shape == (4, 16, 32)
    assert mask.shape == (4, 16)
    assert mask.all()


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
