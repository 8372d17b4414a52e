"""The `triptych localise` command."""

import json

import pytest

from tests.app.cli.run_cli import triptych

pytestmark = pytest.mark.slow


def test_localise_reports_chance_level_per_direction(run_dir, synthetic_manifest):
    done = triptych("localise", run_dir, "--data", synthetic_manifest.parent, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {(each["query"], each["gallery"]) for each in found} == {
        ("text", "image"),
        ("text", "audio"),
        ("audio", "image"),
        ("image", "audio"),
    }
    assert all(0 < each["hit_chance_level"] < 1 and each["num_queries"] > 0 for each in found)
