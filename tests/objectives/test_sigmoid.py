"""The sigmoid objective, dense and streamed, against naive loops."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objectives.test_objectives import pair_of, permute, total_loss
from tests.similarities.test_similarities import random_features
from triptych.errors import InputError, RecipeError
from triptych.interfaces import Features, Pair
from triptych.objectives.sigmoid import Sigmoid, sigmoid_loss
from triptych.similarities.cosine import Cosine


class InexactSimilarity(Cosine):
    """A similarity that cannot be streamed."""

    is_exact = False


def random_tensor(*shape, seed=0, scale=4.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def naive_loss(logits, positive_mask):
    loss = 0.0
    for i in range(len(logits)):
        for j in range(len(logits[i])):
            z = 1 if positive_mask[i][j] else -1
            loss -= math.log(1 / (1 + math.exp(-z * logits[i][j]))) / len(logits)
    return loss


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.floats(0, 1), st.integers(0, 99))
def test_loss_matches_naive_loop(n, m, positive_rate, seed):
    logits = random_tensor(n, m, seed=seed)
    positive_mask = torch.rand(n, m, generator=torch.Generator().manual_seed(seed)) < positive_rate
    assert sigmoid_loss(logits, positive_mask).item() == pytest.approx(
        naive_loss(logits.tolist(), positive_mask.tolist()), rel=1e-10
    )


def test_gradients_match_finite_differences():
    positive_mask = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) < 0.4
    assert torch.autograd.gradcheck(lambda x: sigmoid_loss(x, positive_mask), (random_tensor(4, 5).requires_grad_(),))


def test_equals_binary_cross_entropy():
    logits, positive_mask = random_tensor(5, 7), torch.eye(5, 7, dtype=torch.bool)
    expected = F.binary_cross_entropy_with_logits(logits, positive_mask.double(), reduction="sum") / 5
    assert sigmoid_loss(logits, positive_mask).item() == pytest.approx(expected.item(), rel=1e-12)
    all_negative = sigmoid_loss(
        logits, torch.zeros_like(positive_mask)
    )  # no positives, as for the rows of another process
    assert all_negative.item() == pytest.approx(F.softplus(logits).sum().item() / 5, rel=1e-8)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 11), st.floats(0.01, 2.0), st.integers(0, 99)
)
def test_streamed_equals_dense(group, block, temperature, seed):
    n = len(group)
    a, b = random_features(n, seed=seed), random_features(n, seed=seed + 100)
    x, y = a.embedding.requires_grad_(), b.embedding.requires_grad_()
    pair = pair_of(Features(x, a.parts, a.mask), Features(y, b.parts, b.mask), torch.tensor(group))
    results = []
    for size in (0, block):
        objective = Sigmoid(temperature=temperature, stream_block=size).double()
        value = total_loss(objective, pair)
        results.append([value, *torch.autograd.grad(value, (x, y, objective.log_scale, objective.logit_bias))])
    for dense, streamed in zip(*results, strict=True):
        assert torch.allclose(dense, streamed, rtol=1e-9, atol=1e-12)


def test_streamed_equals_dense_in_float32():
    a, b = random_features(300, 32, seed=1, dtype=torch.float32), random_features(300, 32, seed=2, dtype=torch.float32)
    pair = pair_of(a, b, torch.arange(300) // 3)
    for bias in (-10.0, 0.0, 10.0):
        dense, streamed = (Sigmoid(bias=bias, stream_block=block).terms(pair)["pairs"].item() for block in (0, 128))
        assert streamed == pytest.approx(dense, rel=1e-6)


@pytest.mark.parametrize("block", [0, 3])
def test_objective_matches_naive_loop(block):
    group = torch.tensor([0, 1, 1, 2, 0])
    pair = pair_of(random_features(5, seed=1), random_features(5, seed=2), group)
    objective = Sigmoid(temperature=0.25, bias=-1.5, stream_block=block).double()
    expected = naive_loss((pair.scores() * 4 - 1.5).tolist(), pair.positive_mask.tolist())
    assert total_loss(objective, pair).item() == pytest.approx(expected, rel=1e-6)


def test_default_initial_values_match_paper():
    state = Sigmoid().state_dict()
    assert state["log_scale"].item() == pytest.approx(math.log(10))
    assert state["logit_bias"].item() == -10
    fixed = Sigmoid(learn_temperature=False, learn_bias=False)
    assert [p for p in fixed.parameters() if p.requires_grad] == []


def test_inexact_similarity_needs_no_option():
    a, b = random_features(5, seed=1), random_features(5, seed=2)
    pair = Pair(a, b, torch.tensor([0, 1, 1, 2, 0]), InexactSimilarity())
    expected = naive_loss((pair.scores() * 10 - 10).tolist(), pair.positive_mask.tolist())
    assert Sigmoid().double().terms(pair)["pairs"].item() == pytest.approx(expected, rel=1e-6)


def test_temperature_is_logged_and_bounded():
    objective = Sigmoid(temperature=0.25)
    assert objective.metrics_to_log() == pytest.approx({"temperature": 0.25})
    for log_scale, temperature in ((100.0, 0.01), (-100.0, 1.0)):
        objective.log_scale.data.fill_(log_scale)
        objective.after_step()
        assert objective.metrics_to_log() == pytest.approx({"temperature": temperature})


@pytest.mark.parametrize("block", [0, 3])
def test_invariant_to_order_and_true_pairs_cost_less(block):
    objective = Sigmoid(stream_block=block).double()
    a, b, group, order = random_features(8, seed=1), random_features(8, seed=2), torch.arange(8) // 2, torch.randperm(8)
    value = total_loss(objective, pair_of(a, b, group))
    permuted_loss = total_loss(objective, pair_of(permute(a, order), permute(b, order), group[order]))
    assert permuted_loss.item() == pytest.approx(value.item(), rel=1e-10)
    assert total_loss(objective, pair_of(a, a)) < total_loss(objective, pair_of(a, permute(a, torch.arange(8).roll(1))))


@pytest.mark.slow
@pytest.mark.parametrize("block", [0, 3])
def test_learned_bias_converges_to_log_odds_of_positives(block):
    """With equal scores, the optimal logit is log(positives / negatives): here ln(1/7)."""
    identical = Features(torch.ones(8, 4), torch.ones(8, 1, 4), torch.ones(8, 1, dtype=torch.bool))
    objective = Sigmoid(learn_temperature=False, temperature=1.0, bias=0.0, stream_block=block)
    optimizer = torch.optim.SGD([objective.logit_bias], lr=0.3)
    for _ in range(300):
        optimizer.zero_grad()
        total_loss(objective, pair_of(identical, identical)).backward()
        optimizer.step()
    assert objective.logit_bias.item() + 1 == pytest.approx(math.log(1 / 7), abs=1e-3)


@pytest.mark.parametrize("block", [0, 8])
def test_half_precision_is_close_to_float32(block):
    a, b = random_features(20, 32, seed=1, dtype=torch.float32), random_features(20, 32, seed=2, dtype=torch.float32)
    pair, objective = pair_of(a, b), Sigmoid(stream_block=block)
    exact = total_loss(objective, pair)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = total_loss(objective, pair)
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=2e-2)


@pytest.mark.parametrize("block", [0, 1])
def test_a_single_pair_and_extreme_logits(block):
    single = random_features(1)
    assert total_loss(Sigmoid(stream_block=block).double(), pair_of(single, single)).item() == pytest.approx(
        math.log(2), rel=1e-6
    )
    low_bias = Sigmoid(bias=-1e4, stream_block=block).double()
    a = random_features(3)
    a.embedding.requires_grad_()
    value = total_loss(low_bias, pair_of(a, a))
    assert value.item() == pytest.approx(1e4 - 10, rel=1e-6)
    assert torch.autograd.grad(value, a.embedding)[0].isfinite().all()


def test_invalid_inputs_raise():
    invalid_settings: list[dict[str, Any]] = [{"temperature": 0.0}, {"bias": math.nan}, {"stream_block": -1}]
    for invalid in invalid_settings:
        with pytest.raises(RecipeError, match=next(iter(invalid))):
            Sigmoid(**invalid)
    with pytest.raises(InputError, match=r"scores \(2, 3\), positive_mask \(2, 2\)"):
        sigmoid_loss(torch.zeros(2, 3), torch.eye(2, dtype=torch.bool))
    a = random_features(3)
    with pytest.raises(InputError, match="InexactSimilarity is not exact"):
        Sigmoid(stream_block=2).double().terms(Pair(a, a, torch.arange(3), InexactSimilarity()))
