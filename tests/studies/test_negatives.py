"""Alignment collapses without negatives."""

import pytest

from triptych.studies import negatives
from triptych.studies.result_cache import ResultCache

pytestmark = pytest.mark.slow


def test_alignment_without_negatives_collapses(experiment, tmp_path):
    experiment.epochs = 30
    cache = ResultCache(tmp_path / "n.jsonl", {})
    results = {
        name: negatives.run_method(experiment, cache, name) for name in ("none (alignment only)", "contrastive, 64")
    }
    assert results["none (alignment only)"]["mismatched"][-1] > 0.9
    assert results["contrastive, 64"]["mismatched"][-1] < 0.5
