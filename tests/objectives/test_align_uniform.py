"""Alignment and uniformity against naive loops, for equal rows, and where exponentials underflow."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objectives.test_objectives import pair_of, permute, total_loss
from tests.similarities.test_similarities import random_features
from triptych.errors import InputError, RecipeError
from triptych.interfaces import Features
from triptych.objectives.align_uniform import AlignUniform, align_loss, uniform_loss

quick = settings(deadline=None, max_examples=50)


def squared_distance(x, y):
    return sum((p - q) ** 2 for p, q in zip(x, y, strict=True))


def naive_align(x, y, alpha):
    return sum(squared_distance(p, q) ** (alpha / 2) for p, q in zip(x, y, strict=True)) / len(x)


def naive_uniform(x, t, group):
    exponentials = [
        math.exp(-t * squared_distance(x[i], x[j]))
        for i in range(len(x))
        for j in range(i)
        if group is None or group[i] != group[j]
    ]
    return math.log(sum(exponentials) / len(exponentials))


def unit_features(n, seed, dim=6):
    embedding = torch.nn.functional.normalize(random_features(n, dim=dim, seed=seed).embedding, dim=1)
    return Features(embedding, embedding[:, None], torch.ones(n, 1, dtype=torch.bool))


@given(st.integers(1, 7), st.floats(0.1, 5), st.integers(0, 99))
@quick
def test_align_loss_matches_naive_loop(n, alpha, seed):
    x, y = random_features(n, seed=seed).embedding, random_features(n, seed=seed + 1).embedding
    assert align_loss(x, y, alpha).item() == pytest.approx(naive_align(x.tolist(), y.tolist(), alpha))


@given(st.lists(st.integers(0, 3), min_size=2, max_size=7), st.floats(0.1, 5), st.integers(0, 99))
@quick
def test_uniform_loss_matches_naive_loop(group, t, seed):
    x, groups = random_features(len(group), dim=3, seed=seed).embedding, torch.tensor(group)
    assert uniform_loss(x, t).item() == pytest.approx(naive_uniform(x.tolist(), t, None))
    if len(set(group)) > 1:
        same_group = groups[:, None] == groups
        assert uniform_loss(x, t, same_group).item() == pytest.approx(naive_uniform(x.tolist(), t, group))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=7), st.integers(0, 99))
@quick
def test_objective_weights_both_terms(group, seed):
    a, b, groups = unit_features(len(group), seed), unit_features(len(group), seed + 1), torch.tensor(group)
    terms = AlignUniform(alpha=1.5, t=3.0, align_weight=0.7, uniform_weight=0.4).terms(pair_of(a, b, groups))
    x, y = a.embedding.tolist(), b.embedding.tolist()
    expected_uniform = 0.0
    if len(set(group)) > 1:
        expected_uniform = (naive_uniform(x, 3.0, group) + naive_uniform(y, 3.0, group)) / 2
    assert terms["align"].item() == pytest.approx(0.7 * naive_align(x, y, 1.5))
    assert terms["uniform"].item() == pytest.approx(0.4 * expected_uniform)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 3.0])
def test_gradients_match_finite_differences(alpha):
    x, y = random_features(5, seed=1).embedding.requires_grad_(), random_features(5, seed=2).embedding.requires_grad_()
    same_group = torch.eye(5, dtype=torch.bool)
    same_group[1, 3] = same_group[3, 1] = True
    assert torch.autograd.gradcheck(lambda x, y: align_loss(x, y, alpha), (x, y))
    assert torch.autograd.gradcheck(lambda x: uniform_loss(x, 0.5), (x,))
    assert torch.autograd.gradcheck(lambda x: uniform_loss(x, 0.5, same_group), (x,))


@pytest.mark.parametrize("alpha", [0.3, 0.5, 1.0, 2.0])
def test_identical_rows_have_finite_gradients(alpha):
    x = random_features(4).embedding.requires_grad_()
    y = x.detach().clone()
    y[0] += 1.0
    loss = align_loss(x, y, alpha)
    (gradient,) = torch.autograd.grad(loss, x)
    assert torch.isfinite(gradient).all()
    assert (gradient[1:] == 0).all()
    assert gradient[0].abs().max() > 0
    identical = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    loss = uniform_loss(identical)
    assert loss.item() == 0  # the maximum
    assert (torch.autograd.grad(loss, identical)[0] == 0).all()


@pytest.mark.parametrize("scale", [1e-25, 1e-3, 1e3, 1e15])
def test_large_and_small_values_neither_vanish_nor_overflow(scale):
    x = (random_features(6, dtype=torch.float32).embedding * scale).requires_grad_()
    loss = uniform_loss(x)
    closest = min(squared_distance(x[i].tolist(), x[j].tolist()) for i in range(6) for j in range(i))
    farthest = max(squared_distance(x[i].tolist(), x[j].tolist()) for i in range(6) for j in range(i))
    assert -2 * farthest * 1.01 - 1e-6 <= loss.item() <= -2 * closest * 0.99 + 1e-6
    assert loss.item() == pytest.approx(-2 * closest - math.log(15), rel=1e-4) or scale < 1
    assert torch.isfinite(torch.autograd.grad(loss, x)[0]).all()


def test_invariant_to_order_and_true_pairs_cost_less():
    a, b, order = unit_features(8, 1), unit_features(8, 2), torch.randperm(8)
    objective = AlignUniform()
    value = total_loss(objective, pair_of(a, b))
    assert torch.isclose(value, total_loss(objective, pair_of(permute(a, order), permute(b, order))), atol=1e-12)
    shuffled = pair_of(a, permute(a, torch.arange(8).roll(1)))
    assert total_loss(objective, pair_of(a, a)) < total_loss(objective, shuffled)


def test_uniform_loss_is_rotation_invariant_and_rewards_spread():
    a = unit_features(16, 1)
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    assert uniform_loss(a.embedding @ rotation).item() == pytest.approx(uniform_loss(a.embedding).item())
    crowded = torch.nn.functional.normalize(a.embedding + 3, dim=1)
    assert uniform_loss(a.embedding) < uniform_loss(crowded)


def test_half_precision_is_close():
    a, b = unit_features(20, 1, dim=32), unit_features(20, 2, dim=32)
    a, b = (Features(f.embedding.float(), f.parts.float(), f.mask) for f in (a, b))
    full = total_loss(AlignUniform(), pair_of(a, b)).item()

    def to_bfloat16(f):
        return Features(f.embedding.bfloat16(), f.parts, f.mask)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast_loss = total_loss(AlignUniform(), pair_of(a, b)).item()
    assert autocast_loss == pytest.approx(full, rel=1e-4)
    assert total_loss(AlignUniform(), pair_of(to_bfloat16(a), to_bfloat16(b))).item() == pytest.approx(full, rel=0.02)


def test_invalid_settings_and_tensors_raise():
    infinite = dict.fromkeys(("alpha", "t", "align_weight", "uniform_weight"), math.inf)
    too_low = {"alpha": 0.0, "t": -1.0, "align_weight": -0.5, "uniform_weight": -1.0}
    for name, value in (*infinite.items(), *too_low.items()):
        with pytest.raises(RecipeError, match=f"{name} = "):
            AlignUniform(**{name: value})
    with pytest.raises(InputError, match=r"x is \(2, 3\), y is \(3, 3\)"):
        align_loss(torch.zeros(2, 3), torch.zeros(3, 3))
    with pytest.raises(InputError, match="1 rows, all of the same group"):
        uniform_loss(torch.zeros(1, 3))
    with pytest.raises(InputError, match="all of the same group"):
        uniform_loss(torch.zeros(3, 3), same_group=torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(InputError, match="too long to square"):
        uniform_loss(torch.tensor([[0.0, 0.0], [1e30, 0.0]]))
    with pytest.raises(InputError, match="NaN"):
        align_loss(torch.full((2, 2), torch.nan), torch.zeros(2, 2))
