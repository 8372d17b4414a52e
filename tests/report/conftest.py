"""Shared fixtures: the report data of one small run."""

import pytest

from triptych.data import manifest
from triptych.report import report_data


@pytest.fixture(scope="session")
def report(run_dir, synthetic_manifest):
    """The report data of the run on all rows of the synthetic manifest. Read-only."""
    return report_data.collect_report_data(run_dir, manifest.read(synthetic_manifest), "all", show_progress=False)
