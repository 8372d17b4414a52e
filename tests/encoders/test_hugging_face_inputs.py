"""Preprocessing by tokenizers, image processors and feature extractors."""

import json
import math

import numpy as np
import pytest
import soundfile
import torch

from tests.encoders import tiny_models
from tests.encoders.conftest import TEXTS
from tests.encoders.test_backbone import build_encoder, load_reference_model, parts_of
from triptych.data.loader import prepare_sources
from triptych.encoders import ENCODERS
from triptych.errors import MediaError
from triptych.interfaces import Source

pytestmark = pytest.mark.slow


pytest.importorskip("transformers", reason="the extra 'pretrained' is not installed")


def test_long_audio_is_truncated_and_read_in_segments(folders, tmp_path):
    path = tmp_path / "long.wav"
    soundfile.write(path, np.random.default_rng(0).normal(0, 0.1, 24_000), 8000)
    for case in ("wav2vec2", "clap", "whisper", "spectrogram_transformer"):
        encoder = build_encoder(folders, case)
        untrimmed, start = (
            encoder.prepare(Source("audio", path, *segment)) for segment in ((), (0.0, encoder.max_seconds))
        )
        later = encoder.prepare(Source("audio", path, 1.0, 1.0 + encoder.max_seconds))
        assert torch.equal(untrimmed, start)
        assert untrimmed.shape == later.shape
        assert not torch.equal(untrimmed, later)
        click = tmp_path / "click.wav"
        soundfile.write(click, np.ones(3), 8000)
        assert torch.isfinite(parts_of(encoder, [Source("audio", click)])[0]).all()


def test_long_texts_are_truncated_with_warning(folders):
    for case, limit in (("bert", 24), ("roberta", 22)):
        encoder = build_encoder(folders, case)
        with pytest.warns(UserWarning, match=f"hf_text: texts of more than {limit} tokens are truncated"):
            token_ids = encoder.prepare(Source("text", "rain " * 40))
        assert len(token_ids) == limit
        assert token_ids[-1] == 3
        assert torch.isfinite(parts_of(encoder, [Source("text", "rain " * (limit - 2))])[0]).all()
    with pytest.warns(UserWarning, match="more than 6 tokens"):
        assert len(build_encoder(folders, "bert", max_length=6).prepare(Source("text", TEXTS[2]))) == 6


def test_tokenizer_panic_raises_media_error(tmp_path):
    """The library panics, which is not an Exception and would end a loader thread or the server."""
    folder = tiny_models.bert(tmp_path / "model")
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(x+x+)+y"},
        "behavior": "Isolated",
        "invert": False,
    }
    file.write_text(json.dumps(tokenizer))
    encoder = ENCODERS["hf_text"](model=str(folder))
    sources = [Source("text", "x" * 200), Source("text", "a dog barks")]
    (_, bad), (_, good) = prepare_sources(sources, encoder)
    assert isinstance(bad, MediaError)
    assert str(bad).startswith(f"{file}: cannot tokenise 'xxxx")
    assert isinstance(good, torch.Tensor)


@pytest.mark.parametrize("case", ["bert", "vit", "wav2vec2", "whisper"])
def test_prepare_is_thread_safe(case, folders, five_sources):
    encoder = build_encoder(folders, case)
    many = five_sources[encoder.modality] * 8
    for source, tensor in prepare_sources(many, encoder, workers=4):
        assert isinstance(tensor, torch.Tensor)
        assert torch.equal(tensor, encoder.prepare(source))


@torch.inference_mode()
def test_padding_of_fixed_window_is_masked_if_extractor_marks_it(folders, five_sources):
    encoder = build_encoder(folders, "whisper")
    parts_per_source = parts_of(encoder, five_sources["audio"])
    lengths = [soundfile.info(source.content).duration for source in five_sources["audio"]]
    assert [len(parts) for parts in parts_per_source] == [math.ceil(seconds * 50) for seconds in lengths]  # 20 ms each
    reference_encoder = load_reference_model(folders["whisper"]).get_encoder()
    inputs = encoder.prepare(five_sources["audio"][0])
    states = reference_encoder(inputs[:, :-1]).last_hidden_state[0]
    assert torch.allclose(parts_per_source[0], states[: len(parts_per_source[0])], atol=1e-5)
