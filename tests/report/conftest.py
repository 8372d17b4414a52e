"""What the tests of the report share: the findings of one small run."""

import pytest

from triptych.data import manifest
from triptych.report import findings


@pytest.fixture(scope="session")
def found(run, world):
    """Everything about the run on the whole world. Read only."""
    return findings.gather(run, manifest.read(world), "all", show=False)
