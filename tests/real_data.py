"""Real data for tests: where there is none, a test is skipped; what lies where is told in bench/real_data.py."""

from pathlib import Path

import pytest

from bench.real_data import find_dataset


def find_dataset_or_skip(name: str) -> Path:
    """The folder of a data set, or the test is skipped."""
    return find_dataset(name) or pytest.skip(f"no {name} here: set TRIPTYCH_DATA to the folder that holds it")
