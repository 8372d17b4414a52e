"""Runs are listed with their state, scores and time."""

import json
import shutil

from typer.testing import CliRunner

from triptych.app.cli import app
from triptych.errors import UsageError
from triptych.training.claim import claimed
from triptych.training.runs import summaries


def test_every_state_of_a_run_is_told_apart(run, tmp_path):
    for name in ("finished", "deep/running", "interrupted", "stopped", "edited"):
        shutil.copytree(run, tmp_path / name)
    (tmp_path / "interrupted" / "README.md").unlink()
    (tmp_path / "stopped" / "stopped.json").write_text(json.dumps({"reason": "epoch 2, step 1: loss", "rows": []}))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    scored = [json.dumps({**json.loads(line), "valid": valid}) for line, valid in zip(lines, (7.5, 3.0), strict=True)]
    (tmp_path / "finished" / "metrics.jsonl").write_text("\n".join(scored) + "\nhalf a li")
    (tmp_path / "edited" / "recipe.toml").write_text("not a recipe")
    with claimed(tmp_path / "deep" / "running"):
        found = {summary.folder.rpartition("/")[2]: summary for summary in summaries(tmp_path)}
    assert {name: one.state for name, one in found.items()} == {
        "finished": "finished",
        "running": "running",
        "interrupted": "stopped",
        "stopped": "stopped",
    }
    assert (found["finished"].valid, found["finished"].epochs, found["finished"].of) == (7.5, 2, 2)
    assert found["finished"].seconds == sum(json.loads(line)["seconds"] for line in lines)
    assert found["stopped"].why == "epoch 2, step 1: loss"
    assert "goes on" in found["interrupted"].why
    assert [one.state for one in summaries(tmp_path / "finished")] == ["finished"]


def test_the_command_lists_them(run, tmp_path):
    shutil.copytree(run, tmp_path / "mine")
    result = CliRunner().invoke(app, ["runs", str(tmp_path), "--json"])
    (one,) = json.loads(result.stdout)
    assert (one["recipe"], one["state"]) == ("trimodal", "finished")
    table = CliRunner().invoke(app, ["runs", str(tmp_path)], env={"COLUMNS": "200"})
    assert "finished" in table.stdout
    assert "2/2" in table.stdout
    (tmp_path / "empty").mkdir()
    assert "no runs here" in CliRunner().invoke(app, ["runs", str(tmp_path / "empty")]).stdout
    nowhere = CliRunner().invoke(app, ["runs", str(tmp_path / "nowhere")])
    assert isinstance(nowhere.exception, UsageError)
