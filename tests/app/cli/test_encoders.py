"""The `triptych encoders` commands."""

import json
import re

import pytest

from bench.real_data import SHARED_WEIGHTS
from tests.app.cli.run_cli import triptych
from tests.real_data import find_dataset_or_skip
from triptych.encoders import ENCODERS

pytestmark = pytest.mark.slow


def test_json_lists_every_encoder():
    infos = {info["name"]: info for info in json.loads(triptych("encoders", "--json").stdout)}
    assert infos.keys() == ENCODERS.keys()
    for name, info in infos.items():
        assert info["licence"], name
        assert info["unavailable_reason"] == ENCODERS[name].unavailable_reason()
    encoder = ENCODERS["audio_cnn"]()
    assert infos["audio_cnn"]["parameters"] == sum(p.numel() for p in encoder.parameters())
    assert infos["audio_cnn"]["feature_dim"] == encoder.feature_dim
    expected = {"modality": "text", "feature_dim": 384, "part_name": "token", "parameters": 22_466_304, "frozen": True}
    assert expected.items() <= infos["minilm"].items()


def test_table_says_how_to_provide_missing_weights(monkeypatch, tmp_path):
    monkeypatch.setenv("TRIPTYCH_WEIGHTS", str(tmp_path))
    result = triptych("encoders")
    assert result.returncode == 0
    assert re.search(r"efficientnet_lite0 +image +region +1280 +3.4 M +Apache-2.0 +yes", result.stdout)
    assert re.search(r"efficientat_mn04 +audio +frame +384 +0.5 M +MIT +no", result.stdout)
    not_ready = result.stdout.partition("not ready:")[2]
    for command in ("efficientat_mn04", "yamnet --from yamnet.safetensors"):
        name = command.partition(" ")[0]
        assert f"{name}: its weights are missing; run: triptych encoders fetch {command}\n" in not_ready


def test_fetch_from_a_file_makes_the_encoder_ready(monkeypatch, tmp_path):
    monkeypatch.setenv("TRIPTYCH_WEIGHTS", str(tmp_path / "weights"))
    dataset, name = SHARED_WEIGHTS["efficientat_mn04"]
    copy = tmp_path / "copy"
    copy.write_bytes((find_dataset_or_skip(dataset) / name).read_bytes())
    result = triptych("encoders", "fetch", "efficientat_mn04", "--from", copy)
    folder = tmp_path / "weights" / "efficientat_mn04"
    assert (result.returncode, result.stdout) == (0, f"efficientat_mn04: ready in {folder}\n")
    copy.unlink()
    assert ENCODERS["efficientat_mn04"].unavailable_reason() is None
    assert triptych("encoders", "fetch", "efficientat_mn04").stdout == result.stdout  # nothing to download


def test_a_file_for_a_recipe_is_that_of_its_only_encoder_without_weights(monkeypatch, tmp_path):
    monkeypatch.setenv("TRIPTYCH_WEIGHTS", str(tmp_path / "weights"))
    if reasons := [r for name in ("efficientnet_lite2", "minilm") if (r := ENCODERS[name].unavailable_reason())]:
        pytest.skip(reasons[0])
    dataset, name = SHARED_WEIGHTS["efficientat_mn04"]
    result = triptych("encoders", "fetch", "starter", "--from", find_dataset_or_skip(dataset) / name)
    assert result.returncode == 0, result.stderr
    assert f"efficientat_mn04: ready in {tmp_path / 'weights' / 'efficientat_mn04'}\n" in result.stdout
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == [
        "efficientnet_lite2", "efficientat_mn04", "minilm",
    ]  # fmt: skip


def test_fetch_of_a_recipe_fetches_the_other_encoders_if_one_fails(monkeypatch, tmp_path):
    monkeypatch.setenv("TRIPTYCH_WEIGHTS", str(tmp_path))
    if reason := ENCODERS["minilm"].unavailable_reason():
        pytest.skip(reason)
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'objectives = [{name = "infonce", pairs = [["audio", "text"]]}]\n'
        '[space.encoders]\naudio = {name = "yamnet"}\ntext = {name = "minilm"}\n'
    )
    result = triptych("encoders", "fetch", recipe, "audio_cnn")
    assert result.returncode == 2
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["minilm", "audio_cnn"]
    assert "error: yamnet: its weights have no public address; " in result.stderr
    model = tmp_path / "hub.toml"
    model.write_text(recipe.read_text().replace('name = "yamnet"', 'name = "hf_audio", model = "no/such/folder"'))
    assert "hf_audio: model = 'no/such/folder': no such folder" in triptych("encoders", "fetch", model).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["minlm"], "encoder or recipe 'minlm' is unknown; .*did you mean 'minilm'"),
        (["audit", "yamnet", "--from", "x"], "--from x: give the name of one encoder; got efficientat_mn04, yamnet"),
        (["yamnet", "--from", "absent"], r"absent: cannot be read \(No such file"),
        (["hf_text"], "hf_text: the encoder has no default weights"),
    ],
)
def test_invalid_arguments_raise(arguments, message, monkeypatch, tmp_path):
    monkeypatch.setenv("TRIPTYCH_WEIGHTS", str(tmp_path))
    result = triptych("encoders", "fetch", *arguments)
    assert result.returncode == 2
    assert re.search(f"error: {message}", result.stderr)
