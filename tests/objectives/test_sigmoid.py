"""The sigmoid objective, dense and streamed, against loops."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objectives.test_objectives import pair_of, permuted, total
from tests.similarities.test_similarities import features
from triptych.contracts import Features, Pair
from triptych.errors import InputError, RecipeError
from triptych.objectives.sigmoid import Sigmoid, sigmoid_loss
from triptych.similarities.cosine import Cosine


def made(*shape, seed=0, scale=4.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def naive(logits, match):
    loss = 0.0
    for i in range(len(logits)):
        for j in range(len(logits[i])):
            z = 1 if match[i][j] else -1
            loss -= math.log(1 / (1 + math.exp(-z * logits[i][j]))) / len(logits)
    return loss


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.floats(0, 1), st.integers(0, 99))
def test_the_sigmoid_loss_follows_its_formula(n, m, share, seed):
    logits = made(n, m, seed=seed)
    match = torch.rand(n, m, generator=torch.Generator().manual_seed(seed)) < share
    assert sigmoid_loss(logits, match).item() == pytest.approx(naive(logits.tolist(), match.tolist()), rel=1e-10)


def test_gradients_are_right():
    match = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) < 0.4
    assert torch.autograd.gradcheck(lambda x: sigmoid_loss(x, match), (made(4, 5).requires_grad_(),))


def test_it_is_binary_cross_entropy_of_every_pair():
    logits, match = made(5, 7), torch.eye(5, 7, dtype=torch.bool)
    expected = F.binary_cross_entropy_with_logits(logits, match.double(), reduction="sum") / 5
    assert sigmoid_loss(logits, match).item() == pytest.approx(expected.item(), rel=1e-12)
    wrong = sigmoid_loss(logits, torch.zeros_like(match))  # no right pair at all: what another machine's rows add
    assert wrong.item() == pytest.approx(F.softplus(logits).sum().item() / 5, rel=1e-8)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 11), st.floats(0.01, 2.0), st.integers(0, 99)
)
def test_streamed_is_dense(group, block, temperature, seed):
    n = len(group)
    a, b = features(n, seed=seed), features(n, seed=seed + 100)
    x, y = a.embedding.requires_grad_(), b.embedding.requires_grad_()
    pair = pair_of(Features(x, a.parts, a.mask), Features(y, b.parts, b.mask), torch.tensor(group))
    found = []
    for size in (0, block):
        objective = Sigmoid(temperature=temperature, block=size).double()
        value = total(objective, pair)
        found.append([value, *torch.autograd.grad(value, (x, y, objective.log_scale, objective.offset))])
    for one, two in zip(*found, strict=True):
        assert torch.allclose(one, two, rtol=1e-9, atol=1e-12)


def test_streamed_is_dense_in_float32():
    a, b = features(300, 32, seed=1, dtype=torch.float32), features(300, 32, seed=2, dtype=torch.float32)
    pair = pair_of(a, b, torch.arange(300) // 3)
    for bias in (-10.0, 0.0, 10.0):
        dense, streamed = (Sigmoid(bias=bias, block=block)(pair)["pairs"].item() for block in (0, 128))
        assert streamed == pytest.approx(dense, rel=1e-6)


@pytest.mark.parametrize("block", [0, 3])
def test_the_objective_is_the_formula(block):
    group = torch.tensor([0, 1, 1, 2, 0])
    pair = pair_of(features(5, seed=1), features(5, seed=2), group)
    objective = Sigmoid(temperature=0.25, bias=-1.5, block=block).double()
    expected = naive((pair.scores() * 4 - 1.5).tolist(), pair.match.tolist())
    assert total(objective, pair).item() == pytest.approx(expected, rel=1e-6)


def test_it_starts_where_the_paper_does():
    state = Sigmoid().state_dict()
    assert state["log_scale"].item() == pytest.approx(math.log(10))
    assert state["offset"].item() == -10
    fixed = Sigmoid(learn_temperature=False, learn_bias=False)
    assert [p for p in fixed.parameters() if p.requires_grad] == []


@pytest.mark.parametrize("block", [0, 3])
def test_order_changes_nothing_and_truth_beats_shuffled(block):
    objective = Sigmoid(block=block).double()
    a, b, group, order = features(8, seed=1), features(8, seed=2), torch.arange(8) // 2, torch.randperm(8)
    value = total(objective, pair_of(a, b, group))
    turned = total(objective, pair_of(permuted(a, order), permuted(b, order), group[order]))
    assert turned.item() == pytest.approx(value.item(), rel=1e-10)
    assert total(objective, pair_of(a, a)) < total(objective, pair_of(a, permuted(a, torch.arange(8).roll(1))))


@pytest.mark.slow
@pytest.mark.parametrize("block", [0, 3])
def test_learning_the_bias_alone_finds_the_share_of_right_pairs(block):
    """With all scores equal the best logit is log(right / wrong): here ln(1/7)."""
    same = Features(torch.ones(8, 4), torch.ones(8, 1, 4), torch.ones(8, 1, dtype=torch.bool))
    objective = Sigmoid(learn_temperature=False, temperature=1.0, bias=0.0, block=block)
    step = torch.optim.SGD([objective.offset], lr=0.3)
    for _ in range(300):
        step.zero_grad()
        total(objective, pair_of(same, same)).backward()
        step.step()
    assert objective.offset.item() + 1 == pytest.approx(math.log(1 / 7), abs=1e-3)


@pytest.mark.parametrize("block", [0, 8])
def test_half_precision_is_close_to_float32(block):
    a, b = features(20, 32, seed=1, dtype=torch.float32), features(20, 32, seed=2, dtype=torch.float32)
    pair, objective = pair_of(a, b), Sigmoid(block=block)
    exact = total(objective, pair)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = total(objective, pair)
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=2e-2)


@pytest.mark.parametrize("block", [0, 1])
def test_a_single_pair_and_extreme_logits(block):
    one = features(1)
    assert total(Sigmoid(block=block).double(), pair_of(one, one)).item() == pytest.approx(math.log(2), rel=1e-6)
    far = Sigmoid(bias=-1e4, block=block).double()
    a = features(3)
    a.embedding.requires_grad_()
    value = total(far, pair_of(a, a))
    assert value.item() == pytest.approx(1e4 - 10, rel=1e-6)
    assert torch.autograd.grad(value, a.embedding)[0].isfinite().all()


def test_what_makes_no_sense_is_named():
    wrongs: list[dict[str, Any]] = [{"temperature": 0.0}, {"bias": math.nan}, {"block": -1}]
    for wrong in wrongs:
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            Sigmoid(**wrong)
    with pytest.raises(InputError, match=r"logits \(2, 3\), match \(2, 2\)"):
        sigmoid_loss(torch.zeros(2, 3), torch.eye(2, dtype=torch.bool))

    class Inexact(Cosine):
        exact = False

    a = features(3)
    with pytest.raises(InputError, match="Inexact is not exact"):
        Sigmoid(block=2).double()(Pair(a, a, torch.arange(3), Inexact()))
