"""`triptych encoders`: every encoder of the registry is there, with what is known and what is missing."""

import json
import re

import pytest

from tests.app.cli.run_cli import triptych
from triptych.encoders import ENCODERS

pytestmark = pytest.mark.slow


def test_json_lists_every_encoder():
    found = {facts["name"]: facts for facts in json.loads(triptych("encoders", "--json").stdout)}
    assert found.keys() == ENCODERS.keys()
    for name, facts in found.items():
        assert facts["licence"], name
        assert facts["unavailable_reason"] == ENCODERS[name].unavailable_reason()
    encoder = ENCODERS["audio_cnn"]()
    assert found["audio_cnn"]["parameters"] == sum(p.numel() for p in encoder.parameters())
    assert found["audio_cnn"]["feature_dim"] == encoder.feature_dim
    known = {"modality": "text", "feature_dim": 384, "part_name": "token", "parameters": 22_466_304, "frozen": True}
    assert known.items() <= found["minilm"].items()


def test_table_says_how_to_provide_missing_weights(monkeypatch):
    for variable in ("TRIPTYCH_YAMNET", "TRIPTYCH_DATA"):
        monkeypatch.delenv(variable, raising=False)
    result = triptych("encoders")
    assert result.returncode == 0
    assert "yamnet: its weights are missing: set `weights`, or the environment variable" in result.stdout
    assert re.search(r"efficientnet_lite0 +image +region +1280 +3.4 M +Apache-2.0", result.stdout)
