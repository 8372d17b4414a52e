"""`triptych data` as a user meets it."""

import json
import os
import subprocess
import sys

import pytest

from tests.data.dataset_replicas import REPLICAS
from triptych.data.sources import SOURCES

pytestmark = pytest.mark.slow


def triptych(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "triptych", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.mark.parametrize("arguments", [(), ("--list",)])
def test_without_arguments_every_source_is_listed_with_its_expected_files(arguments):
    result = triptych("data", *arguments)
    assert result.returncode == 0
    for name, dataset in SOURCES.items():
        assert f"\n{name} " in f"\n{result.stdout}"
        assert all(line in result.stdout for line in dataset.expected_files)


def test_every_option_of_every_source_is_an_option_of_the_command():
    page = triptych("data", "--help").stdout
    assert [o for dataset in SOURCES.values() for o in dataset.option_names if f"--{o} " not in page] == []


def test_a_converted_copy_passes_the_check(tmp_path):
    REPLICAS["gcompris"](tmp_path / "copy")
    result = triptych("data", "gcompris", "copy", "-o", "g.jsonl", "--language", "both", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    sidecar = json.loads((tmp_path / "g.source.json").read_text())
    assert sidecar["options"] == {"language": "both"}
    tests = sidecar["test"].values()
    assert all(test["rows_hash"][:16] in result.stdout and test["files_hash"][:16] in result.stdout for test in tests)
    assert "next: triptych validate g.jsonl\n" in result.stderr
    output = triptych("validate", "g.jsonl", cwd=tmp_path).stdout
    assert "nothing is wrong with the table\nthe files were not decoded" in output


def test_files_outside_the_manifest_folder_are_noted(tmp_path):
    REPLICAS["gcompris"](tmp_path / "copy")
    (tmp_path / "copy").chmod(0o555)
    (tmp_path / "here").mkdir()
    result = triptych("data", "gcompris", "../copy", cwd=tmp_path / "here")
    (tmp_path / "copy").chmod(0o755)
    assert result.returncode == 0
    assert "made: gcompris/manifest.csv" in result.stdout
    assert "needs --allow-outside" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["esc5", "x"], "source 'esc5' is unknown"),
        (["coco", "x", "--fold", "1"], "source 'coco' has no option --fold; its options: --splits"),
        (["coco", "x", "--voices", "y"], "source 'coco' has no option --voices"),
        (["esc50"], "give the folder of your copy"),
        (["add-speech", "x", "--fold", "1"], "add-speech has no option --fold"),
        (["add-speech", "x"], "triptych data add-speech MANIFEST -o NEW"),
        (["add-speech", "x", "-o", "y.csv"], "x: no such file"),
        (["add-speech", "x", "-o", "y.csv", "--workers", "0"], "--workers 0: at least 1"),
        (["add-speech", "x", "-o", "y.csv", "--captions-per-row", "-1"], "--captions-per-row -1: 0 for all"),
        (["inject-noise", "x", "--voices", "y"], "inject-noise has no option --voices"),
        (["inject-noise", "x", "-o", "y.csv"], "triptych data inject-noise MANIFEST -o NEW --noise-rate 0.2"),
        (["inject-noise", "x", "-o", "y.csv", "--noise-rate", "0.2", "--noise-kind", "rndom"], "did you mean 'random'"),
    ],
)
def test_usage_errors_print_one_message(arguments, message, tmp_path):
    result = triptych("data", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
