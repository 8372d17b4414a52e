"""Convergence of the solver where Sinkhorn is slow, and accuracy after large steps."""

import pytest
import torch

from tests.transport.naive import aligned_cost, assert_feasible, random_cost, uniform_weights
from triptych.transport import sinkhorn_plan, transport_plan
from triptych.transport.dual import DualProblem, TransportProblem
from triptych.transport.matrix import DenseScores


@pytest.mark.parametrize("mass", [1.0, 0.95, 0.6])
@pytest.mark.parametrize("epsilon", [0.05, 0.03, 0.005])
@pytest.mark.parametrize(("noise", "rank"), [(1.0, 0), (4.0, 0), (1.0, 8), (0.3, 8)])
def test_converges_where_sinkhorn_is_slow(epsilon, mass, noise, rank):
    n = 96
    cost = aligned_cost(n, 64, noise, rank)
    result = transport_plan(cost, epsilon, mass=mass)
    assert_feasible(result, mass)
    assert result.iterations < 60


def test_sinkhorn_is_slow_on_aligned_batches():
    cost = aligned_cost(96, 64, 1.0, 8)
    plain, exact = sinkhorn_plan(cost, 0.03, count=300), transport_plan(cost, 0.03).plan
    assert (plain - exact).abs().sum() > 1e-4


def test_dual_is_exact_after_large_drift():
    logits = -10 * random_cost(5, 6)
    problem = TransportProblem(uniform_weights(5), uniform_weights(6), 1.0, is_partial=False)
    dual = DualProblem(DenseScores(logits), 1.0, problem, torch.zeros(6, dtype=torch.float64))
    column = torch.tensor([0.0, 900.0, -900.0, 5.0, 899.0, 0.0], dtype=torch.float64)
    for potentials in (column, -column):  # the second drift starts at the first
        point = dual.evaluate(potentials)
        assert torch.allclose(point.row, problem.a.log() - torch.logsumexp(logits + potentials, dim=1))
        assert torch.allclose(point.column_sums, (logits + potentials + point.row[:, None]).exp().sum(0))


def test_converges_where_a_full_newton_step_lowers_the_dual():
    result = transport_plan(aligned_cost(40, 32, 4.0), 1e-4)
    assert_feasible(result, 1.0)
    assert result.iterations < 60


def test_unconverged_plan_warns():
    cost = aligned_cost(96, 64, 1.0, 8)
    with pytest.warns(RuntimeWarning, match=r"after 1 iterations its error is .* increase max_iter or epsilon"):
        result = transport_plan(cost, 0.03, max_iter=1)
    assert not result.converged
    assert result.error > 1e-9
    assert torch.isfinite(result.plan).all()
