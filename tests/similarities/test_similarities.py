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


def test_heat_is_of_real_parts_alone_and_the_same_for_each_row(similarity):
    a, b = features(3, parts=4, seed=1), features(3, parts=5, seed=2)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.bool)
    a = Features(a.embedding, a.parts, mask)
    heat = similarity.heat(a, b)
    assert heat.shape == (3, 4, 5)
    assert (heat[~mask] == 0).all()
    garbage = Features(a.embedding, a.parts.masked_fill(~mask.unsqueeze(2), 1e9), mask)
    assert torch.allclose(similarity.heat(garbage, b), heat)
    for i in range(3):
        one = Features(a.embedding[i : i + 1], a.parts[i : i + 1, mask[i]], torch.ones(1, int(mask[i].sum())) > 0)
        other = Features(b.embedding[i : i + 1], b.parts[i : i + 1], b.mask[i : i + 1])
        assert torch.allclose(similarity.heat(one, other)[0], heat[i][mask[i]])


@pytest.mark.parametrize("name", ["cosine", "dot"])
def test_shares_of_pooled_scores_sum_to_them(name):
    """Where the embedding is the mean of the parts, on the sphere or not."""
    a, b = (features(3, seed=seed) for seed in (1, 2))
    a, b = (Features(f.mean_part(), f.parts, f.mask) for f in (a, b))
    similarity = SIMILARITIES[name]()
    assert torch.allclose(similarity.heat(a, b).sum(dim=(1, 2)), similarity(a, b).diagonal())


@pytest.mark.parametrize("metric", ["identity", "diagonal", "low_rank", "full"])
def test_shares_of_a_squared_metric_sum_to_its_mixed_term(metric):
    a, b = (features(3, seed=seed) for seed in (1, 2))
    a, b = (Features(f.mean_part(), f.parts, f.mask) for f in (a, b))
    similarity = SIMILARITIES["mahalanobis"](width=6, metric=metric, rank=2, form="squared").double()
    with torch.no_grad():
        for parameter in similarity.parameters():
            parameter.copy_(torch.rand_like(parameter) + (torch.eye(6) * 9 if metric == "full" else 0))
        similarity.after_step()
    zero = Features(torch.zeros_like(a.embedding), a.parts, a.mask)
    mixed = similarity(a, b) - similarity(a, zero) - similarity(zero, b)  # -(aᵀMa + bᵀMb - 2aᵀMb) + aᵀMa + bᵀMb
    assert torch.allclose(similarity.heat(a, b).sum(dim=(1, 2)), mixed.diagonal())


def test_matchmap_and_attention_heat_make_the_score():
    a, b = features(2, parts=4, seed=1), features(2, parts=5, seed=2)
    misa = SIMILARITIES["matchmap"](kind="misa")
    assert torch.allclose(misa.heat(a, b).amax(dim=1).mean(dim=1), misa(a, b).diagonal())
    attention = SIMILARITIES["word_region"](attention=4.0, sharpness=5.0)
    assert torch.allclose((5.0 * attention.heat(a, b).sum(dim=1)).logsumexp(dim=1), attention(a, b).diagonal())
