"""Every encoder of the registry: the same source gives the same parts, whatever stands beside it."""

import numpy as np
import pytest
import soundfile
import torch

from bench.real_data import yamnet_weights
from tests.encoders.conftest import CAPTIONS
from triptych.contracts import Source
from triptych.data.loader import collate
from triptych.encoders import ENCODERS, yamnet
from triptych.errors import CheckpointError, MediaError, RecipeError, TrainingError


@pytest.fixture(params=ENCODERS)
def encoder(request, sources, monkeypatch):
    if weights := yamnet_weights():
        monkeypatch.setenv(yamnet.OWN_VARIABLE, weights)
    kind = ENCODERS[request.param]
    if lacks := kind.missing():
        pytest.skip(f"{request.param}: {lacks}")
    torch.manual_seed(0)
    encoder = kind().eval()
    encoder.learn(sources[encoder.modality])
    return encoder


@torch.inference_mode()
def parts_of(encoder, sources):
    """Each source's real parts, all in one batch."""
    parts, mask = encoder(*collate([encoder.prepare(source) for source in sources]))
    return [p[m] for p, m in zip(parts, mask, strict=True)]


def embedding(parts):
    """What a space would make of them: their mean, on the sphere."""
    return torch.nn.functional.normalize(parts.mean(dim=0), dim=0)


def test_neighbours_and_order_change_nothing(encoder, sources):
    mine = sources[encoder.modality]
    together = parts_of(encoder, mine)
    assert {p.shape[1] for p in together} == {encoder.width}
    for i, source in enumerate(mine):
        alone = parts_of(encoder, [source])[0]
        assert alone.shape == together[i].shape
        assert torch.allclose(alone, together[i], atol=1e-5), "padding or neighbours leak"
        assert torch.allclose(embedding(alone), embedding(together[i]), atol=1e-6, rtol=0)
    backwards = parts_of(encoder, mine[::-1])[::-1]
    for one, other in zip(together, backwards, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_what_stands_in_the_padding_changes_nothing(encoder, sources):
    inputs, mask = collate([encoder.prepare(source) for source in sources[encoder.modality]])
    garbage = inputs.clone()
    garbage[~mask] = 7
    with torch.inference_mode():
        (clean, clean_mask), (dirty, _) = encoder(inputs, mask), encoder(garbage, mask)
    assert torch.allclose(clean[clean_mask], dirty[clean_mask], atol=1e-6)


def test_different_sources_differ_and_parts_are_ordered(encoder, sources):
    first, second = parts_of(encoder, sources[encoder.modality][2:])
    shortest = min(len(first), len(second))
    assert not torch.allclose(first[:shortest], second[:shortest], atol=1e-2)
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


def test_what_it_learned_survives_saving(encoder, sources):
    other = type(encoder)().eval()
    other.load_state_dict(encoder.state_dict())
    if encoder.files():
        other.restore(encoder.files())
    for one, two in zip(*(parts_of(e, sources[encoder.modality]) for e in (encoder, other)), strict=True):
        assert torch.equal(one, two)


def test_audio_longer_than_the_window_is_heard_from_its_start(tmp_path):
    encoder = ENCODERS["audio_cnn"](seconds=0.5)
    soundfile.write(tmp_path / "long.wav", np.linspace(0, 0.5, 32_000), 16_000)
    whole = encoder.prepare(Source("audio", tmp_path / "long.wav"))
    start = encoder.prepare(Source("audio", tmp_path / "long.wav", 0.0, 0.5))
    later = encoder.prepare(Source("audio", tmp_path / "long.wav", 1.0, 1.5))
    assert torch.equal(whole, start)
    assert whole.shape == later.shape
    assert not torch.equal(whole, later)


def test_words_are_learned_whatever_their_order():
    one, other = ENCODERS["text_transformer"](), ENCODERS["text_transformer"]()
    one.learn(Source("text", c) for c in CAPTIONS)
    other.learn(Source("text", c) for c in [*CAPTIONS[::-1], CAPTIONS[0]])
    assert one.files() == other.files()


def test_text_files_and_texts_are_read_alike(tmp_path):
    encoder = ENCODERS["text_transformer"]()
    encoder.learn(Source("text", c) for c in CAPTIONS)
    (tmp_path / "note.txt").write_text(f"  {CAPTIONS[0]}\n")
    from_file = encoder.prepare(Source("text", tmp_path / "note.txt"))
    assert torch.equal(from_file, encoder.prepare(Source("text", CAPTIONS[0])))


def test_mistakes_are_explained():
    text = ENCODERS["text_transformer"]()
    with pytest.raises(CheckpointError, match="no vocabulary yet"):
        text.prepare(Source("text", "a bell"))
    with pytest.raises(TrainingError, match="no captions to learn words from"):
        text.learn([])
    text.learn(Source("text", c) for c in CAPTIONS)
    with pytest.raises(MediaError, match="holds no words"):
        text.prepare(Source("text", " \n "))
    for name, settings in [
        ("audio_cnn", {"hop_ms": 0.0}),
        ("audio_cnn", {"rate": 0}),
        ("audio_cnn", {"seconds": float("nan")}),
        ("image_cnn", {"width": 0}),
        ("text_transformer", {"heads": 0}),
        ("text_transformer", {"layers": 0}),
        ("text_transformer", {"vocabulary": 10}),
    ]:
        with pytest.raises(RecipeError, match=f"{name}: {next(iter(settings))} = .*must be"):
            ENCODERS[name](**settings)
    for name, settings in {
        "audio_cnn": {"mels": 20},
        "image_cnn": {"size": 60},
        "text_transformer": {"heads": 3},
    }.items():
        with pytest.raises(RecipeError, match=name):
            ENCODERS[name](**settings)
