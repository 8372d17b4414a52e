"""Plans against their optimality conditions and naive loops; gradients against loops that are differentiated."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.errors import InputError
from triptych.transport import (
    laplacian,
    plan_cross_entropy,
    plan_divergence,
    sinkhorn_plan,
    transport_plan,
)
from triptych.transport.dual import DualProblem, TransportProblem
from triptych.transport.matrix import DenseMatrix, DenseScores


def random_cost(*shape, seed=0, scale=1.0):
    return scale * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_weights(count, seed):
    values = 0.2 + random_cost(count, seed=seed)
    return values / values.sum()


def uniform_weights(count):
    return torch.full((count,), 1 / count, dtype=torch.float64)


def aligned_cost(items, dim, noise, rank=0, seed=0):
    """1 - cosine of a batch whose pairs fit: the plan is nearly the identity, and plain Sinkhorn crawls."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(items, rank or dim, generator=generator, dtype=torch.float64)
    x = x @ torch.randn(rank, dim, generator=generator, dtype=torch.float64) if rank else x
    y = x + noise * x.std() * torch.randn(items, dim, generator=generator, dtype=torch.float64)
    return 1 - torch.nn.functional.normalize(x, dim=1) @ torch.nn.functional.normalize(y, dim=1).T


def naive_log_plan(cost, epsilon, a, b, count):
    """Sinkhorn with every step in the open, so that autograd can go through it."""
    u, v = torch.zeros_like(a), torch.zeros_like(b)
    for _ in range(count):
        u = a.log() - torch.logsumexp(v - cost / epsilon, dim=1)
        v = b.log() - torch.logsumexp(u[:, None] - cost / epsilon, dim=0)
    return u[:, None] + v - cost / epsilon


def naive_partial_plan(cost, epsilon, a, b, mass, count):
    """Bregman projections onto {rows <= a}, {columns <= b}, {total = mass} in turn, with Dykstra's corrections."""
    plan = torch.exp(-cost / epsilon)
    plan = plan * mass / plan.sum()
    corrections = [torch.ones_like(plan) for _ in range(3)]
    for k in range(3 * count):
        start = plan * corrections[k % 3]
        if k % 3 == 0:
            plan = start * (a / start.sum(1)).clamp_max(1)[:, None]
        elif k % 3 == 1:
            plan = start * (b / start.sum(0)).clamp_max(1)
        else:
            plan = start * mass / start.sum()
        corrections[k % 3] = start / plan
    return plan


def assert_optimal(result, cost, epsilon, a, b, mass):
    """The conditions that make a plan the only minimiser of a convex problem."""
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
        # full, or free of charge; never short and charged
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


@pytest.mark.parametrize("mass", [1.0, 0.95, 0.6])
@pytest.mark.parametrize("epsilon", [0.05, 0.03, 0.005])
@pytest.mark.parametrize(("noise", "rank"), [(1.0, 0), (4.0, 0), (1.0, 8), (0.3, 8)])
def test_converges_where_sinkhorn_is_slow(epsilon, mass, noise, rank):
    n = 96
    cost = aligned_cost(n, 64, noise, rank)
    result = transport_plan(cost, epsilon, mass=mass)
    assert_feasible(result, mass)
    assert result.iterations < 60


def assert_feasible(result, mass):
    assert result.converged
    assert torch.isfinite(result.plan).all()
    assert result.plan.sum().item() == pytest.approx(mass, rel=1e-6)
    for sums in (result.plan.double().sum(0), result.plan.double().sum(1)):
        violation = (sums - 1 / len(sums)).abs() if mass == 1 else (sums - 1 / len(sums)).clamp_min(0)
        assert violation.sum() < 1e-5


def test_sinkhorn_is_slow_on_aligned_batches():
    cost = aligned_cost(96, 64, 1.0, 8)
    plain, exact = sinkhorn_plan(cost, 0.03, count=300), transport_plan(cost, 0.03).plan
    assert (plain - exact).abs().sum() > 1e-4


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
    if mass == 1:  # what a whole row or column pays extra cannot be avoided, so it changes nothing
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


def test_cross_entropy_gradient_equals_unrolled_autograd():
    cost, a, b = random_cost(5, 8).requires_grad_(), random_weights(5, 1), random_weights(8, 2)
    target = random_cost(5, 8, seed=9)
    expected = -(target * naive_log_plan(cost, 0.1, a, b, 1500)).sum()
    (expected_gradient,) = torch.autograd.grad(expected, cost)
    loss, _ = plan_cross_entropy(cost, target, 0.1, a, b)
    (gradient,) = torch.autograd.grad(loss, cost)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-8)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("mass", [0.4, 0.8, 0.97])
