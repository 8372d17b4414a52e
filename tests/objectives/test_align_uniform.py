"""Alignment and uniformity: against loops, where rows coincide, and where exponentials would vanish."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objectives.test_objectives import pair_of, permuted, total
from tests.similarities.test_similarities import features
from triptych.contracts import Features
from triptych.errors import InputError, RecipeError
from triptych.objectives.align_uniform import AlignUniform, align, uniform

quick = settings(deadline=None, max_examples=50)


def squared(x, y):
    return sum((p - q) ** 2 for p, q in zip(x, y, strict=True))


def naive_align(x, y, alpha):
    return sum(squared(p, q) ** (alpha / 2) for p, q in zip(x, y, strict=True)) / len(x)


def naive_uniform(x, t, group):
    values = [
        math.exp(-t * squared(x[i], x[j]))
        for i in range(len(x))
        for j in range(i)
        if group is None or group[i] != group[j]
    ]
    return math.log(sum(values) / len(values))


def sphere(n, seed, width=6):
    embedding = torch.nn.functional.normalize(features(n, width=width, seed=seed).embedding, dim=1)
    return Features(embedding, embedding[:, None], torch.ones(n, 1, dtype=torch.bool))


@given(st.integers(1, 7), st.floats(0.1, 5), st.integers(0, 99))
@quick
def test_align_follows_its_formula(n, alpha, seed):
    x, y = features(n, seed=seed).embedding, features(n, seed=seed + 1).embedding
    assert align(x, y, alpha).item() == pytest.approx(naive_align(x.tolist(), y.tolist(), alpha))


@given(st.lists(st.integers(0, 3), min_size=2, max_size=7), st.floats(0.1, 5), st.integers(0, 99))
@quick
def test_uniform_follows_its_formula(group, t, seed):
    x, groups = features(len(group), width=3, seed=seed).embedding, torch.tensor(group)
    assert uniform(x, t).item() == pytest.approx(naive_uniform(x.tolist(), t, None))
    if len(set(group)) > 1:
        same = groups[:, None] == groups
        assert uniform(x, t, same).item() == pytest.approx(naive_uniform(x.tolist(), t, group))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=7), st.integers(0, 99))
@quick
def test_the_objective_weighs_both(group, seed):
    a, b, groups = sphere(len(group), seed), sphere(len(group), seed + 1), torch.tensor(group)
    terms = AlignUniform(alpha=1.5, t=3.0, align_weight=0.7, uniform_weight=0.4)(pair_of(a, b, groups))
    x, y = a.embedding.tolist(), b.embedding.tolist()
    spread = 0.0
    if len(set(group)) > 1:
        spread = (naive_uniform(x, 3.0, group) + naive_uniform(y, 3.0, group)) / 2
    assert terms["align"].item() == pytest.approx(0.7 * naive_align(x, y, 1.5))
    assert terms["uniform"].item() == pytest.approx(0.4 * spread)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 3.0])
def test_gradients_are_right(alpha):
    x, y = features(5, seed=1).embedding.requires_grad_(), features(5, seed=2).embedding.requires_grad_()
    same = torch.eye(5, dtype=torch.bool)
    same[1, 3] = same[3, 1] = True
    assert torch.autograd.gradcheck(lambda x, y: align(x, y, alpha), (x, y))
    assert torch.autograd.gradcheck(lambda x: uniform(x, 0.5), (x,))
    assert torch.autograd.gradcheck(lambda x: uniform(x, 0.5, same), (x,))


@pytest.mark.parametrize("alpha", [0.3, 0.5, 1.0, 2.0])
def test_rows_that_coincide_have_finite_gradients(alpha):
    x = features(4).embedding.requires_grad_()
    y = x.detach().clone()
    y[0] += 1.0
    loss = align(x, y, alpha)
    (gradient,) = torch.autograd.grad(loss, x)
    assert torch.isfinite(gradient).all()
    assert (gradient[1:] == 0).all()
    assert gradient[0].abs().max() > 0
    same = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    loss = uniform(same)
    assert loss.item() == 0  # the worst there is
    assert (torch.autograd.grad(loss, same)[0] == 0).all()


@pytest.mark.parametrize("scale", [1e-25, 1e-3, 1e3, 1e15])
def test_huge_and_tiny_values_neither_vanish_nor_overflow(scale):
    x = (features(6, dtype=torch.float32).embedding * scale).requires_grad_()
    loss = uniform(x)
    closest = min(squared(x[i].tolist(), x[j].tolist()) for i in range(6) for j in range(i))
    farthest = max(squared(x[i].tolist(), x[j].tolist()) for i in range(6) for j in range(i))
    assert -2 * farthest * 1.01 - 1e-6 <= loss.item() <= -2 * closest * 0.99 + 1e-6
    assert loss.item() == pytest.approx(-2 * closest - math.log(15), rel=1e-4) or scale < 1
    assert torch.isfinite(torch.autograd.grad(loss, x)[0]).all()


def test_order_changes_nothing_and_truth_costs_less():
    a, b, order = sphere(8, 1), sphere(8, 2), torch.randperm(8)
    objective = AlignUniform()
    value = total(objective, pair_of(a, b))
    assert torch.isclose(value, total(objective, pair_of(permuted(a, order), permuted(b, order))), atol=1e-12)
    shuffled = pair_of(a, permuted(a, torch.arange(8).roll(1)))
    assert total(objective, pair_of(a, a)) < total(objective, shuffled)


def test_turning_the_sphere_changes_nothing_and_spreading_pays():
    a = sphere(16, 1)
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    assert uniform(a.embedding @ turn).item() == pytest.approx(uniform(a.embedding).item())
    crowded = torch.nn.functional.normalize(a.embedding + 3, dim=1)
    assert uniform(a.embedding) < uniform(crowded)


def test_half_precision_is_close():
    a, b = sphere(20, 1, width=32), sphere(20, 2, width=32)
    a, b = (Features(f.embedding.float(), f.parts.float(), f.mask) for f in (a, b))
    full = total(AlignUniform(), pair_of(a, b)).item()

    def half(f):
        return Features(f.embedding.bfloat16(), f.parts, f.mask)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        automatic = total(AlignUniform(), pair_of(a, b)).item()
    assert automatic == pytest.approx(full, rel=1e-4)
    assert total(AlignUniform(), pair_of(half(a), half(b))).item() == pytest.approx(full, rel=0.02)


def test_wrong_settings_and_tensors_are_named():
    for name, value in {"alpha": 0.0, "t": -1.0, "align_weight": -0.5, "uniform_weight": float("inf")}.items():
        with pytest.raises(RecipeError, match=f"{name} = "):
            AlignUniform(**{name: value})
    with pytest.raises(InputError, match=r"x is \(2, 3\), y is \(3, 3\)"):
        align(torch.zeros(2, 3), torch.zeros(3, 3))
    with pytest.raises(InputError, match="1 rows without a pair"):
        uniform(torch.zeros(1, 3))
    with pytest.raises(InputError, match="without a pair"):
        uniform(torch.zeros(3, 3), same=torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(InputError, match="too large to square"):
        uniform(torch.tensor([[0.0, 0.0], [1e30, 0.0]]))
    with pytest.raises(InputError, match="NaN"):
        align(torch.full((2, 2), torch.nan), torch.zeros(2, 2))
