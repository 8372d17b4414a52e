"""A space whose audio encoder has no weights still searches with texts."""

import json

import numpy as np
import pytest
import soundfile
import torch

from tests.app.cli.run_cli import triptych as run_triptych
from triptych.checkpoint import load, save
from triptych.encoders import ENCODERS
from triptych.encoders.unavailable import UnavailableEncoder
from triptych.encoders.weights import FOLDER_VARIABLE
from triptych.errors import CheckpointError
from triptych.interfaces import Source
from triptych.recipe import Recipe
from triptych.space import Space

pytestmark = pytest.mark.slow

RECIPE = """
objectives = [{name = "infonce", pairs = [["audio", "text"]]}]
[space]
embed_dim = 16
[space.encoders]
audio = {name = "efficientat_mn04", max_seconds = 2.0}
text = {name = "text_transformer"}
"""
COMMAND = "efficientat_mn04: its weights are missing; run: triptych encoders fetch efficientat_mn04"


@pytest.fixture(params=[("mean", "linear"), ("mean_max", "mlp")])
def space_file(request, tmp_path):
    """A saved space with a frozen audio encoder, and an audio file."""
    if reason := ENCODERS["efficientat_mn04"].unavailable_reason():
        pytest.skip(reason)
    pooling, head = request.param
    torch.manual_seed(0)
    space = Space(Recipe.parse(RECIPE, [f"space.pooling={pooling}", f"space.head={head}"])).eval()
    space.encoder("text").fit_vocabulary([Source("text", "a dog barks")])
    save(space, tmp_path / "space.safetensors")
    (tmp_path / "media").mkdir()
    soundfile.write(tmp_path / "media" / "a.wav", np.random.default_rng(0).normal(0, 0.1, 32_000), 16_000)
    return tmp_path / "space.safetensors"


def test_a_space_without_audio_weights_embeds_texts(space_file, tmp_path, monkeypatch):
    text, audio = Source("text", "a dog barks"), Source("audio", tmp_path / "media" / "a.wav")
    complete = load(space_file)
    expected = complete.embed_one(text).embedding
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "empty"))
    space = load(space_file)
    encoder = space.encoder("audio")
    assert isinstance(encoder, UnavailableEncoder)
    assert (encoder.feature_dim, encoder.max_seconds) == (384, 2.0)
    assert torch.equal(space.embed_one(text).embedding, expected)
    with pytest.raises(CheckpointError, match=COMMAND):
        space.embed_one(audio)
    with pytest.raises(CheckpointError, match=COMMAND):
        save(space, tmp_path / "copy.safetensors")
    with pytest.raises(CheckpointError, match=COMMAND):  # a new space needs all weights
        Space(Recipe.parse(RECIPE))
    monkeypatch.undo()
    assert torch.equal(load(space_file).embed_one(audio).embedding, complete.embed_one(audio).embedding)


def test_a_collection_is_searched_by_text_without_audio_weights(space_file, tmp_path, monkeypatch):
    collection = tmp_path / "collection"
    index = ["index", tmp_path / "media", "--space", space_file, "--collection", collection]
    result = run_triptych(*index)
    assert result.returncode == 0, result.stderr
    search = ["search", "a dog barks", "--collection", collection, "--json"]
    hits = json.loads(run_triptych(*search).stdout)
    assert hits
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "empty"))
    assert json.loads(run_triptych(*search).stdout) == hits
    result = run_triptych("search", "--audio", tmp_path / "media" / "a.wav", "--collection", collection)
    assert (result.returncode, result.stderr) == (2, f"error: {COMMAND}\n")
