"""The results' scaffold: rows run by commands, each once, and become a page that names those commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import QUICK

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
# In a process of its own: commands run in forks of it, and a fork of a process that has computed may hang.
SCRIPT = """
import sys
from bench.results import __main__ as front, data, pages
from bench.results.plan import COST, EVALUATE, Grid, Made, Page, Row, Table, recall
data.DATA["small"] = Made("small", ("triptych", "nothing"), file=sys.argv[1])
changes = tuple(sys.argv[2:])
plain = Row("plain", "trimodal", ("small",), changes, seeds=(0, 1), headline=True)
wide = Row("another", "trimodal", ("small",), (*changes, "training.epochs=1"))
column = recall("text", "image", 10)
pages.PAGES.clear()
pages.PAGES["trimodal"] = Page("trimodal", "About.", [
    Table("A table", [column, *COST], [plain]), Grid("A grid", [column], {"line": {"first": plain, "second": wide}}),
], seen="Seen.")
front.main([])
"""


def run(world, folder):
    command = [sys.executable, "-c", SCRIPT, str(world), *QUICK]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rows_run_once_and_become_a_page(world, tmp_path):
    said = run(world, tmp_path)
    assert said.count("…") == 3, "two seeds and another row; what stands in two tables runs once"
    found = [json.loads(path.read_text()) for path in (tmp_path / "runs/results/found").glob("*.json")]
    page = (tmp_path / "docs/results/trimodal.md").read_text()
    plain = [one for one in found if one["metrics"]["epoch"] == 2]
    recalls = [
        next(d for d in one["recall"] if (d["query"], d["gallery"]) == ("text", "image"))["recall"]["10"]
        for one in plain
    ]
    assert len(recalls) == 2
    assert f"| plain | {100 * sum(recalls) / 2:.1f} ± {100 * abs(recalls[0] - recalls[1]) / 2**0.5:.1f} |" in page
    command = next(line for line in page.splitlines() if line.startswith("triptych train"))
    assert command == f"triptych train trimodal --data {world} --allow-outside -o " + command.split(" -o ")[1]
    assert all(change in command for change in QUICK)
    assert "not run" not in page
    assert "[trimodal](trimodal.md) | A table | plain |" in (tmp_path / "docs/results/README.md").read_text()

    next((tmp_path / "runs/results/found").glob("*-1.*.json")).unlink()  # as if it had been interrupted there
    before = page
    assert run(world, tmp_path).count("…") == 1
    assert (tmp_path / "docs/results/trimodal.md").read_text().splitlines()[:6] == before.splitlines()[:6]
