"""The demo in small: the same path, a smaller world."""

from dataclasses import replace

import pytest

from tests.conftest import QUICK
from triptych.app import demo
from triptych.data.world import World
from triptych.recipe import Recipe

pytestmark = pytest.mark.slow


def test_the_demo_runs_through_and_a_second_time_reuses_what_is_there(tmp_path, monkeypatch, capsys):
    load = Recipe.load
    monkeypatch.setattr(demo, "WORLD", World(scenes=100, actors=1, captions=2))
    monkeypatch.setattr(Recipe, "load", staticmethod(lambda name: load(name, QUICK)))
    demo.run(tmp_path / "demo")
    first = capsys.readouterr().out
    assert first.count(" → ") >= 10
    assert "Next:" in first
    trained = (tmp_path / "demo" / "run" / "space.safetensors").stat().st_mtime_ns
    demo.run(tmp_path / "demo")
    second = capsys.readouterr().out
    assert (tmp_path / "demo" / "run" / "space.safetensors").stat().st_mtime_ns == trained
    table = [line for line in first.splitlines() if "±" in line]
    assert table
    assert table == [line for line in second.splitlines() if "±" in line]


def test_the_demos_world_can_show_ten_times_chance():
    assert replace(demo.WORLD).split_counts["test"] >= 200
