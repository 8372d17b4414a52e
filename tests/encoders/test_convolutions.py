"""The convolutional encoders that are trained from scratch, against plain re-writings of them."""

from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F

from triptych.contracts import Source
from triptych.data.loader import collate
from triptych.encoders import ENCODERS
from triptych.encoders.temporal import TimeConvolution, halve
from triptych.errors import CheckpointError, RecipeError

SMALL = {
    "speech_cnn": {"width": 16},
    "audio_conv1d": {"width": 16, "mels": 16},
    "image_conv2d": {"width": 32, "size": 32},
    "text_conv1d": {"width": 16, "layers": 2},
}


def make(name, sources, **settings) -> Any:
    torch.manual_seed(0)
    encoder = ENCODERS[name](**SMALL[name] | settings).eval()
    encoder.learn(sources[encoder.modality])
    return encoder


def embeddings(encoder, sources):
    """Unit means of the real parts, all in one batch, as a space makes them."""
    with torch.inference_mode():
        parts, mask = encoder(*collate([encoder.prepare(source) for source in sources]))
    return F.normalize(torch.stack([p[m].mean(dim=0) for p, m in zip(parts, mask, strict=True)]), dim=1)


@pytest.mark.parametrize(("name", "settings"), [*((name, {}) for name in SMALL), ("speech_cnn", {"norm": "batch"})])
def test_padding_and_neighbours_change_nothing(name, settings, sources):
    encoder = make(name, sources, **settings)
    mine = sources[encoder.modality]
    together = embeddings(encoder, mine)
    alone = torch.cat([embeddings(encoder, [source]) for source in mine])
    assert torch.allclose(together, alone, atol=1e-6)
    assert not torch.allclose(together[0], together[1], atol=1e-2)


@pytest.mark.parametrize("name", SMALL)
def test_the_padding_is_never_seen_and_gets_no_gradient(name, sources):
    encoder = make(name, sources).train()
    inputs, mask = collate([encoder.prepare(source) for source in sources[encoder.modality]])
    parts, part_mask = encoder(inputs, mask)
    garbage = inputs.clone()
    garbage[~mask] = 7
    dirty, _ = encoder(garbage, mask)
    assert torch.allclose(parts[part_mask], dirty[part_mask], atol=1e-6)
    (parts[part_mask] ** 2).mean().backward()
    for parameter_name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", ["speech_cnn", "audio_conv1d"])
def test_gradients_are_those_of_finite_differences(name, sources):
    encoder = make(name, sources, width=8).double()
    torch.manual_seed(1)
    inputs = torch.randn(2, 40, encoder.mels, dtype=torch.float64)
    mask = torch.arange(40) < torch.tensor([[40], [25]])
    target = torch.randn(encoder(inputs, mask)[0].shape, dtype=torch.float64)

    def loss(weight):
        parts, part_mask = torch.func.functional_call(encoder, {key: weight}, (inputs, mask))
        return ((parts - target)[part_mask] ** 2).mean()

    for key in ("convolutions.0.convolution.weight", "convolutions.2.convolution.bias"):
        weight = dict(encoder.named_parameters())[key].detach().clone().requires_grad_()
        (exact,) = torch.autograd.grad(loss(weight), weight)
        for _ in range(3):
            way = torch.randn_like(weight)
            with torch.no_grad():
                slope = (loss(weight + 1e-6 * way) - loss(weight - 1e-6 * way)) / 2e-6
            assert torch.allclose(slope, (exact * way).sum(), rtol=1e-4, atol=1e-7)


def test_speech_cnn_is_the_published_stack(sources):
    """The paper's layers, written as it has them: 2-D, with the input's bands as height."""
    encoder = make("speech_cnn", sources, width=1024, norm="batch")
    shapes = [tuple(c.convolution.weight.shape) for c in encoder.convolutions]
    assert shapes == [(128, 40, 1), (256, 128, 11), (512, 256, 17), (512, 512, 17), (1024, 512, 17)]
    encoder = make("speech_cnn", sources, norm="batch").train()
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


def test_batch_norm_takes_real_frames_alone_and_remembers_them(sources):
    encoder = make("speech_cnn", sources, norm="batch").train()
    frames = [encoder.prepare(source) for source in sources["audio"]]
    inputs, mask = collate(frames)
    values = torch.cat(frames)
    scaled = encoder.scale(inputs, mask)
    expected = (values - values.mean()) / (values.var(correction=0) + 1e-5).sqrt()
    assert torch.allclose(scaled[mask], expected, atol=1e-5)
    assert torch.equal(scaled[~mask], torch.zeros_like(scaled[~mask]))
    assert torch.allclose(encoder.scale.norm.running_mean, 0.1 * values.mean(), atol=1e-4)


