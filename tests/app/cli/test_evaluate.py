"""The `triptych evaluate` command."""

import json

import pytest

from tests.app.cli.run_cli import triptych

pytestmark = pytest.mark.slow


def test_evaluate_prints_six_directions(run_dir, synthetic_manifest):
    result = triptych("evaluate", run_dir, "--data", synthetic_manifest)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("→") == 7
    results = json.loads(triptych("evaluate", run_dir, "--data", synthetic_manifest, "--json").stdout)
    assert {(d["query"], d["gallery"]) for d in results} == {
        (a, b) for a in ("audio", "image", "text") for b in ("audio", "image", "text") if a != b
    }


def test_evaluate_transductive_and_output_files(run_dir, synthetic_manifest, tmp_path):
    result = triptych("evaluate", run_dir, "--data", synthetic_manifest, "--transductive", "--output", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "transductive" in result.stdout
    assert "±" in result.stdout
    results = json.loads((tmp_path / "out" / "evaluation.json").read_text())["directions"]
    assert [d["mode"] for d in results] == ["inductive"] * 6 + ["transductive"] * 6
    assert (tmp_path / "out" / "evaluation.csv").exists()
    assert (tmp_path / "out" / "queries.parquet").exists()
