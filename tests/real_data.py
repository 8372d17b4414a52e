"""Real data sets for tests, skipped if they are missing; bench/real_data.py documents their locations."""

from pathlib import Path

import pytest

from bench.real_data import find_dataset


def find_dataset_or_skip(name: str) -> Path:
    """Return the folder of a data set, or skip the test."""
    return find_dataset(name) or pytest.skip(f"no {name} here: set TRIPTYCH_DATA to the folder that holds it")
