"""The `triptych data synthetic` command."""

import pytest

from tests.app.cli.run_cli import interrupt, triptych

pytestmark = pytest.mark.slow


def test_synthetic_data_is_written(tmp_path):
    result = triptych("data", "synthetic", tmp_path / "synthetic", "--scenes", "12", "--captions", "1")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "synthetic" / "manifest.csv").exists()


def test_interrupted_synthetic_data_leaves_no_files(tmp_path):
    command = ["data", "synthetic", "w", "--scenes", "100000"]  # takes much longer than the test
    code, errors = interrupt(command, lambda: any(tmp_path.glob(".w.*/images/*")), tmp_path)
    assert code == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
