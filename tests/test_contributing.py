"""The example objective of CONTRIBUTING.md passes its own test and those of all objectives."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLUGIN = """
import pathlib
from triptych import objectives

objectives.__path__.append(str(pathlib.Path(__file__).parent / "objectives"))
from triptych.objectives.pairwise_margin import PairwiseMargin

objectives.OBJECTIVES["pairwise_margin"] = PairwiseMargin
"""


@pytest.mark.slow
def test_the_example_objective_works_as_printed(tmp_path):
    mechanism, test = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    (tmp_path / "objectives").mkdir()
    (tmp_path / "objectives" / "pairwise_margin.py").write_text(mechanism)
    (tmp_path / "register_example.py").write_text(PLUGIN)
    (tmp_path / "test_pairwise_margin.py").write_text(test)
    tests = [str(tmp_path / "test_pairwise_margin.py"), "tests/objectives/test_objectives.py", "-k", "pairwise_margin"]
    command = [sys.executable, "-m", "pytest", "-p", "register_example", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "15 passed" in completed.stdout
