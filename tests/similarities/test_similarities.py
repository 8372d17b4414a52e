"""Properties of every registered similarity."""

import pytest
import torch
import torch.nn.functional as F

from triptych.interfaces import Features
from triptych.similarities import SIMILARITIES

SETTINGS = {"mahalanobis": {"embed_dim": 6}}  # defaults for the others


def random_features(items, dim=6, parts=3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return Features(
        torch.randn(items, dim, generator=generator, dtype=dtype),
        torch.randn(items, parts, dim, generator=generator, dtype=dtype),
        torch.ones(items, parts, dtype=torch.bool),
    )


@pytest.fixture(params=SIMILARITIES.known_names())
def similarity(request):
    return SIMILARITIES[request.param](**SETTINGS.get(request.param, {})).double()


def test_query_and_keys_reproduce_scores_if_exact(similarity):
    a, b = random_features(5, seed=1), random_features(7, seed=2)
    scores = similarity(a, b)
    assert scores.shape == (5, 7)
    if similarity.is_exact:
        assert torch.allclose(similarity.query(a) @ similarity.keys(b).T, scores, atol=1e-12)


def test_item_is_most_similar_to_itself(similarity):
    """On the sphere: in free space a vector with a larger norm may score higher."""
    unnormalised = random_features(8)
    a = Features(F.normalize(unnormalised.embedding, dim=1), F.normalize(unnormalised.parts, dim=2), unnormalised.mask)
    assert torch.equal(similarity(a, a).argmax(dim=1), torch.arange(8))


def test_gradients_match_finite_differences(similarity):
    a, b = random_features(3, seed=1), random_features(4, seed=2)

    def score(embedding):
        return similarity(Features(embedding, a.parts, a.mask), b)

    assert torch.autograd.gradcheck(score, (a.embedding.clone().requires_grad_(),))


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
    """If the embedding is the mean of the parts."""
    a, b = (random_features(3, seed=seed) for seed in (1, 2))
    a, b = (Features(f.mean_pool(), f.parts, f.mask) for f in (a, b))
    similarity = SIMILARITIES[name]()
    assert torch.allclose(similarity.attribution(a, b).sum(dim=(1, 2)), similarity(a, b).diagonal())
