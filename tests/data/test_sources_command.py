"""`triptych data` as a user meets it."""

import json
import os
import subprocess
import sys

import pytest

from tests.data.source_copies import COPIES
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
def test_alone_it_lists_every_source_with_what_it_expects(arguments):
    result = triptych("data", *arguments)
    assert result.returncode == 0
    for name, dataset in SOURCES.items():
        assert f"\n{name} " in f"\n{result.stdout}"
        assert all(line in result.stdout for line in dataset.expects)


def test_every_option_of_every_source_is_an_option_of_the_command():
    page = triptych("data", "--help").stdout
    assert [o for dataset in SOURCES.values() for o in dataset.options if f"--{o} " not in page] == []


def test_a_copy_becomes_a_manifest_that_check_finds_clean(tmp_path):
    COPIES["gcompris"](tmp_path / "copy")
    result = triptych("data", "gcompris", "copy", "-o", "g.jsonl", "--language", "both", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    sidecar = json.loads((tmp_path / "g.source.json").read_text())
    assert sidecar["options"] == {"language": "both"}
    tests = sidecar["test"].values()
    assert all(test["rows_hash"][:16] in result.stdout and test["files_hash"][:16] in result.stdout for test in tests)
    assert "next: triptych check g.jsonl\n" in result.stderr
    told = triptych("check", "g.jsonl", cwd=tmp_path).stdout
    assert "nothing is wrong with the table\nthe files were not decoded" in told


def test_files_elsewhere_are_told(tmp_path):
    COPIES["gcompris"](tmp_path / "copy")
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
        (["speak", "x", "--fold", "1"], "speak has no option --fold"),
        (["speak", "x"], "triptych data speak MANIFEST -o NEW"),
        (["speak", "x", "-o", "y.csv"], "x: no such file"),
        (["speak", "x", "-o", "y.csv", "--workers", "0"], "--workers 0: at least 1"),
        (["speak", "x", "-o", "y.csv", "--each", "-1"], "--each -1: 0 for all"),
        (["damage", "x", "--voices", "y"], "damage has no option --voices"),
        (["damage", "x", "-o", "y.csv"], "triptych data damage MANIFEST -o NEW --share 0.2"),
        (["damage", "x", "-o", "y.csv", "--share", "0.2", "--kind", "rndom"], "did you mean 'random'"),
    ],
)
def test_mistakes_get_one_clear_message(arguments, message, tmp_path):
    result = triptych("data", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
