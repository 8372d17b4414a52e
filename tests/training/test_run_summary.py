"""Runs are listed with their state, scores and time."""

import json
import shutil

from typer.testing import CliRunner

from triptych.app.cli import app
from triptych.errors import UsageError
from triptych.training.run_lock import lock_folder
from triptych.training.run_summary import list_runs


def test_list_runs_reports_every_state(run_dir, tmp_path):
    for name in ("finished", "deep/running", "interrupted", "stopped", "edited"):
        shutil.copytree(run_dir, tmp_path / name)
    (tmp_path / "interrupted" / "README.md").unlink()
    (tmp_path / "stopped" / "error.json").write_text(json.dumps({"reason": "epoch 2, step 1: loss", "rows": []}))
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    scored = [json.dumps({**json.loads(line), "valid": valid}) for line, valid in zip(lines, (7.5, 3.0), strict=True)]
    (tmp_path / "finished" / "metrics.jsonl").write_text("\n".join(scored) + "\nhalf a li")
    (tmp_path / "edited" / "recipe.toml").write_text("not a recipe")
    with lock_folder(tmp_path / "deep" / "running"):
        runs_by_name = {summary.folder.rpartition("/")[2]: summary for summary in list_runs(tmp_path)}
    assert {name: run_summary.state for name, run_summary in runs_by_name.items()} == {
        "finished": "finished",
        "running": "running",
        "interrupted": "stopped",
        "stopped": "stopped",
    }
    assert (runs_by_name["finished"].valid, runs_by_name["finished"].epochs, runs_by_name["finished"].total_epochs) == (
        7.5,
        2,
        2,
    )
    assert runs_by_name["finished"].seconds == sum(json.loads(line)["seconds"] for line in lines)
    assert runs_by_name["stopped"].stop_reason == "epoch 2, step 1: loss"
    assert "resume" in runs_by_name["interrupted"].stop_reason
    assert [run_summary.state for run_summary in list_runs(tmp_path / "finished")] == ["finished"]


def test_the_runs_command(run_dir, tmp_path):
    shutil.copytree(run_dir, tmp_path / "mine")
    result = CliRunner().invoke(app, ["runs", str(tmp_path), "--json"])
    (record,) = json.loads(result.stdout)
    assert (record["recipe"], record["state"]) == ("trimodal", "finished")
    table = CliRunner().invoke(app, ["runs", str(tmp_path)], env={"COLUMNS": "200"})
    assert "finished" in table.stdout
    assert "2/2" in table.stdout
    (tmp_path / "empty").mkdir()
    assert "no runs;" in CliRunner().invoke(app, ["runs", str(tmp_path / "empty")]).stdout
    missing = CliRunner().invoke(app, ["runs", str(tmp_path / "nowhere")])
    assert isinstance(missing.exception, UsageError)
