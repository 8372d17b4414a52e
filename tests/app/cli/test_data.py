"""The sub-commands of `triptych data`, run as processes."""

import inspect
import json
import os
import re
import subprocess
import sys

import pytest

from tests.data.dataset_replicas import REPLICAS, write_file
from tests.data.datasets.conversion import unique_wav
from triptych.app.cli.data import data
from triptych.data.datasets import DATASETS

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


def test_without_sub_command_every_source_is_listed_with_its_expected_files():
    result = triptych("data")
    assert result.returncode == 0
    for name, dataset in DATASETS.items():
        assert f"\n{name} " in f"\n{result.stdout}"
        assert all(line in result.stdout for line in dataset.expected_files)


def test_every_source_is_a_sub_command_with_the_options_of_its_read_function():
    commands = {command.name: command.callback for command in data.registered_commands if command.callback}
    assert {*commands} == {*DATASETS, "add-speech", "inject-noise", "synthetic"}
    for name, dataset in DATASETS.items():
        parameters = inspect.signature(commands[name]).parameters
        assert tuple(parameters) == ("folder", "output", *dataset.option_names), name
        assert all(parameters[option].default is None for option in dataset.option_names), name


@pytest.mark.parametrize("command", [command.name for command in data.registered_commands])
def test_every_sub_command_has_help_with_an_example(command):
    result = triptych("data", command, "--help")
    assert result.returncode == 0
    assert re.search(rf"Examples?:\s+triptych data {command} ", result.stdout)


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
    assert "no problems found in the manifest\nthe files were not decoded" in output


def test_files_outside_the_manifest_folder_are_noted(tmp_path):
    REPLICAS["gcompris"](tmp_path / "copy")
    (tmp_path / "copy").chmod(0o555)
    (tmp_path / "here").mkdir()
    result = triptych("data", "gcompris", "../copy", cwd=tmp_path / "here")
    (tmp_path / "copy").chmod(0o755)
    assert result.returncode == 0
    assert "wrote: gcompris/manifest.csv" in result.stdout
    assert "needs --allow-outside" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["esc5", "x"], "No such command 'esc5'. Did you mean 'esc50'?"),
        (["coco", "x", "--fold", "1"], "No such option: --fold"),
        (["coco", "x", "--voices", "y"], "No such option: --voices"),
        (["esc50", "--fold", "1"], "Missing argument 'FOLDER'"),
        (["add-speech", "x", "--fold", "1"], "No such option: --fold"),
        (["add-speech", "x"], "Missing option '--output' / '-o'"),
        (["add-speech", "x", "-o", "y.csv"], "x: no such file"),
        (["add-speech", "x", "-o", "y.csv", "--workers", "0"], "--workers 0: must be at least 1"),
        (["add-speech", "x", "-o", "y.csv", "--captions-per-row", "-1"], "--captions-per-row -1: must be positive"),
        (["inject-noise", "x", "--voices", "y"], "No such option: --voices"),
        (["inject-noise", "x", "-o", "y.csv"], "Missing option '--noise-rate'"),
        (["inject-noise", "x", "-o", "y.csv", "--noise-rate", "0.2", "--noise-kind", "rndom"], "did you mean 'random'"),
    ],
)
def test_usage_errors_print_one_message(arguments, message, tmp_path):
    result = triptych("data", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_the_command_prints_path_splits_and_skipped_files(tmp_path):
    root = tmp_path / "my archive"
    for number in range(30):
        write_file(root / f"untitled folder/barking dog {number}.wav", unique_wav(number))
    write_file(root / "untitled folder/IMG_1.wav", unique_wav(99))
    write_file(root / "a.svg")
    result = triptych("data", "folder", root, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "wrote: my archive-manifest.csv" in result.stdout
    assert "splits  train 24, " in result.stdout
    assert "train 24 (80%), valid 3 (10%), test 3 (10%)" in result.stderr
    assert "skipped: files without a caption: neither file nor folder name is meaningful: 1" in result.stderr
    assert ": barking dog\n" in result.stderr
    assert "ignored files of other types: .svg 1" in result.stderr
    assert "next: triptych validate 'my archive-manifest.csv'" in result.stderr
    checked = triptych("validate", "my archive-manifest.csv", cwd=tmp_path)
    assert checked.returncode == 0
    assert "warning: few captions: 1" in checked.stdout
