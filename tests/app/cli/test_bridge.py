"""The bridge command, as a process."""

import json

import pytest

from tests.app.cli.run_cli import triptych

pytestmark = pytest.mark.slow


def test_bridge_writes_a_space_that_other_commands_use(image_text_run, audio_text_run, synthetic_manifest, tmp_path):
    options = ["--texts", synthetic_manifest, "--media", synthetic_manifest, "-o", "both"]
    (tmp_path / "texts.txt").write_text("\n".join(f"text {i} of red bells and blue birds" for i in range(250)))
    result = triptych("bridge", image_text_run, audio_text_run, *options[2:], "--texts", "texts.txt", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "image half → audio half" in result.stdout
    assert "fitted to 250 texts; centres:" in result.stdout
    result = triptych("evaluate", "both", "--data", synthetic_manifest, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)) == 6
    command = ("bridge", image_text_run, audio_text_run, "--texts", "texts.txt", "-o", "other")
    result = triptych(*command, "--media", "texts.txt", cwd=tmp_path)
    assert result.returncode == 2
    assert "--media texts.txt: no images or audio" in result.stderr
    assert not (tmp_path / "other").exists()
    result = triptych("index", synthetic_manifest, "--split", "test", "--space", "both", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    result = triptych("bridge", image_text_run, audio_text_run, *options[:2], "-o", "other", cwd=tmp_path)
    assert result.returncode == 2
    assert "different texts; a bridge needs at least 200" in result.stderr
    assert not (tmp_path / "other").exists()
