"""The inner product, and what the cosine does with a row that has no direction."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.similarities.test_similarities import features
from triptych.contracts import Features
from triptych.errors import InputError
from triptych.similarities.cosine import Cosine
from triptych.similarities.dot import Dot


def scaled(x, scale):
    return Features(x.embedding * scale, x.parts, x.mask)


@given(st.integers(1, 5), st.integers(1, 5), st.floats(-1e3, 1e3), st.integers(0, 99))
def test_it_is_the_sum_of_products_and_grows_with_length(n, m, scale, seed):
    a, b = features(n, seed=seed), features(m, seed=seed + 100)
    found = Dot()(scaled(a, scale), b)
    for i in range(n):
        for j in range(m):
            terms = zip(a.embedding[i].tolist(), b.embedding[j].tolist(), strict=True)
            assert found[i, j].item() == pytest.approx(scale * sum(x * y for x, y in terms), rel=1e-9, abs=1e-9)
    assert torch.equal(found, Dot().query(scaled(a, scale)) @ Dot().keys(b).T)


def test_gradients_are_right():
    a, b = features(3, seed=1), features(4, seed=2)
    assert torch.autograd.gradcheck(
        lambda x, y: Dot()(Features(x, a.parts, a.mask), Features(y, b.parts, b.mask)),
        (a.embedding.requires_grad_(), b.embedding.requires_grad_()),
    )


def test_on_the_sphere_it_is_the_cosine():
    a, b = features(4, seed=1), features(5, seed=2)
    unit = [Features(x.embedding / x.embedding.norm(dim=1, keepdim=True), x.parts, x.mask) for x in (a, b)]
    assert torch.allclose(Dot()(*unit), Cosine()(a, b), atol=1e-12)


def test_what_makes_no_sense_is_named():
    with pytest.raises(InputError, match=r"a.embedding is 6 wide and b.embedding 5"):
        Dot()(features(2), features(2, width=5))
    long = scaled(features(2, dtype=torch.float32), 1e30)
    with pytest.raises(InputError, match="overflow"):
        Dot()(long, long)


@pytest.mark.parametrize("scale", [0.0, 1e-30])
def test_a_row_of_zeros_has_no_direction(scale):
    whole = features(4, dtype=torch.float32)
    broken = Features(whole.embedding * torch.tensor([1, 1, scale, 1])[:, None], whole.parts, whole.mask)
    with pytest.raises(InputError, match=r"a.embedding: row 2 is zero"):
        Cosine()(broken, whole)
    with pytest.raises(InputError, match=r"b.embedding: row 2 is zero"):
        Cosine()(whole, broken)


def test_half_precision_stays_close():
    a, b = features(6, seed=1), features(6, seed=2)
    half = [Features(x.embedding.bfloat16(), x.parts, x.mask) for x in (a, b)]
    assert torch.allclose(Dot()(*half).double(), Dot()(a, b), rtol=0.02, atol=0.1)
