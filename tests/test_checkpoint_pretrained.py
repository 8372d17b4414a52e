"""Shared spaces: the layout of the Hugging Face hub, no local paths, no network access."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer

import triptych
from tests.conftest import have_identical_weights
from tests.hub_server import hub_server
from triptych.checkpoint import resolve_path
from triptych.errors import CheckpointError
from triptych.interfaces import Source
from triptych.recipe import Recipe

pytestmark = pytest.mark.slow

OFFLINE = """
import socket, sys
def refuse(*_): raise OSError("no network")
socket.socket.connect = refuse
import triptych
space = triptych.load(sys.argv[1])
print(space.embed_one(triptych.Source("text", "two red bells")).embedding.sum().item())
"""

PUSH = """
import pathlib, sys
import triptych, triptych.errors
space = triptych.load(sys.argv[1])
try:
    print(space.push_to_hub("me/space", token=sys.argv[2]))
    copy = triptych.Space.from_pretrained("me/space")
    print((copy.encode("two red bells") == space.encode("two red bells")).all(), pathlib.Path(copy.name_or_path).name)
except triptych.errors.TriptychError as error:
    print(error)
"""


def test_a_pretrained_folder_loads_after_being_moved(run_dir, tmp_path):
    space = triptych.load(run_dir)
    space.save_pretrained(tmp_path / "shared")
    names = {"model.safetensors", "config.json", "recipe.toml", "tokenizer.json", "README.md"}
    assert {p.name for p in (tmp_path / "shared").iterdir()} == names
    shutil.move(tmp_path / "shared", tmp_path / "elsewhere")
    for reloaded in (triptych.load(tmp_path / "elsewhere"), triptych.load(str(tmp_path / "elsewhere"))):
        assert have_identical_weights(space, reloaded)
        assert reloaded.history == space.history
        query = Source("text", "two red bells")
        assert torch.equal(space.embed_one(query).embedding, reloaded.embed_one(query).embedding)
    assert resolve_path(tmp_path / "elsewhere").name == "model.safetensors"


def test_a_pretrained_folder_holds_no_local_paths(run_dir, tmp_path):
    triptych.load(run_dir).save_pretrained(tmp_path / "shared")
    data = Recipe.load(run_dir / "recipe.toml").data
    assert "/" in data.manifest
    for path in (tmp_path / "shared").iterdir():
        content = path.read_bytes()
        assert str(tmp_path.parent.parent).encode() not in content, path.name
        assert data.manifest.encode() not in content, path.name
    assert Recipe.load(tmp_path / "shared" / "recipe.toml").data.manifest == "manifest.csv"


def test_a_pretrained_folder_loads_offline(run_dir, tmp_path):
    space = triptych.load(run_dir)
    space.save_pretrained(tmp_path / "shared")
    command = [sys.executable, "-c", OFFLINE, str(tmp_path / "shared")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    expected = space.embed_one(Source("text", "two red bells")).embedding.sum().item()
    assert float(output) == torch.tensor(expected).item()


def test_config_and_tokenizer_follow_the_hub_format(run_dir, tmp_path):
    space = triptych.load(run_dir)
    space.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "triptych"
    assert config["encoders"] == {m: part.name for m, part in space.recipe.space.encoders.items()}
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = space.encoder("text").prepare(Source("text", "two red bells")).tolist()
    assert tokenizer.encode("two red bells").ids == ids


def test_a_folder_of_another_model_type_is_not_a_space(run_dir, tmp_path):
    triptych.load(run_dir).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CheckpointError, match="'bert', which has one modality or no embeddings"):
        triptych.load(tmp_path)


def test_a_space_is_pushed_to_the_hub_and_loaded_from_it(run_dir, tmp_path):
    def push(token):
        environment = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
        environment.pop("HF_HUB_OFFLINE", None)
        command = [sys.executable, "-c", PUSH, str(run_dir), token]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.splitlines()

    with hub_server("secret") as (address, files):
        (refusal,) = push("wrong")
        assert refusal.startswith("hf:me/space: ")
        assert "hf auth login" in refusal
        assert files == {}
        commit_url, result = push("secret")
    assert commit_url.startswith(f"{address}/me/space/commit/")
    assert set(files) >= {"model.safetensors", "config.json", "recipe.toml", "tokenizer.json", "README.md"}
    assert result == "True model.safetensors"
    assert str(run_dir).encode() not in b"".join(files.values())
