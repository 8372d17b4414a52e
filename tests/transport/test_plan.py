"""Plans against their optimality conditions and naive loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transport.naive import (
    assert_feasible,
    naive_log_plan,
    naive_partial_plan,
    random_cost,
    random_weights,
    uniform_weights,
)
from triptych.errors import InputError
from triptych.transport import plan_cross_entropy, sinkhorn_plan, transport_plan


def assert_optimal(result, cost, epsilon, a, b, mass):
    """Check the optimality conditions, which only the minimiser of the convex problem satisfies."""
    plan, f, g = result.plan.double(), result.row, result.column
    assert result.converged
    assert result.error <= 1e-9
    assert torch.allclose(plan.log(), (f[:, None] + g + result.offset - cost) / epsilon, atol=1e-6, rtol=1e-9)
    rows, columns = plan.sum(1), plan.sum(0)
    assert torch.isclose(plan.sum(), torch.tensor(mass, dtype=torch.float64), rtol=1e-8)
    if mass == 1:
        assert torch.allclose(rows, a, atol=1e-9)
        assert torch.allclose(columns, b, atol=1e-9)
        return
    for potential, sums, limit in ((f, rows, a), (g, columns, b)):
        assert (potential <= 0).all()
        assert (sums <= limit + 2e-9).all()
        # Complementary slackness: a row is saturated, or its potential is 0.
        assert torch.minimum(-potential / epsilon, (limit - sums) / limit).max() < 1e-6


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 7),
    st.integers(1, 7),
    st.floats(0.02, 2.0),
    st.sampled_from([1.0, 0.97, 0.6, 0.1]),
    st.integers(0, 999),
    st.booleans(),
)
def test_plan_is_optimal(n, m, epsilon, mass, seed, weighted):
    cost = random_cost(n, m, seed=seed)
    a, b = (
        (random_weights(n, seed), random_weights(m, seed + 1)) if weighted else (uniform_weights(n), uniform_weights(m))
    )
    assert_optimal(transport_plan(cost, epsilon, a, b, mass), cost, epsilon, a, b, mass)


def test_balanced_plan_equals_converged_sinkhorn():
    cost, a, b = random_cost(6, 9), random_weights(6, 1), random_weights(9, 2)
    expected = naive_log_plan(cost, 0.1, a, b, 2000).exp()
    assert torch.allclose(transport_plan(cost, 0.1, a, b).plan, expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("mass", [0.3, 0.8, 0.95])
def test_partial_plan_equals_converged_bregman_projections(mass):
    cost, a, b = random_cost(5, 7), random_weights(5, 1), random_weights(7, 2)
    expected = naive_partial_plan(cost, 0.15, a, b, mass, 600)
    assert torch.allclose(transport_plan(cost, 0.15, a, b, mass).plan, expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mass", [1.0, 0.7])
@pytest.mark.parametrize("span", [1e-6, 1.0, 10.0])
def test_finite_for_small_epsilon(span, mass, dtype):
    n = 40
    cost = (random_cost(n, n, scale=span) - span / 2).to(dtype).requires_grad_()
    result = transport_plan(cost, 0.005, mass=mass)
    assert result.plan.dtype == dtype
    assert_feasible(result, mass)
    loss, _ = plan_cross_entropy(cost, torch.eye(n) / n, 0.005, mass=mass)
    (gradient,) = torch.autograd.grad(loss, cost)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_robust_to_outlier_and_constant_shift():
    cost = random_cost(8, 8)
    plan = transport_plan(cost, 0.1, mass=0.8).plan
    assert torch.allclose(transport_plan(cost + 1e5, 0.1, mass=0.8).plan, plan, atol=1e-9)
    cost[2, 3] = 1e7  # forbidden
    result = transport_plan(cost, 0.1)
    assert result.converged
    assert result.plan[2, 3] == 0


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 6), st.integers(2, 6), st.sampled_from([1.0, 0.7]), st.integers(0, 999))
def test_invariant_to_order_and_transposition(n, m, mass, seed):
    cost, a, b = random_cost(n, m, seed=seed), random_weights(n, seed), random_weights(m, seed + 1)
    plan = transport_plan(cost, 0.2, a, b, mass).plan
    rows, columns = torch.randperm(n), torch.randperm(m)
    shuffled = transport_plan(cost[rows][:, columns], 0.2, a[rows], b[columns], mass).plan
    assert torch.allclose(shuffled, plan[rows][:, columns], atol=1e-8)
    assert torch.allclose(transport_plan(cost.T, 0.2, b, a, mass).plan.T, plan, atol=1e-8)
    if mass == 1:  # a constant added to a row or column changes nothing
        extra = random_cost(n, 1, seed=seed + 2) + random_cost(1, m, seed=seed + 3)
        assert torch.allclose(transport_plan(cost + extra, 0.2, a, b).plan, plan, atol=1e-8)


def test_equal_costs_give_uniform_plan():
    cost, a, b = torch.full((4, 6), 3.0).double(), random_weights(4, 1), random_weights(6, 2)
    assert torch.allclose(transport_plan(cost, 0.01, a, b).plan, a[:, None] * b, atol=1e-9)
    half = transport_plan(cost, 0.01, mass=0.5).plan
    assert torch.allclose(half, torch.full_like(half, 0.5 / 24), atol=1e-9)


def test_mass_near_one_approaches_balanced_plan():
    cost = random_cost(12, 12)
    nearly, balanced = transport_plan(cost, 0.1, mass=1 - 1e-7).plan, transport_plan(cost, 0.1).plan
    assert torch.allclose(nearly, balanced, atol=1e-6)


def test_weights_may_have_any_sum():
    cost, a, b = random_cost(4, 5), random_weights(4, 1), random_weights(5, 2)
    scaled = transport_plan(cost, 0.1, 8 * a, 8 * b, 0.6).plan
    assert torch.allclose(scaled, 8 * transport_plan(cost, 0.1, a, b, 0.6).plan, atol=1e-7)


@pytest.mark.parametrize("count", [1, 10])
def test_sinkhorn_plan_runs_exact_number_of_iterations(count):
    cost, a, b = random_cost(5, 8), random_weights(5, 1), random_weights(8, 2)
    kernel = torch.exp(-cost / 0.05)
    u = torch.full((5,), 1 / 5, dtype=torch.float64)
    v = torch.empty(8, dtype=torch.float64)
    for _ in range(count):
        v = b / (kernel.T @ u)
        u = a / (kernel @ v)
    expected = u[:, None] * kernel * v
    assert torch.allclose(sinkhorn_plan(cost, 0.05, a, b, count), expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cost": torch.zeros(0, 3)}, r"cost is \(0, 3\)"),
        ({"cost": torch.zeros(3)}, r"cost is \(3,\)"),
        ({"cost": torch.zeros(3, 4, dtype=torch.int64)}, "int64"),
        ({"cost": torch.tensor([[0.0, math.nan]])}, "cost contains NaN"),
        ({"cost": torch.tensor([[0.0, math.inf]])}, "cost contains NaN or infinity"),
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"epsilon": -1.0}, "epsilon = -1.0"),
        ({"epsilon": math.nan}, "epsilon = nan"),
        ({"mass": 0.0}, "mass = 0.0"),
        ({"mass": 1.01}, "mass = 1.01"),
        ({"mass": math.nan}, "mass = nan"),
        ({"a": torch.ones(4) / 4}, r"a is \(4,\); need \(3,\)"),
        ({"a": torch.tensor([0.5, 0.5, 0.0])}, "a has a minimum of 0"),
        ({"b": torch.tensor([0.5, 0.5, 0.5, -0.5])}, "b has a minimum of -0.5"),
        ({"b": torch.tensor([0.5, 0.5, 0.5, math.inf])}, "b has a minimum"),
        ({"b": torch.ones(4)}, "a sums to 1 and b sums to 4; need equal sums"),
        ({"tolerance": 0.0}, "tolerance = 0.0"),
        ({"max_iter": 0}, "max_iter = 0"),
    ],
)
def test_invalid_input_raises(change, message):
    with pytest.raises(InputError, match=message):
        transport_plan(**{"cost": torch.zeros(3, 4), "epsilon": 0.1, **change})


def test_the_solver_stops_after_the_documented_number_of_iterations():
    with pytest.warns(RuntimeWarning, match="after 200 iterations"):
        result = transport_plan(random_cost(4, 5), 0.1, tolerance=1e-300)
    assert (result.iterations, result.converged) == (200, False)


def test_equal_costs_need_no_iteration():
    result = transport_plan(torch.full((3, 4), 0.5, dtype=torch.float64), 0.1)
    assert result.iterations == 0
    assert torch.allclose(result.plan, torch.full((3, 4), 1 / 12, dtype=result.plan.dtype))
