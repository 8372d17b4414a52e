"""A missing file is reported before slow imports, by every command that needs the file."""

import json
import os
import subprocess
import sys

import pytest

from triptych.app.cli import COMMANDS

SLOW_MODULES = {"torch", "lancedb", "pyarrow", "sklearn", "scipy", "transformers", "av"}
RUN_AND_LIST_MODULES = """
import json, sys
from triptych.app.cli import main
try:
    main()
finally:
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
MISSING = [
    (["search", "x"], "collection: no collection here; create one with `triptych index FOLDER`"),
    (["search", "x", "--collection", "none"], "none: no collection here"),
    (["search", "--image", "none.png", "--collection", "."], "none.png: no such file"),
    (["collection", "info"], "collection: no collection here"),
    (["serve"], "collection: no collection here"),
    (["index", "none"], "none: no such folder or file"),
    (["index", ".", "--space", "none"], "none: no such run folder or space file"),
    (["evaluate", "none", "--data", "none.csv"], "no such"),
    (["compare", ".", "none", "--data", "pairs.csv"], "no space.safetensors in this folder"),
    (["classify", "none", "--data", "pairs.csv"], "none: no such run folder"),
    (["localise", "none", "--data", "."], "none: no such run folder"),
    (["bridge", "none", "none", "-o", "both"], "none: no such run folder"),
    (["report", "none"], "none: no such run folder"),
    (["export", "none", "--onnx"], "none: no such run folder"),
    (["audit", "none.csv"], "none.csv: no such file"),
    (["audit", "pairs.csv", "--space", "none"], "none: no such run folder"),
    (["train", "trimodal", "--data", "none.csv"], "none.csv: no such file"),
    (["train", "none"], "recipe 'none' is unknown"),
    (["validate", "none.csv"], "none.csv: no such file"),
    (["study", "noise", "--data", "none.csv"], "none.csv: no such file"),
    (["runs", "none"], "none: no such folder"),
    (["spaces", "use", "none"], "none: no such run folder"),
]


@pytest.mark.parametrize(("arguments", "message"), MISSING, ids=[" ".join(arguments) for arguments, _ in MISSING])
def test_a_missing_file_is_reported_before_slow_imports(arguments, message, tmp_path):
    (tmp_path / "pairs.csv").write_text("text\na\n")
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "COLUMNS": "200"}
    command = [sys.executable, "-c", RUN_AND_LIST_MODULES, *arguments]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not SLOW_MODULES & set(json.loads(result.stdout.splitlines()[-1]))


def test_every_command_that_reads_files_is_covered():
    without_files = {"cache", "data", "demo", "encoders", "recipes"}
    assert {arguments[0] for arguments, _ in MISSING} == COMMANDS.keys() - without_files
