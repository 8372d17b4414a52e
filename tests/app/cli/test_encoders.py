"""The `triptych encoders` command."""

import json
import re

import pytest

from tests.app.cli.run_cli import triptych
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
    assert "efficientat_mn04: its weights are missing; run: triptych encoders fetch efficientat_mn04" in result.stdout
    assert re.search(r"efficientnet_lite0 +image +region +1280 +3.4 M +Apache-2.0", result.stdout)
