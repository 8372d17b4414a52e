"""Cosine similarity against a naive loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.similarities.test_similarities import random_features
from triptych.errors import InputError
from triptych.interfaces import Features
from triptych.similarities.cosine import Cosine


@given(st.integers(1, 6), st.integers(1, 6), st.floats(1e-3, 1e3), st.integers(0, 99))
def test_scores_match_naive_loop_at_any_norm(n, m, scale, seed):
    a, b = random_features(n, seed=seed), random_features(m, seed=seed + 100)
    scores = Cosine()(Features(a.embedding * scale, a.parts, a.mask), b)
    for i in range(n):
        for j in range(m):
            x, y = a.embedding[i].tolist(), b.embedding[j].tolist()
            dot = sum(p * q for p, q in zip(x, y, strict=True))
            norms = sum(p * p for p in x) ** 0.5 * sum(q * q for q in y) ** 0.5
            assert scores[i, j].item() == pytest.approx(dot / norms, abs=1e-9)


@pytest.mark.parametrize("side", ["a", "b"])
def test_zero_vector_raises(side):
    features = {"a": random_features(3), "b": random_features(3)}
    features[side].embedding[1] = 0
    with pytest.raises(InputError, match=f"{side}.embedding: row 1 is zero and has no direction"):
        Cosine()(features["a"], features["b"])


def test_attribution_is_finite_if_parts_cancel():
    """The mean of the parts is then 0 and has no direction."""
    a, b = random_features(2, parts=2, seed=1), random_features(2, seed=2)
    a.parts[0, 1] = -a.parts[0, 0]
    assert torch.isfinite(Cosine().attribution(a, b)).all()
