"""The `triptych localise` command."""

import json

import pytest

from tests.app.cli.run_cli import triptych

pytestmark = pytest.mark.slow


def test_localise_reports_chance_level_per_direction(run_dir, synthetic_manifest):
    completed = triptych("localise", run_dir, "--data", synthetic_manifest.parent, "--json")
    assert completed.returncode == 0, completed.stderr
    results = json.loads(completed.stdout)
    assert {(result["query"], result["gallery"]) for result in results} == {
        ("text", "image"),
        ("text", "audio"),
        ("audio", "image"),
        ("image", "audio"),
    }
    assert all(0 < result["hit_chance_level"] < 1 and result["num_queries"] > 0 for result in results)
