"""The dot product against a naive loop."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.similarities.test_similarities import random_features
from triptych.errors import InputError
from triptych.interfaces import Features
from triptych.similarities.cosine import Cosine
from triptych.similarities.dot import Dot


def scale_embedding(x, scale):
    return Features(x.embedding * scale, x.parts, x.mask)


@given(st.integers(1, 5), st.integers(1, 5), st.floats(-1e3, 1e3), st.integers(0, 99))
def test_dot_matches_naive_sum_of_products(n, m, scale, seed):
    a, b = random_features(n, seed=seed), random_features(m, seed=seed + 100)
    scores = Dot()(scale_embedding(a, scale), b)
    for i in range(n):
        for j in range(m):
            terms = zip(a.embedding[i].tolist(), b.embedding[j].tolist(), strict=True)
            assert scores[i, j].item() == pytest.approx(scale * sum(x * y for x, y in terms), rel=1e-9, abs=1e-9)
    assert torch.equal(scores, Dot().query(scale_embedding(a, scale)) @ Dot().keys(b).T)


def test_gradients_match_finite_differences():
    a, b = random_features(3, seed=1), random_features(4, seed=2)
    assert torch.autograd.gradcheck(
        lambda x, y: Dot()(Features(x, a.parts, a.mask), Features(y, b.parts, b.mask)),
        (a.embedding.requires_grad_(), b.embedding.requires_grad_()),
    )


def test_dot_equals_cosine_on_unit_vectors():
    a, b = random_features(4, seed=1), random_features(5, seed=2)
    unit = [Features(x.embedding / x.embedding.norm(dim=1, keepdim=True), x.parts, x.mask) for x in (a, b)]
    assert torch.allclose(Dot()(*unit), Cosine()(a, b), atol=1e-12)


def test_invalid_inputs_raise():
    with pytest.raises(InputError, match=r"a.embedding has 6 dimensions and b.embedding has 5"):
        Dot()(random_features(2), random_features(2, dim=5))
    long = scale_embedding(random_features(2, dtype=torch.float32), 1e30)
    with pytest.raises(InputError, match="overflow"):
        Dot()(long, long)


@pytest.mark.parametrize("scale", [0.0, 1e-30])
def test_zero_embedding_raises_in_cosine(scale):
    valid = random_features(4, dtype=torch.float32)
    invalid = Features(valid.embedding * torch.tensor([1, 1, scale, 1])[:, None], valid.parts, valid.mask)
    with pytest.raises(InputError, match=r"a.embedding: row 2 is zero"):
        Cosine()(invalid, valid)
    with pytest.raises(InputError, match=r"b.embedding: row 2 is zero"):
        Cosine()(valid, invalid)


def test_half_precision_is_close():
    a, b = random_features(6, seed=1), random_features(6, seed=2)
    half = [Features(x.embedding.bfloat16(), x.parts, x.mask) for x in (a, b)]
    assert torch.allclose(Dot()(*half).double(), Dot()(a, b), rtol=0.02, atol=0.1)


def test_one_infinite_score_raises():
    a, b = random_features(2), random_features(3)
    embedding = a.embedding.clone()
    embedding[1, 0] = math.inf
    with pytest.raises(InputError):
        Dot()(Features(embedding, a.parts, a.mask), b)


def test_search_needs_no_second_pass():
    assert Dot().is_exact
