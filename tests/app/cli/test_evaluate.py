"""The `triptych evaluate` command."""

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.app.cli.run_cli import triptych
from triptych.export import default_folder
from triptych.report.page import resolve_report_path
from triptych.starter import find_missing_modalities

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


def test_commands_that_read_a_run_accept_the_starter_space(tmp_path):
    if missing := find_missing_modalities().get("image") or find_missing_modalities().get("text"):
        pytest.skip(missing)
    for name in ("red", "green", "blue"):
        Image.new("RGB", (64, 64), name).save(tmp_path / f"{name}.png")
    rows = "".join(f"{name}.png,something {name},test\n" for name in ("red", "green", "blue"))
    (tmp_path / "pairs.csv").write_text(f"image,text,split\n{rows}")
    result = triptych("evaluate", "starter", "--data", "pairs.csv", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert {(d["query"], d["gallery"]) for d in json.loads(result.stdout)} == {("image", "text"), ("text", "image")}
    assert default_folder("starter") == Path("starter-onnx")
    assert resolve_report_path("starter") == Path("starter-report.html")
