"""Real data for tests: where there is none, a test is skipped; what lies where is told in bench/real_data.py."""

import re
from pathlib import Path

import pytest

from bench.real_data import find


def need(name: str) -> Path:
    """The folder of a data set, or the test is skipped."""
    return find(name) or pytest.skip(f"no {name} here: set TRIPTYCH_DATA to the folder that holds it")


def all_say(captions: list[str], word: str) -> bool:
    """Whether every caption has the word, or its plural."""
    return all(re.search(rf"\b{word}s?\b", caption, re.IGNORECASE) for caption in captions)
