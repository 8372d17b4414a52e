"""The `triptych validate` command."""

import json

import pytest

from tests.app.cli.run_cli import triptych

pytestmark = pytest.mark.slow


def test_validate_lists_problems_and_exits_2(synthetic_manifest, tmp_path):
    clean = triptych("validate", synthetic_manifest)
    assert clean.returncode == 0
    assert "80 rows, 160 captions" in clean.stdout
    (tmp_path / "pairs.csv").write_text("audio,text,colour\nmissing.wav,a bell,red\n../up.wav,,red\n")
    result = triptych("validate", tmp_path / "pairs.csv")
    assert result.returncode == 2
    for part in ("missing file: 1", "row 2, audio: no such file: missing.wav", "outside path", "colour"):
        assert part in result.stdout
    assert json.loads(triptych("validate", tmp_path / "pairs.csv", "--json").stdout)["errors"] == 2