def test_partial_cross_entropy_gradient_matches_finite_differences(mass):
    cost, a, b, target = (
        random_cost(5, 6).requires_grad_(),
        random_weights(5, 1),
        random_weights(6, 2),
        random_cost(5, 6, seed=9),
    )

    def loss(x):
        return plan_cross_entropy(x, target, 0.1, a, b, mass)[0]

    # a step of 1e-4, as the value is right to 1e-9 and not to the last digit
    assert torch.autograd.gradcheck(loss, (cost,), eps=1e-4, atol=2e-3, rtol=2e-3, fast_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize("mass", [1.0, 0.7])
def test_divergence_and_gradient(mass):
    cost = random_cost(6, 6).requires_grad_()
    target = mass * torch.eye(6, dtype=torch.float64) / 6
    loss, plan = plan_divergence(cost, target, 0.1, mass=mass)
    (gradient,) = torch.autograd.grad(loss, cost)
    assert torch.allclose(gradient, (target - plan.plan) / 0.1, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: plan_divergence(x, target, 0.1, mass=mass)[0], (cost,), atol=1e-4)
    divergence = sum(target[i, i] * (target[i, i] / plan.plan[i, i]).log() for i in range(6))
    unused = (target.sum(1) - 1 / 6) @ plan.row + (target.sum(0) - 1 / 6) @ plan.column
    assert loss.item() == pytest.approx((divergence + unused / 0.1).item(), rel=1e-7)
    assert loss >= divergence - 1e-9
    zero, _ = plan_divergence(cost, plan.plan, 0.1, mass=mass)
    assert abs(zero.item()) < 1e-8


def test_balanced_divergence_is_cross_entropy_minus_target_entropy():
    cost, target = random_cost(5, 5).requires_grad_(), torch.eye(5, dtype=torch.float64) / 5
    divergence, cross_entropy = plan_divergence(cost, target, 0.1)[0], plan_cross_entropy(cost, target, 0.1)[0]
    assert divergence.item() == pytest.approx(cross_entropy.item() - math.log(5), rel=1e-7)
    divergence_gradient, cross_entropy_gradient = (
        torch.autograd.grad(loss, cost)[0] for loss in (divergence, cross_entropy)
    )
    assert torch.allclose(divergence_gradient, cross_entropy_gradient, atol=1e-12)


@pytest.mark.parametrize("solver", ["factor", "conjugate"])
@pytest.mark.parametrize("mass", [1.0, 0.8])
def test_cholesky_and_conjugate_gradients_agree(monkeypatch, solver, mass):
    monkeypatch.setattr(laplacian, "ALWAYS_CHOLESKY_COLUMNS", 10**6 if solver == "factor" else 0)
    monkeypatch.setattr(laplacian, "MAX_CHOLESKY_COLUMNS", 10**6 if solver == "factor" else 0)
    cost = aligned_cost(60, 32, 1.0, 6).requires_grad_()
    result = transport_plan(cost.detach(), 0.05, mass=mass)
    assert result.converged
    loss, _ = plan_cross_entropy(cost, torch.eye(60) / 60, 0.05, mass=mass)
    (gradient,) = torch.autograd.grad(loss, cost)
    monkeypatch.undo()
    again, _ = plan_cross_entropy(cost, torch.eye(60) / 60, 0.05, mass=mass)
    assert torch.allclose(result.plan, transport_plan(cost.detach(), 0.05, mass=mass).plan, atol=1e-8)
    assert torch.allclose(gradient, torch.autograd.grad(again, cost)[0], atol=1e-5, rtol=1e-4)


def test_cholesky_is_accurate_under_cancellation():
    coupling = 1e-13  # 1 - coupling is all that subtraction would see
    plan = torch.tensor([[1.0, coupling, 0.0], [0.0, 1.0, 2 * coupling], [coupling, coupling, 1.0]]).double() / 3
    one = torch.ones(3, dtype=torch.float64)
    system = laplacian.Laplacian(DenseMatrix(plan), one, one)
    rhs = torch.tensor([[1.0, 1.0, -2.0]], dtype=torch.float64) * coupling
    solution = system.solve_cholesky(rhs, rhs)[0]
    weighted = plan.T @ (plan / plan.sum(1)[:, None])
    # the graph's own equations: every node, sum over its neighbours of coupling · difference
    for i in range(3):
        flow = sum((weighted[i, j] * (solution[i] - solution[j])).item() for j in range(3) if j != i)
        assert flow == pytest.approx(rhs[0, i].item(), rel=0.1)


def test_dual_is_exact_after_large_drift():
    logits = -10 * random_cost(5, 6)
    problem = TransportProblem(uniform_weights(5), uniform_weights(6), 1.0, is_partial=False)
    dual = DualProblem(DenseScores(logits), 1.0, problem, torch.zeros(6, dtype=torch.float64))
    column = torch.tensor([0.0, 900.0, -900.0, 5.0, 899.0, 0.0], dtype=torch.float64)
    point = dual.evaluate(column)
    assert torch.allclose(point.row, problem.a.log() - torch.logsumexp(logits + column, dim=1))
    assert torch.allclose(point.column_sums, (logits + column + point.row[:, None]).exp().sum(0))


@pytest.mark.parametrize("mass", [1.0, 0.7])
def test_half_precision_input_gives_float32_result(mass):
    cost = random_cost(16, 16).bfloat16().requires_grad_()
    loss, plan = plan_divergence(cost, mass * torch.eye(16) / 16, 0.1, mass=mass)
    loss.backward()
    assert plan.plan.dtype == loss.dtype == torch.float32
    assert cost.grad is not None
    assert cost.grad.dtype == torch.bfloat16
    assert loss.item() == pytest.approx(
        plan_divergence(cost.double(), mass * torch.eye(16) / 16, 0.1, mass=mass)[0].item()
    )


def test_unconverged_plan_warns():
    cost = aligned_cost(96, 64, 1.0, 8)
    with pytest.warns(RuntimeWarning, match=r"stopped after 1 rounds .* allow more iterations or a larger epsilon"):
        result = transport_plan(cost, 0.03, max_iterations=1)
    assert not result.converged
    assert result.error > 1e-9
    assert torch.isfinite(result.plan).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cost": torch.zeros(0, 3)}, r"cost is \(0, 3\)"),
        ({"cost": torch.zeros(3)}, r"cost is \(3,\)"),
        ({"cost": torch.zeros(3, 4, dtype=torch.int64)}, "int64"),
        ({"cost": torch.tensor([[0.0, math.nan]])}, "cost holds NaN"),
        ({"cost": torch.tensor([[0.0, math.inf]])}, "cost holds NaN or infinity"),
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"epsilon": -1.0}, "epsilon = -1.0"),
        ({"epsilon": math.nan}, "epsilon = nan"),
        ({"mass": 0.0}, "mass = 0.0"),
        ({"mass": 1.01}, "mass = 1.01"),
        ({"mass": math.nan}, "mass = nan"),
        ({"a": torch.ones(4) / 4}, r"a is \(4,\) for a cost of \(3, 4\); need \(3,\)"),
        ({"a": torch.tensor([0.5, 0.5, 0.0])}, "a has a least weight of 0"),
        ({"b": torch.tensor([0.5, 0.5, 0.5, -0.5])}, "b has a least weight of -0.5"),
        ({"b": torch.tensor([0.5, 0.5, 0.5, math.inf])}, "b has a least weight"),
        ({"b": torch.ones(4)}, "a sums to 1 and b to 4; need equal sums"),
        ({"tolerance": 0.0}, "tolerance = 0.0"),
        ({"max_iterations": 0}, "max_iterations = 0"),
    ],
)
def test_invalid_input_raises(change, message):
    with pytest.raises(InputError, match=message):
        transport_plan(**{"cost": torch.zeros(3, 4), "epsilon": 0.1, **change})


def test_invalid_targets_raise():
    cost = torch.zeros(3, 3)
    for target, message in (
        (torch.eye(2), r"target is \(2, 2\)"),
        (-torch.eye(3), "negative"),
        (torch.eye(3) * math.nan, "NaN"),
    ):
        for loss in (plan_cross_entropy, plan_divergence):
            with pytest.raises(InputError, match=message):
                loss(cost, target, 0.1)
    with pytest.raises(InputError, match=r"target has mass 3 .* need mass 1 "):
        plan_divergence(cost, torch.eye(3), 0.1)
    with pytest.raises(InputError, match="sum to at most a and b"):
        plan_divergence(cost, torch.full((3, 3), 0.5) * torch.tensor([1.0, 0.0, 0.0]) / 1.5, 0.1, mass=0.5)
    with pytest.raises(InputError, match="count = 0"):
        sinkhorn_plan(cost, 0.1, count=0)
