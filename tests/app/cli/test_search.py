"""The `triptych search` command."""

import json
import os
import shutil

import pytest

from tests.app.cli.run_cli import triptych

pytestmark = pytest.mark.slow


def test_file_names_that_are_not_utf8(run_dir, synthetic_manifest, tmp_path):
    collection, path = tmp_path / "c", tmp_path / os.fsdecode(b"q\xff.wav")
    assert (
        triptych(
            "index", synthetic_manifest.parent / "audio", "--space", run_dir, "--collection", collection
        ).returncode
        == 0
    )
    shutil.copy(synthetic_manifest.parent / "audio" / "000003.wav", path)
    for arguments in (["--audio", path], ["bell", "--not", path]):
        result = triptych("search", *arguments, "--collection", collection, "-k", "2", "--json")
        assert result.returncode == 0, result.stderr
        assert len(json.loads(result.stdout)) == 2
    for arguments in (["--item", path.name], ["bell", "--folder", path.name], ["bell", "--where", f"{path.name}=1"]):
        result = triptych("search", *arguments, "--collection", collection)
        assert result.returncode == 2
        assert "is not UTF-8" in result.stderr
        assert "damaged" not in result.stderr


def test_search_shows_segment_without_end(run_dir, synthetic_manifest, tmp_path):
    path = next((synthetic_manifest.parent / "audio").iterdir())
    shutil.copy(path, tmp_path / "s.wav")
    (tmp_path / "pairs.csv").write_text("audio,text,start\ns.wav,a bell,0.5\n")
    assert triptych("index", tmp_path / "pairs.csv", "--space", run_dir, "--collection", tmp_path / "c").returncode == 0
    result = triptych("search", "a", "bell", "--collection", tmp_path / "c", "--modality", "audio")
    assert "s.wav [0.5–end s]" in result.stdout, result.stderr
