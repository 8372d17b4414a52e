"""The linear solvers against each other and against the equations of the graph."""

import pytest
import torch

from tests.transport.naive import aligned_cost, random_cost
from triptych.transport import laplacian, plan_cross_entropy, transport_plan
from triptych.transport.matrix import DenseMatrix


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
    coupling = 1e-13  # lost by a subtraction from 1
    plan = torch.tensor([[1.0, coupling, 0.0], [0.0, 1.0, 2 * coupling], [coupling, coupling, 1.0]]).double() / 3
    one = torch.ones(3, dtype=torch.float64)
    system = laplacian.Laplacian(DenseMatrix(plan), one, one)
    rhs = torch.tensor([[1.0, 1.0, -2.0]], dtype=torch.float64) * coupling
    solution = system.solve_cholesky(rhs, rhs)[0]
    weighted = plan.T @ (plan / plan.sum(1)[:, None])
    # The equations of the graph: at every node, the sum over its neighbours of coupling · difference.
    for i in range(3):
        flow = sum((weighted[i, j] * (solution[i] - solution[j])).item() for j in range(3) if j != i)
        assert flow == pytest.approx(rhs[0, i].item(), rel=0.1)


def test_conjugate_gradients_solve_every_right_hand_side():
    """Also if one of them, such as 0, converges at once."""
    plan = random_cost(7, 5, seed=3)
    ones = torch.ones(7, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    system = laplacian.Laplacian(DenseMatrix(plan), *ones)
    system.set_slacks(random_cost(7, seed=4), random_cost(5, seed=5))
    rhs = torch.stack([0 * ones[1], random_cost(5, seed=6)])
    solution, converged = system.solve_conjugate_gradients(rhs, 1e-12, max_iter=50)
    schur = torch.diag(plan.sum(0) + system.column_slack)
    schur -= plan.T @ (plan / (plan.sum(1) + system.row_slack)[:, None])
    assert converged
    assert torch.allclose(solution, torch.linalg.solve(schur, rhs.T).T)


def test_one_conjugate_gradient_solves_a_diagonal_system():
    """The preconditioner is the inverse of the diagonal, so the scales of the columns do not matter."""
    scale = torch.logspace(-6, 6, 8, dtype=torch.float64)
    system = laplacian.Laplacian(DenseMatrix(torch.eye(8, dtype=torch.float64)), torch.ones_like(scale), scale)
    system.set_slacks(scale, 3 * scale)
    solution, converged = system.solve_conjugate_gradients(torch.ones(1, 8).double(), 1e-12, max_iter=1)
    assert converged
    assert torch.allclose(solution, (1 / (4 * scale - scale**2 / (2 * scale)))[None])
