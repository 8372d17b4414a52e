"""What the tests of the report share: the findings of one small run."""

import pytest

from triptych.data import manifest
from triptych.report import report_data


@pytest.fixture(scope="session")
def report(run_dir, synthetic_manifest):
    """Everything about the run on the whole world. Read only."""
    return report_data.collect_report_data(run_dir, manifest.read(synthetic_manifest), "all", show_progress=False)
