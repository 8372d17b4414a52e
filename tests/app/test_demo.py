"""The demo on a smaller synthetic dataset."""

from dataclasses import replace

import pytest

from tests.conftest import TINY_OVERRIDES
from triptych.app import demo
from triptych.data.synthetic import SyntheticConfig
from triptych.recipe import Recipe

pytestmark = pytest.mark.slow


def test_demo_runs_and_second_run_reuses_results(tmp_path, monkeypatch, capsys):
    load = Recipe.load
    monkeypatch.setattr(demo, "DATASET", SyntheticConfig(scenes=100, max_objects=1, captions=2))
    monkeypatch.setattr(Recipe, "load", staticmethod(lambda name: load(name, TINY_OVERRIDES)))
    demo.run_demo(tmp_path / "demo")
    first = capsys.readouterr().out
    assert first.count(" → ") >= 10
    assert "Next:" in first
    trained = (tmp_path / "demo" / "run" / "space.safetensors").stat().st_mtime_ns
    demo.run_demo(tmp_path / "demo")
    second = capsys.readouterr().out
    assert (tmp_path / "demo" / "run" / "space.safetensors").stat().st_mtime_ns == trained
    table = [line for line in first.splitlines() if "±" in line]
    assert table
    assert table == [line for line in second.splitlines() if "±" in line]


def test_demo_test_split_is_large_enough():
    assert replace(demo.DATASET).split_counts["test"] >= 200
