"""The `triptych spaces` commands, and `triptych index` without --space."""

import json
import shutil

import numpy as np
import pytest
import soundfile
from huggingface_hub import constants
from PIL import Image
from typer.testing import CliRunner

from tests.app.cli.run_cli import triptych
from tests.encoders.tiny_joint_models import save_model
from tests.spaces.hub_folder import add_model
from triptych.app import cli
from triptych.errors import TriptychError
from triptych.spaces.known import RECOMMENDED

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A new configuration folder and cache of the hub, without network."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("TRIPTYCH_SPACE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def omni_model(tmp_path_factory):
    """A tiny random model of images, audio and texts, in a folder."""
    return save_model("embedding_gemma2", tmp_path_factory.mktemp("omni") / "model")


@pytest.fixture
def media(tmp_path):
    """A folder with two images, two sounds, a text and a file that is none of these."""
    folder = tmp_path / "media"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(2):
        Image.fromarray(rng.integers(0, 255, (40, 40, 3), np.uint8)).save(folder / f"{number}.png")
        soundfile.write(folder / f"{number}.wav", 0.3 * rng.standard_normal(8000), 8000)
    (folder / "note.txt").write_text("a red bell")
    (folder / "drawing.svg").write_text("<svg/>")
    return folder


def test_index_and_search_without_a_space_use_the_model_in_the_cache(home, omni_model, media):
    add_model(home / "hf" / "hub", RECOMMENDED.removeprefix("hf:"), omni_model)
    result = triptych("index", media, cwd=home)
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith(f"space: {RECOMMENDED} (in the cache of the Hugging Face hub); choose another")
    assert "skipped: 1 .svg (unsupported format" in result.stderr
    assert "files not indexed: 1; collection/not-indexed.tsv lists them" in result.stderr
    assert "next: triptych search 'some words', or triptych serve\n" in result.stderr
    assert "5 items (5 new" in result.stdout
    hits = json.loads(triptych("search", "a red bell", "--json", cwd=home).stdout)
    assert {hit["modality"] for hit in hits} == {"image", "audio", "text"}


def run(*arguments):
    """Run a command in this process, and return its output. Errors are raised."""
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], catch_exceptions=False).stdout


def test_the_list_the_choice_and_the_reset(run_dir, monkeypatch):
    infos = {info["name"]: info for info in json.loads(run("spaces", "--json"))}
    assert infos["starter"]["is_default"]
    assert infos[RECOMMENDED]["needs"][-1] == f"triptych encoders fetch {RECOMMENDED}"
    shown = run("spaces").replace("\n", "")
    assert all(f"to use {name}: " in shown for name, info in infos.items() if info["needs"])
    monkeypatch.chdir(run_dir.parent)
    assert "config.toml" in run("spaces", "use", "run")
    (chosen,) = (info for info in json.loads(run("spaces", "--json")) if info["is_default"])
    assert chosen["name"] == str(run_dir)
    assert "config.toml: deleted" in run("spaces", "reset")
    assert "config.toml: no such file" in run("spaces", "reset")


def damage_model(folder, damage):
    if damage == "no weights":
        (folder / "model.safetensors").unlink()
    elif damage == "half of the weights":
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    else:
        code = {"AutoModel": "their_code.Model", "AutoConfig": "their_code.Config"}
        config = {"model_type": "their_model", "auto_map": code}
        (folder / "config.json").write_text(json.dumps(config if damage == "code" else {"layers": 3}))
        (folder / "their_code.py").write_text("raise SystemExit('the code of the model ran')")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("no weights", "no *.safetensors in the folder"),
        ("half of the weights", "incomplete or damaged"),
        ("code", "the model contains code, which triptych does not run"),
        ("another library", "belongs to another library"),
    ],
)
def test_a_bad_model_is_one_error_and_writes_nothing(damage, message, home, omni_model, media, monkeypatch):
    model = shutil.copytree(omni_model, home / "model")
    damage_model(model, damage)
    monkeypatch.chdir(home)
    before = sorted(home.rglob("*"))
    with pytest.raises(TriptychError) as error:
        run("index", media, "--space", f"hf:{model}")
    assert message in str(error.value)
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("name", ["/nowhere", "runs/none"])
def test_a_chosen_space_that_does_not_exist_is_an_error(name, home, media, monkeypatch):
    monkeypatch.setenv("TRIPTYCH_SPACE", name)
    result = triptych("index", media, cwd=home)
    assert result.returncode == 2
    assert f"error: the space in TRIPTYCH_SPACE does not exist: {name}: no such run folder" in result.stderr
    assert not (home / "collection").exists()
