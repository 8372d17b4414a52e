"""Every similarity of the registry, against its formula as loops and against what all of them promise."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from triptych.interfaces import Features
from triptych.similarities import SIMILARITIES

SETTINGS = {"mahalanobis": {"embed_dim": 6}}  # the others' defaults will do


def random_features(items, dim=6, parts=3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return Features(
        torch.randn(items, dim, generator=generator, dtype=dtype),
        torch.randn(items, parts, dim, generator=generator, dtype=dtype),
        torch.ones(items, parts, dtype=torch.bool),
    )


@pytest.fixture(params=SIMILARITIES)
def similarity(request):
    return SIMILARITIES[request.param](**SETTINGS.get(request.param, {})).double()


def test_query_and_keys_reproduce_scores_if_exact(similarity):
    a, b = random_features(5, seed=1), random_features(7, seed=2)
    scores = similarity(a, b)
    assert scores.shape == (5, 7)
    if similarity.is_exact:
        assert torch.allclose(similarity.query(a) @ similarity.keys(b).T, scores, atol=1e-12)


def test_item_is_most_similar_to_itself(similarity):
    """On the sphere: in free space a longer vector may well be more like."""
    unnormalised = random_features(8)
    a = Features(F.normalize(unnormalised.embedding, dim=1), F.normalize(unnormalised.parts, dim=2), unnormalised.mask)
    assert torch.equal(similarity(a, a).argmax(dim=1), torch.arange(8))


def test_gradients_match_finite_differences(similarity):
    a, b = random_features(3, seed=1), random_features(4, seed=2)

    def score(embedding):
        return similarity(Features(embedding, a.parts, a.mask), b)

    assert torch.autograd.gradcheck(score, (a.embedding.clone().requires_grad_(),))


@given(st.integers(1, 6), st.integers(1, 6), st.floats(1e-3, 1e3), st.integers(0, 99))
def test_cosine_matches_naive_loop_at_any_norm(n, m, scale, seed):
    a, b = random_features(n, seed=seed), random_features(m, seed=seed + 100)
    scores = SIMILARITIES["cosine"]()(Features(a.embedding * scale, a.parts, a.mask), b)
    for i in range(n):
        for j in range(m):
            x, y = a.embedding[i].tolist(), b.embedding[j].tolist()
            dot = sum(p * q for p, q in zip(x, y, strict=True))
            lengths = sum(p * p for p in x) ** 0.5 * sum(q * q for q in y) ** 0.5
            assert scores[i, j].item() == pytest.approx(dot / lengths, abs=1e-9)


def test_attribution_ignores_padding_and_other_rows(similarity):
    a, b = random_features(3, parts=4, seed=1), random_features(3, parts=5, seed=2)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.bool)
    a = Features(a.embedding, a.parts, mask)
    attribution = similarity.attribution(a, b)
    assert attribution.shape == (3, 4, 5)
    assert (attribution[~mask] == 0).all()
    with_garbage_padding = Features(a.embedding, a.parts.masked_fill(~mask.unsqueeze(2), 1e9), mask)
    assert torch.allclose(similarity.attribution(with_garbage_padding, b), attribution)
    for i in range(3):
        a_row = Features(a.embedding[i : i + 1], a.parts[i : i + 1, mask[i]], torch.ones(1, int(mask[i].sum())) > 0)
        b_row = Features(b.embedding[i : i + 1], b.parts[i : i + 1], b.mask[i : i + 1])
        assert torch.allclose(similarity.attribution(a_row, b_row)[0], attribution[i][mask[i]])


@pytest.mark.parametrize("name", ["cosine", "dot"])
def test_attribution_of_pooled_similarities_sums_to_score(name):
    """Where the embedding is the mean of the parts, on the sphere or not."""
    a, b = (random_features(3, seed=seed) for seed in (1, 2))
    a, b = (Features(f.mean_pool(), f.parts, f.mask) for f in (a, b))
    similarity = SIMILARITIES[name]()
    assert torch.allclose(similarity.attribution(a, b).sum(dim=(1, 2)), similarity(a, b).diagonal())


@pytest.mark.parametrize("metric", ["identity", "diagonal", "low_rank", "full"])
def test_attribution_of_squared_metric_sums_to_cross_term(metric):
    a, b = (random_features(3, seed=seed) for seed in (1, 2))
    a, b = (Features(f.mean_pool(), f.parts, f.mask) for f in (a, b))
    similarity = SIMILARITIES["mahalanobis"](embed_dim=6, metric=metric, rank=2, form="squared").double()
    with torch.no_grad():
        for parameter in similarity.parameters():
            parameter.copy_(torch.rand_like(parameter) + (torch.eye(6) * 9 if metric == "full" else 0))
        similarity.after_step()
    zero = Features(torch.zeros_like(a.embedding), a.parts, a.mask)
    cross_term = similarity(a, b) - similarity(a, zero) - similarity(zero, b)  # -(aᵀMa + bᵀMb - 2aᵀMb) + aᵀMa + bᵀMb
    assert torch.allclose(similarity.attribution(a, b).sum(dim=(1, 2)), cross_term.diagonal())


def test_matchmap_and_word_region_attributions_reproduce_score():
    a, b = random_features(2, parts=4, seed=1), random_features(2, parts=5, seed=2)
    misa = SIMILARITIES["matchmap"](reduction="misa")
    assert torch.allclose(misa.attribution(a, b).amax(dim=1).mean(dim=1), misa(a, b).diagonal())
    attention = SIMILARITIES["word_region"](attention_scale=4.0, sharpness=5.0)
    assert torch.allclose((5.0 * attention.attribution(a, b).sum(dim=1)).logsumexp(dim=1), attention(a, b).diagonal())