def test_item_norm_makes_each_item_alike_in_loudness_and_contrast(sources):
    encoder = make("speech_cnn", sources)
    inputs, mask = collate([encoder.prepare(source) for source in sources["audio"]])
    scaled = encoder.scale(inputs, mask)
    for row, real in zip(scaled, mask, strict=True):
        assert torch.allclose(row[real].mean(), torch.zeros(()), atol=1e-5)
        assert torch.allclose(row[real].std(correction=0), torch.ones(()), atol=1e-4)
    assert torch.allclose(encoder.scale(2 * inputs - 5, mask)[mask], scaled[mask], atol=1e-4)


def test_speech_frames_are_relative_to_the_loudest(tmp_path):
    """40 bands, 10 ms apart, in dB below the loudest: a louder recording is the same."""
    encoder = ENCODERS["speech_cnn"](width=8)
    sound = np.random.default_rng(0).normal(0, 0.05, 16_000)
    for name, gain in (("soft", 1.0), ("loud", 4.0)):
        soundfile.write(tmp_path / f"{name}.wav", gain * sound, 16_000, subtype="FLOAT")
    soft, loud = (encoder.prepare(Source("audio", tmp_path / f"{name}.wav")) for name in ("soft", "loud"))
    assert soft.shape == (101, 40)
    assert soft.max() == 0
    assert soft.min() >= -80
    assert torch.allclose(soft, loud, atol=1e-3)
    silence = tmp_path / "silence.wav"
    soundfile.write(silence, np.zeros(8000), 16_000)
    parts, _ = encoder(*collate([encoder.prepare(Source("audio", silence))]))
    assert torch.isfinite(parts).all()


def test_convolution_along_time_is_a_plain_sum():
    torch.manual_seed(0)
    layer: Any = TimeConvolution(3, 4, 5, norm=True).double()
    x, mask = torch.randn(2, 3, 9, dtype=torch.float64), torch.arange(9) < torch.tensor([[9], [6]])
    found = layer(x, mask)
    weight, bias = layer.convolution.weight, layer.convolution.bias
    for n in range(2):
        for t in range(int(mask[n].sum())):
            near = [(k, t + k - 2) for k in range(5) if 0 <= t + k - 2 < mask[n].sum()]
            y: Any = sum((weight[:, :, k] @ x[n, :, place] for k, place in near), bias.clone())
            y = (y - y.mean()) / (y.var(correction=0) + 1e-5).sqrt()
            assert torch.allclose(found[n, :, t], y.clamp_min(0))


def test_halving_keeps_the_largest_of_three():
    x = torch.tensor([[[1.0, 5, 2, 0, 3, 9]]])
    halved, mask = halve(x, torch.tensor([[True, True, True, True, True, False]]))
    assert halved.tolist() == [[[5, 5, 3]]]  # the 9 is padding
    assert mask.tolist() == [[True, True, True]]


def test_text_encoders_read_each_others_vocabulary(sources):
    """One kind of saved file for both: text_transformer's, as before."""
    one = make("text_conv1d", sources)
    other = ENCODERS["text_transformer"]()
    other.learn(sources["text"])
    assert one.files() == other.files()
    fresh = ENCODERS["text_conv1d"](**SMALL["text_conv1d"])
    with pytest.raises(CheckpointError, match="no vocabulary yet"):
        fresh.prepare(sources["text"][0])
    fresh.restore(other.files())
    assert torch.equal(fresh.prepare(sources["text"][2]), one.prepare(sources["text"][2]))


def test_text_parts_see_only_their_neighbours(sources):
    encoder = make("text_conv1d", sources, layers=2)
    words = encoder.prepare(sources["text"][2])
    changed = words.clone()
    changed[-1] = (changed[-1] + 1) % 200
    with torch.inference_mode():
        before, after = (encoder(*collate([w]))[0][0] for w in (words, changed))
    assert torch.allclose(before[:-3], after[:-3], atol=1e-6)
    assert not torch.allclose(before[-3], after[-3], atol=1e-4)


def test_pictures_become_a_grid(sources):
    encoder = make("image_conv2d", sources, size=64)
    parts, mask = encoder(*collate([encoder.prepare(source) for source in sources["image"]]))
    assert parts.shape == (4, 16, 32)
    assert mask.shape == (4, 16)
    assert mask.all()


def test_mistakes_are_explained():
    for name, settings in [
        ("speech_cnn", {"width": 0}),
        ("speech_cnn", {"width": 12}),
        ("speech_cnn", {"seconds": float("inf")}),
        ("speech_cnn", {"norm": "layer"}),
        ("audio_conv1d", {"hop_ms": 0.0}),
        ("audio_conv1d", {"width": 7}),
        ("image_conv2d", {"size": 40}),
        ("image_conv2d", {"width": 48}),
        ("text_conv1d", {"layers": 0}),
        ("text_conv1d", {"vocabulary": 10}),
    ]:
        with pytest.raises(RecipeError, match=f"^{name}: .*{next(iter(settings))}"):
            ENCODERS[name](**settings)
