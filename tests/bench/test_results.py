"""Result pages: each row runs its commands once and becomes part of a page that lists them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TINY_OVERRIDES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# In a new process: the commands run in forks, and a fork of a process that has used threads may hang.
SCRIPT = """
import sys
from bench.results import __main__ as front, data, pages
from bench.results.schema import COST_COLUMNS, EVALUATE, Dataset, Grid, Page, Row, Table, recall_column
data.DATA["small"] = Dataset("small", ("triptych", "nothing"), file=sys.argv[1])
overrides = tuple(sys.argv[2:])
plain = Row("plain", "trimodal", ("small",), overrides, seeds=(0, 1), headline=True)
wide = Row("another", "trimodal", ("small",), (*overrides, "training.epochs=1"))
column = recall_column("text", "image", 10)
pages.PAGES.clear()
pages.PAGES["trimodal"] = Page("trimodal", "About.", [
    Table("A table", [column, *COST_COLUMNS], [plain]),
    Grid("A grid", [column], {"line": {"first": plain, "second": wide}}),
], observations="Seen.")
front.main([])
"""


def run_results(manifest, folder):
    command = [sys.executable, "-c", SCRIPT, str(manifest), *TINY_OVERRIDES]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_rows_run_once_and_are_written_to_a_page(synthetic_manifest, tmp_path):
    output = run_results(synthetic_manifest, tmp_path)
    assert output.count("…") == 3, "two seeds and another row; a row in two tables runs once"
    records = [json.loads(path.read_text()) for path in (tmp_path / "runs/results/measurements").glob("*.json")]
    page = (tmp_path / "docs/results/trimodal.md").read_text()
    plain = [record for record in records if record["metrics"]["epoch"] == 2]
    recalls = [
        next(d for d in record["recall"] if (d["query"], d["gallery"]) == ("text", "image"))["recall"]["10"]
        for record in plain
    ]
    assert len(recalls) == 2
    assert f"| plain | {100 * sum(recalls) / 2:.1f} ± {100 * abs(recalls[0] - recalls[1]) / 2**0.5:.1f} |" in page
    command = next(line for line in page.splitlines() if line.startswith("triptych train"))
    assert (
        command == f"triptych train trimodal --data {synthetic_manifest} --allow-outside -o " + command.split(" -o ")[1]
    )
    assert all(change in command for change in TINY_OVERRIDES)
    assert "not run" not in page
    assert "[trimodal](trimodal.md) | A table | plain |" in (tmp_path / "docs/results/README.md").read_text()

    next((tmp_path / "runs/results/measurements").glob("*-1.*.json")).unlink()  # simulates an interruption
    before = page
    assert run_results(synthetic_manifest, tmp_path).count("…") == 1
    assert (tmp_path / "docs/results/trimodal.md").read_text().splitlines()[:6] == before.splitlines()[:6]
