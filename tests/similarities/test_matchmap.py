"""Matchmaps: against loops over pairs and parts, whatever the block, the padding and the order."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.contracts import Features
from triptych.errors import InputError, RecipeError
from triptych.similarities.matchmap import Kind, Matchmap, mean_of_best

KINDS: tuple[Kind, ...] = get_args(Kind)


def ragged(counts, width=4, seed=0, longest=None, dtype=torch.float64):
    """Items with these numbers of real parts; what lies behind them would win or break everything if it counted."""
    generator = torch.Generator().manual_seed(seed)
    longest = longest or max(counts)
    parts = torch.randn(len(counts), longest, width, generator=generator, dtype=torch.float64).to(dtype)
    mask = torch.arange(longest) < torch.tensor(counts)[:, None]
    return Features(parts[:, 0].clone(), parts.masked_fill(~mask[:, :, None], 1e6), mask)


def naive(a, b, kind):
    scores = torch.zeros(len(a.parts), len(b.parts), dtype=torch.float64)
    for i, x in enumerate(a.parts):
        for j, y in enumerate(b.parts):
            m = [
                [sum(p * q for p, q in zip(r, t, strict=True)) for t in y[b.mask[j]].tolist()]
                for r in x[a.mask[i]].tolist()
            ]
            if kind == "sisa":
                scores[i, j] = sum(map(sum, m)) / (len(m) * len(m[0]))
            elif kind == "misa":
                scores[i, j] = sum(max(column) for column in zip(*m, strict=True)) / len(m[0])
            else:
                scores[i, j] = sum(map(max, m)) / len(m)
    return scores


def pairwise(a, b, kind):
    """The same, one pair at a time by autograd: the oracle of the gradients."""
    rows = []
    for i in range(len(a.parts)):
        maps = [a.parts[i][a.mask[i]] @ b.parts[j][b.mask[j]].T for j in range(len(b.parts))]
        reduce = {
            "sisa": lambda m: m.mean(),
            "misa": lambda m: m.max(dim=0).values.mean(),
            "sima": lambda m: m.max(dim=1).values.mean(),
        }
        rows.append(torch.stack([reduce[kind](m) for m in maps]))
    return torch.stack(rows)


lengths = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(lengths, lengths, st.sampled_from([1, 7, 40, 2**20]), st.integers(0, 99))
def test_it_follows_its_formula(kind, regions, frames, block, seed):
    a, b = ragged(regions, seed=seed), ragged(frames, seed=seed + 100, longest=6)
    assert torch.allclose(Matchmap(kind, block)(a, b), naive(a, b, kind), atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(lengths, lengths, st.sampled_from([1, 7, 40, 2**20]), st.integers(0, 99))
def test_its_gradient_is_that_of_the_loop_over_pairs(kind, regions, frames, block, seed):
    a, b = ragged(regions, seed=seed), ragged(frames, seed=seed + 100, longest=6)
    weight = torch.randn(len(regions), len(frames), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for x in (a, b):
        x.parts.requires_grad_()
    expected = torch.autograd.grad((pairwise(a, b, kind) * weight).sum(), (a.parts, b.parts))
    found = torch.autograd.grad((Matchmap(kind, block)(a, b) * weight).sum(), (a.parts, b.parts))
    for f, e in zip(found, expected, strict=True):
        assert torch.allclose(f, e, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [5, 2**20])
def test_gradients_are_right(kind, block):
    a, b = ragged([3, 2], seed=1), ragged([2, 4, 1], seed=2)

    def score(x, y):
        return Matchmap(kind, block)(Features(a.embedding, x, a.mask), Features(b.embedding, y, b.mask))

    assert torch.autograd.gradcheck(score, (a.parts.clone().requires_grad_(), b.parts.clone().requires_grad_()))


def test_only_one_side_may_learn():
    a, b = ragged([3, 2], seed=1), ragged([2, 4], seed=2)
    a.parts.requires_grad_()
    Matchmap()(a, b).sum().backward()
    assert a.parts.grad is not None
    assert b.parts.grad is None
    with torch.no_grad():
        quiet = Matchmap()(a, b)
    with torch.inference_mode():
        assert torch.equal(Matchmap()(a, b), quiet)
    assert torch.allclose(quiet, naive(a, b, "misa"))


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(0, 99))
def test_order_of_items_and_of_parts_changes_nothing(kind, seed):
    a, b = ragged([3, 3, 3], seed=seed), ragged([4, 4], seed=seed + 100)
    scores, items, parts = Matchmap(kind)(a, b), torch.randperm(3), torch.randperm(3)
    mixed = Features(a.embedding[items], a.parts[items][:, parts], a.mask)
    assert torch.allclose(Matchmap(kind)(mixed, b), scores[items])


def test_the_roles_swap_with_the_kind():
    a, b = ragged([3, 2, 5], seed=1), ragged([2, 4], seed=2)
    assert torch.allclose(Matchmap("misa")(a, b), Matchmap("sima")(b, a).T)
    assert not torch.allclose(Matchmap("misa")(a, b), Matchmap("misa")(b, a).T)
    assert torch.allclose(Matchmap("sisa")(a, b), Matchmap("sisa")(b, a).T)


@pytest.mark.parametrize("kind", KINDS)
def test_truth_beats_the_rest_and_the_shortlist_knows_it(kind):
    """Frames that each show one region of their own picture."""
    a = ragged([6] * 8, width=32)
    frames = a.parts[:, torch.randint(6, (10,), generator=torch.Generator().manual_seed(0))]
    b = Features(frames[:, 0], frames, torch.ones(8, 10, dtype=torch.bool))
    similarity = Matchmap(kind)
    scores, shortlist = similarity(a, b), similarity.query(a) @ similarity.keys(b).T
    assert torch.equal(scores.argmax(dim=1), torch.arange(8))
    assert torch.equal(shortlist.argmax(dim=1), torch.arange(8))
    assert similarity.exact == (kind == "sisa")
    if similarity.exact:
        assert torch.allclose(scores, shortlist)


def test_many_equal_parts_share_one_winner():
    same = torch.ones(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 3, dtype=torch.bool)
    scores = mean_of_best(same, mask, same.detach(), mask)
    assert torch.equal(scores, torch.full((2, 2), 4.0, dtype=torch.float64))
    (slope,) = torch.autograd.grad(scores.sum(), same)
    assert torch.allclose(slope, torch.full_like(same, 2 / 3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_huge_and_tiny_parts_keep_their_score(kind, scale):
    a, b = ragged([3, 2], seed=1, dtype=torch.float32), ragged([2, 4], seed=2, dtype=torch.float32)
    large = Features(a.embedding, a.parts * scale, a.mask)
    assert torch.allclose(Matchmap(kind)(large, b) / scale, Matchmap(kind)(a, b), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_stays_close(kind, autocast):
    a, b = ragged([5, 3], width=16, seed=1), ragged([4, 6], width=16, seed=2)
    parts = [x.parts.to(torch.float32 if autocast else torch.bfloat16).requires_grad_() for x in (a, b)]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = Matchmap(kind)(Features(a.embedding, parts[0], a.mask), Features(b.embedding, parts[1], b.mask))
    assert torch.allclose(found.double(), Matchmap(kind)(a, b), rtol=0.02, atol=0.1)
    slopes = torch.autograd.grad(found.float().sum(), parts)
    assert all(torch.isfinite(s).all() and s.dtype == p.dtype for s, p in zip(slopes, parts, strict=True))


def test_memory_is_bounded_by_the_block(monkeypatch):
    """No product of matrices holds more than a block, and only one item's regions may exceed it."""
    held, whole = [], torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda x, y: held.append(len(x) * y.shape[1]) or whole(x, y))
    Matchmap("misa", block=64)(ragged([9] * 7, seed=1), ragged([5] * 6, seed=2))
    assert max(held) <= 64
    assert sum(held) == 7 * 9 * 6 * 5


def test_what_makes_no_sense_is_named():
    with pytest.raises(RecipeError, match=r"kind 'miso' is unknown; known: misa, sima, sisa"):
        Matchmap("miso")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="block = 0"):
        Matchmap(block=0)
    with pytest.raises(InputError, match=r"a.parts is 4 wide and b.parts 5"):
        Matchmap()(ragged([2]), ragged([2], width=5))
    for kind in KINDS:
        for bad in (math.nan, math.inf):
            a = ragged([2, 3])
            a.parts[1, 0] = bad
            with pytest.raises(InputError, match="NaN or infinity in a part"):
                Matchmap(kind)(a, ragged([2, 1], seed=1))
