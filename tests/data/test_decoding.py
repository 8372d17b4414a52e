"""Decoding the files of a manifest: undecodable files are errors of their rows."""

import json
import subprocess
import sys

import pytest

from tests.data.dataset_replicas import png_bytes, write_file
from tests.data.manifest_files import write_manifest
from tests.media.media_files import noise, save_audio, save_video
from triptych.data import manifest
from triptych.data.decoding import count_decodings, decode_files

pytestmark = pytest.mark.slow


@pytest.fixture
def manifest_path(tmp_path):
    """A manifest of valid rows and of rows with undecodable files."""
    save_audio(tmp_path / "good.wav", noise(1, 8000), 8000)
    write_file(tmp_path / "good.png", png_bytes())
    write_file(tmp_path / "text.wav", "this is not audio")
    write_file(tmp_path / "cut.wav", (tmp_path / "good.wav").read_bytes()[:6000])
    write_file(tmp_path / "broken.png", png_bytes()[:40])
    write_file(tmp_path / "broken.mp4", b"nothing")
    save_video(tmp_path / "good.mp4", 1.0)
    save_video(tmp_path / "silent.mp4", 1.0, with_audio=False)
    rows = [
        {"id": "good", "audio": "good.wav", "image": "good.png", "group": "g"},
        {"id": "segment", "audio": "good.wav", "text": "x", "start": 0.2, "end": 0.4, "group": "g"},
        {"id": "past the end", "audio": "good.wav", "text": "x", "start": 5.0, "group": "g"},
        {"id": "not audio", "audio": "text.wav", "text": "x"},
        {"id": "truncated audio", "audio": "cut.wav", "text": "x"},
        {"id": "truncated image", "audio": "good.wav", "image": "broken.png", "group": "g"},
        {"id": "video", "video": "good.mp4"},
        {"id": "silent video", "video": "silent.mp4", "text": "x"},
        {"id": "broken video", "video": "broken.mp4", "text": "x"},
        {"id": "broken video with audio", "video": "broken.mp4", "audio": "good.wav", "group": "g"},
    ]
    return write_manifest(tmp_path / "pairs.jsonl", rows)


def test_files_that_cannot_be_decoded_are_errors_of_their_rows(manifest_path):
    table = manifest.read(manifest_path)
    assert table.errors == ()
    steps = []
    decoded = decode_files(table, steps.append)
    assert [row.id for row in decoded.rows] == ["good", "segment", "video", "silent video"]
    assert {(problem.row, problem.column, problem.category) for problem in decoded.errors} == {
        (3, "audio", "undecodable file"),
        (4, "audio", "undecodable file"),
        (5, "audio", "undecodable file"),
        (6, "image", "undecodable file"),
        (9, "video", "undecodable file"),
        (10, "video", "undecodable file"),
    }
    (partial_problem,) = [problem for problem in decoded.warnings if problem.category == "partly undecodable video"]
    assert partial_problem.row == 8
    assert "silent.mp4" in partial_problem.message
    assert decoded.counts.unusable == 6
    assert sum(steps) == count_decodings(table)  # a file in several rows is decoded once


def test_validate_says_whether_files_were_decoded(manifest_path, tmp_path):
    def check(*options):
        command = [sys.executable, "-m", "triptych", "validate", str(manifest_path), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    quick = check()
    assert quick.returncode == 0
    assert "no problems found\n" not in quick.stdout
    assert "the files were not decoded: add --decode" in quick.stdout
    full = check("--decode")
    assert full.returncode == 2
    assert "error: undecodable file: 6" in full.stdout
    assert "row 4, audio: text.wav: " in full.stdout
    assert "not decoded" not in full.stdout
    assert "decoding files: 13/13" in full.stderr
    assert json.loads(check("--decode", "--json").stdout)["counts"]["rows"] == 4
