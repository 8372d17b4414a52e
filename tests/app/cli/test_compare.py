"""The `triptych compare` command."""

import json

import pytest

from tests.app.cli.run_cli import triptych

pytestmark = pytest.mark.slow


def test_compare_run_with_itself_is_not_separable(run_dir, synthetic_manifest):
    result = triptych("compare", run_dir, run_dir, "--data", synthetic_manifest)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("not separable") >= 18
    assert "is better" not in result.stdout
    results = json.loads(triptych("compare", run_dir, run_dir, "--data", synthetic_manifest, "--json").stdout)
    assert len(results) == 6
    assert {d["verdict"] for c in results for d in c["differences"].values()} == {"not separable"}
