"""Matchmaps against naive loops, for every block size, padding and order."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.similarities.test_similarities import random_features
from triptych.errors import InputError, RecipeError
from triptych.interfaces import Features
from triptych.similarities.matchmap import Matchmap, MatchmapReduction, mean_max_similarity

REDUCTIONS: tuple[MatchmapReduction, ...] = get_args(MatchmapReduction)


def ragged_features(counts, dim=4, seed=0, longest=None, dtype=torch.float64):
    """Items with these numbers of real parts; padding is 1e6, so that using it would change the scores."""
    generator = torch.Generator().manual_seed(seed)
    longest = longest or max(counts)
    parts = torch.randn(len(counts), longest, dim, generator=generator, dtype=torch.float64).to(dtype)
    mask = torch.arange(longest) < torch.tensor(counts)[:, None]
    return Features(parts[:, 0].clone(), parts.masked_fill(~mask[:, :, None], 1e6), mask)


def naive_scores(a, b, reduction):
    scores = torch.zeros(len(a.parts), len(b.parts), dtype=torch.float64)
    for i, x in enumerate(a.parts):
        for j, y in enumerate(b.parts):
            m = [
                [sum(p * q for p, q in zip(r, t, strict=True)) for t in y[b.mask[j]].tolist()]
                for r in x[a.mask[i]].tolist()
            ]
            if reduction == "sisa":
                scores[i, j] = sum(map(sum, m)) / (len(m) * len(m[0]))
            elif reduction == "misa":
                scores[i, j] = sum(max(column) for column in zip(*m, strict=True)) / len(m[0])
            else:
                scores[i, j] = sum(map(max, m)) / len(m)
    return scores


def scores_pair_by_pair(a, b, reduction):
    """The same by autograd, one pair at a time: reference gradients."""
    rows = []
    for i in range(len(a.parts)):
        maps = [a.parts[i][a.mask[i]] @ b.parts[j][b.mask[j]].T for j in range(len(b.parts))]
        reduce = {
            "sisa": lambda m: m.mean(),
            "misa": lambda m: m.max(dim=0).values.mean(),
            "sima": lambda m: m.max(dim=1).values.mean(),
        }
        rows.append(torch.stack([reduce[reduction](m) for m in maps]))
    return torch.stack(rows)


lengths = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@settings(max_examples=40)
@given(lengths, lengths, st.sampled_from([1, 7, 40, 2**20]), st.integers(0, 99))
def test_matches_naive_loop(reduction, regions, frames, block_size, seed):
    a, b = ragged_features(regions, seed=seed), ragged_features(frames, seed=seed + 100, longest=6)
    assert torch.allclose(Matchmap(reduction, block_size)(a, b), naive_scores(a, b, reduction), atol=1e-10)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@settings(max_examples=40)
@given(lengths, lengths, st.sampled_from([1, 7, 40, 2**20]), st.integers(0, 99))
def test_gradient_matches_pairwise_autograd(reduction, regions, frames, block_size, seed):
    a, b = ragged_features(regions, seed=seed), ragged_features(frames, seed=seed + 100, longest=6)
    weight = torch.randn(len(regions), len(frames), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for x in (a, b):
        x.parts.requires_grad_()
    expected = torch.autograd.grad((scores_pair_by_pair(a, b, reduction) * weight).sum(), (a.parts, b.parts))
    gradients = torch.autograd.grad((Matchmap(reduction, block_size)(a, b) * weight).sum(), (a.parts, b.parts))
    for f, e in zip(gradients, expected, strict=True):
        assert torch.allclose(f, e, atol=1e-12)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("block_size", [5, 2**20])
def test_gradients_match_finite_differences(reduction, block_size):
    a, b = ragged_features([3, 2], seed=1), ragged_features([2, 4, 1], seed=2)

    def score(x, y):
        return Matchmap(reduction, block_size)(Features(a.embedding, x, a.mask), Features(b.embedding, y, b.mask))

    assert torch.autograd.gradcheck(score, (a.parts.clone().requires_grad_(), b.parts.clone().requires_grad_()))


def test_gradient_for_one_side_only():
    a, b = ragged_features([3, 2], seed=1), ragged_features([2, 4], seed=2)
    a.parts.requires_grad_()
    Matchmap()(a, b).sum().backward()
    assert a.parts.grad is not None
    assert b.parts.grad is None
    with torch.no_grad():
        without_grad = Matchmap()(a, b)
    with torch.inference_mode():
        assert torch.equal(Matchmap()(a, b), without_grad)
    assert torch.allclose(without_grad, naive_scores(a, b, "misa"))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(st.integers(0, 99))
def test_invariant_to_order_of_items_and_parts(reduction, seed):
    a, b = ragged_features([3, 3, 3], seed=seed), ragged_features([4, 4], seed=seed + 100)
    scores, items, parts = Matchmap(reduction)(a, b), torch.randperm(3), torch.randperm(3)
    permuted = Features(a.embedding[items], a.parts[items][:, parts], a.mask)
    assert torch.allclose(Matchmap(reduction)(permuted, b), scores[items])


def test_misa_and_sima_are_transposes():
    a, b = ragged_features([3, 2, 5], seed=1), ragged_features([2, 4], seed=2)
    assert torch.allclose(Matchmap("misa")(a, b), Matchmap("sima")(b, a).T)
    assert not torch.allclose(Matchmap("misa")(a, b), Matchmap("misa")(b, a).T)
    assert torch.allclose(Matchmap("sisa")(a, b), Matchmap("sisa")(b, a).T)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_true_pairs_rank_first_in_scores_and_shortlist(reduction):
    """Frames that each equal a region of their own image."""
    a = ragged_features([6] * 8, dim=32)
    frames = a.parts[:, torch.randint(6, (10,), generator=torch.Generator().manual_seed(0))]
    b = Features(frames[:, 0], frames, torch.ones(8, 10, dtype=torch.bool))
    similarity = Matchmap(reduction)
    scores, shortlist = similarity(a, b), similarity.query(a) @ similarity.keys(b).T
    assert torch.equal(scores.argmax(dim=1), torch.arange(8))
    assert torch.equal(shortlist.argmax(dim=1), torch.arange(8))
    assert similarity.is_exact == (reduction == "sisa")
    if similarity.is_exact:
        assert torch.allclose(scores, shortlist)


def test_ties_send_gradient_to_one_part():
    equal_parts = torch.ones(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 3, dtype=torch.bool)
    scores = mean_max_similarity(equal_parts, mask, equal_parts.detach(), mask, block_size=100)
    assert torch.equal(scores, torch.full((2, 2), 4.0, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(scores.sum(), equal_parts)
    assert torch.allclose(gradient, torch.full_like(equal_parts, 2 / 3))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_scores_scale_with_large_and_small_parts(reduction, scale):
    a, b = ragged_features([3, 2], seed=1, dtype=torch.float32), ragged_features([2, 4], seed=2, dtype=torch.float32)
    large = Features(a.embedding, a.parts * scale, a.mask)
    assert torch.allclose(Matchmap(reduction)(large, b) / scale, Matchmap(reduction)(a, b), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_close(reduction, autocast):
    a, b = ragged_features([5, 3], dim=16, seed=1), ragged_features([4, 6], dim=16, seed=2)
    parts = [x.parts.to(torch.float32 if autocast else torch.bfloat16).requires_grad_() for x in (a, b)]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        scores = Matchmap(reduction)(Features(a.embedding, parts[0], a.mask), Features(b.embedding, parts[1], b.mask))
    assert torch.allclose(scores.double(), Matchmap(reduction)(a, b), rtol=0.02, atol=0.1)
    gradients = torch.autograd.grad(scores.float().sum(), parts)
    assert all(torch.isfinite(s).all() and s.dtype == p.dtype for s, p in zip(gradients, parts, strict=True))


def test_memory_is_bounded_by_block_size(monkeypatch):
    """No matrix product is larger than a block, except for a single item with more regions."""
    product_sizes, matmul = [], torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda x, y: product_sizes.append(len(x) * y.shape[1]) or matmul(x, y)
    )
    Matchmap("misa", block_size=64)(ragged_features([9] * 7, seed=1), ragged_features([5] * 6, seed=2))
    assert max(product_sizes) <= 64
    assert sum(product_sizes) == 7 * 9 * 6 * 5


def test_invalid_inputs_raise():
    with pytest.raises(RecipeError, match=r"reduction 'miso' is unknown; known: misa, sima, sisa"):
        Matchmap("miso")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="block_size = 0"):
        Matchmap(block_size=0)
    with pytest.raises(InputError, match=r"a.parts have 4 dimensions and b.parts 5"):
        Matchmap()(ragged_features([2]), ragged_features([2], dim=5))
    with pytest.raises(InputError, match=r"a.parts have 4 dimensions and b.parts 5"):
        Matchmap().attribution(ragged_features([2]), ragged_features([2], dim=5))
    for reduction in REDUCTIONS:
        for bad in (math.nan, math.inf):
            a = ragged_features([2, 3])
            a.parts[1, 0] = bad
            with pytest.raises(InputError, match="NaN or infinity in a part"):
                Matchmap(reduction)(a, ragged_features([2, 1], seed=1))


def test_attribution_of_misa_reproduces_score():
    a, b = random_features(2, parts=4, seed=1), random_features(2, parts=5, seed=2)
    misa = Matchmap(reduction="misa")
    assert torch.allclose(misa.attribution(a, b).amax(dim=1).mean(dim=1), misa(a, b).diagonal())
