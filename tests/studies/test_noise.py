"""Noise injection, and which runs a changed method repeats."""

import pytest

from tests.studies.conftest import make_table
from triptych.studies import noise
from triptych.studies.result_cache import ResultCache


@pytest.mark.parametrize("noise_kind", noise.NOISE_KINDS)
def test_inject_noise_swaps_exactly_the_given_fraction(noise_kind):
    table = make_table(200, 0)
    noisy = noise.inject_noise(table, noise_kind, 0.4)
    moved = (noisy.vector_indices["text"] != table.vector_indices["text"]).all(dim=1)
    assert int(moved.sum()) == 80


def test_a_changed_method_is_computed_again(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "NOISE_RATES", (0.0, 0.4))
    for temperature, runs in ((0.07, 3), (0.5, 6), (0.07, 6)):
        monkeypatch.setattr(noise, "METHODS", {"infonce": ("infonce", {"temperature": temperature})})
        noise.run(experiment, ResultCache(tmp_path / "n.jsonl", {}))
        assert len((tmp_path / "n.jsonl").read_text().splitlines()) == 1 + runs
