"""Every similarity of the registry, against its formula as loops and against what all of them promise."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from triptych.contracts import Features
from triptych.similarities import SIMILARITIES

SETTINGS = {"mahalanobis": {"width": 6}}  # the others' defaults will do


def features(items, width=6, parts=3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return Features(
        torch.randn(items, width, generator=generator, dtype=dtype),
        torch.randn(items, parts, width, generator=generator, dtype=dtype),
        torch.ones(items, parts, dtype=torch.bool),
    )


@pytest.fixture(params=SIMILARITIES)
def similarity(request):
    return SIMILARITIES[request.param](**SETTINGS.get(request.param, {})).double()


def test_query_and_keys_give_the_scores_where_exact(similarity):
    a, b = features(5, seed=1), features(7, seed=2)
    scores = similarity(a, b)
    assert scores.shape == (5, 7)
    if similarity.exact:
        assert torch.allclose(similarity.query(a) @ similarity.keys(b).T, scores, atol=1e-12)


def test_an_item_is_most_like_itself(similarity):
    """On the sphere: in free space a longer vector may well be more like."""
    free = features(8)
    a = Features(F.normalize(free.embedding, dim=1), F.normalize(free.parts, dim=2), free.mask)
    assert torch.equal(similarity(a, a).argmax(dim=1), torch.arange(8))


def test_gradients_are_right(similarity):
    a, b = features(3, seed=1), features(4, seed=2)

    def score(embedding):
        return similarity(Features(embedding, a.parts, a.mask), b)

    assert torch.autograd.gradcheck(score, (a.embedding.clone().requires_grad_(),))


@given(st.integers(1, 6), st.integers(1, 6), st.floats(1e-3, 1e3), st.integers(0, 99))
def test_cosine_follows_its_formula_at_any_length(n, m, scale, seed):
    a, b = features(n, seed=seed), features(m, seed=seed + 100)
    found = SIMILARITIES["cosine"]()(Features(a.embedding * scale, a.parts, a.mask), b)
    for i in range(n):
        for j in range(m):
            x, y = a.embedding[i].tolist(), b.embedding[j].tolist()
            dot = sum(p * q for p, q in zip(x, y, strict=True))
            lengths = sum(p * p for p in x) ** 0.5 * sum(q * q for q in y) ** 0.5
            assert found[i, j].item() == pytest.approx(dot / lengths, abs=1e-9)
