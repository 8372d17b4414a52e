"""Losses of a transport plan with closed-form gradients, without back-propagation through solver iterations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from triptych.errors import InputError
from triptych.streaming import DEFAULT_BLOCK_SIZE, check_factors
from triptych.transport.dual import DualPoint, TransportProblem
from triptych.transport.laplacian import FIXED_SLACK, Laplacian
from triptych.transport.matrix import DenseMatrix, TiledScores
from triptych.transport.plan import Plan, SolveInfo, make_problem, make_problem_from_cost, solve_dual, solve_plan

ADJOINT_TOLERANCE = 1e-12  # the relative residual at which the solver of implicit gradients stops


def plan_cross_entropy(
    cost: Tensor, target: Tensor, epsilon: float, a: Tensor | None = None, b: Tensor | None = None, mass: float = 1.0
) -> tuple[Tensor, Plan]:
    """Return the cross-entropy of the plan relative to any target T, differentiable in the cost, and the plan.

    L = - sum_ij T_ij log P_ij          dL/dC = (T - P ∘ (u ⊕ v)) / epsilon
    with [[diag(P1), P], [Pᵀ, diag(Pᵀ1)]] (u, v) = (T1, Tᵀ1): the derivative of the optimality conditions.
    Partial: u_i = w if row i is unsaturated, v_j = 0 if column j is unsaturated, and sum(P ∘ (u ⊕ v)) = sum(T).
    Balanced: if the row and column sums of T equal those of P, then u ⊕ v = 1 and no system is solved.

    Source: implicit differentiation of the optimality conditions, as in Luise et al. 2018.
    Use when: the target violates the constraints of the plan. Otherwise use `plan_divergence`.
    Beware: a partial plan is not differentiable where a row or column becomes saturated. At such a point, the gradient
    is one-sided.
    """
    problem = make_problem_from_cost(cost, epsilon, a, b, mass)
    target64 = _validate_target(target, cost)
    plan, point, plan64 = solve_plan(cost, epsilon, problem)
    rows, columns = target64.sum(1), target64.sum(0)
    value = (target64 * cost.detach()).sum() / epsilon
    value = value - (rows @ point.row + columns @ point.column + target64.sum() * point.offset)
    gradient = None
    if cost.requires_grad:
        marginal_gap = (rows - problem.a).abs().sum() + (columns - problem.b).abs().sum()
        if problem.is_partial or marginal_gap > 1e-6 * problem.mass:
            u, v = _solve_adjoint(plan64, point, problem, rows, columns)
            plan64 = (u[:, None] + v).mul_(plan64)
        gradient = (target64 - plan64).div_(epsilon)
    return _attach_gradient(cost, value, gradient), plan


def plan_divergence(
    cost: Tensor, target: Tensor, epsilon: float, a: Tensor | None = None, b: Tensor | None = None, mass: float = 1.0
) -> tuple[Tensor, Plan]:
    """Return the Fenchel–Young loss of a target T that satisfies the constraints of the plan, and the plan.

    L = (E(T) - E(P)) / epsilon >= 0,  E(P) = <P, C> + epsilon · sum_ij P_ij log P_ij,         dL/dC = (T - P) / epsilon
    Balanced: L = KL(T || P). Partial: L = KL(T || P) + <T1 - a, f> / epsilon + <Tᵀ1 - b, g> / epsilon >= KL(T || P).

    Source: Blondel, Martins and Niculae 2020; the gradient follows from the envelope theorem.
    Use when: the target satisfies the constraints of the plan: row sums, column sums and mass. The loss is convex in
    the cost.
    Beware: a target that violates a constraint raises InputError.
    """
    problem = make_problem_from_cost(cost, epsilon, a, b, mass)
    target64 = _validate_target(target, cost)
    marginal_gap = torch.cat([target64.sum(1) - problem.a, target64.sum(0) - problem.b])
    violation = (marginal_gap.clamp_min(0) if problem.is_partial else marginal_gap).abs().sum().item()
    total = target64.sum().item()
    if max(violation, abs(total - problem.mass)) > 1e-5 * problem.mass:
        raise InputError(
            f"target has mass {total:g}, and its sums differ from the weights by {violation:g}; need mass "
            f"{problem.mass:g} and rows and columns that sum to {'at most ' if problem.is_partial else ''}a and b"
        )
    plan, point, plan64 = solve_plan(cost, epsilon, problem)
    positive = target64[target64 > 0]
    value = positive @ positive.log() + (target64 * cost.detach()).sum() / epsilon - point.value
    return _attach_gradient(cost, value, (target64 - plan64).div_(epsilon) if cost.requires_grad else None), plan


def streamed_optimal_value(
    query: Tensor, keys: Tensor, epsilon: float, mass: float = 1.0, block_size: int = DEFAULT_BLOCK_SIZE
) -> tuple[Tensor, SolveInfo]:
    """Return the optimal value for cost = -query @ keys.T and uniform weights, without the (N, M) matrix.

    V = min_P E(P) / epsilon,  E as in `plan_divergence`;          dV/dquery = -P @ keys / epsilon, likewise for keys.
    A divergence is E(T) / epsilon - V, where the caller computes E(T) = <T, C> + epsilon · sum T log T.

    Source: the sources of `plan_divergence`. The linear systems are solved by conjugate gradients only.
    Use when: N · M numbers do not fit into memory. The function needs memory for a few tiles of block_size ×
    block_size.
    Beware: computes all scores about a hundred times, once for every product with the plan, so it is slower than
      `plan_divergence` by a factor of about the embedding dimension.
    """
    check_factors(query, keys, block_size)
    problem = make_problem((len(query), len(keys)), query.device, epsilon, None, None, mass)
    scores = TiledScores(query, keys, block_size)
    point, iterations, system = solve_dual(scores, epsilon, problem)
    value = point.value  # float64, because a divergence is a small difference of two optimal values
    if query.requires_grad or keys.requires_grad:
        products = system.matvec(scores.keys.double().T), system.rmatvec(scores.query.double().T)
        grads = (x.T.div_(-epsilon).to(side.dtype) for x, side in zip(products, (query, keys), strict=True))
        value = _PrecomputedGradient.apply(value, query, keys, *grads)
    return value, SolveInfo(iterations, point.error)


def _validate_target(target: Tensor, cost: Tensor) -> Tensor:
    if target.shape != cost.shape:
        raise InputError(f"target is {tuple(target.shape)} for a cost of {tuple(cost.shape)}; need the same shape")
    low, high = target.detach().aminmax()  # low and high are NaN if an entry is NaN
    if not (low >= 0 and high < torch.inf):
        raise InputError("target contains a negative number, NaN or infinity")
    return target.detach().to(cost.device, torch.float64)


def _solve_adjoint(
    plan: Tensor, point: DualPoint, problem: TransportProblem, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Return u and v of `plan_cross_entropy` for a target with these row and column sums."""
    system = Laplacian(DenseMatrix(plan), torch.ones_like(rows), torch.ones_like(columns))
    if problem.is_partial:
        system.set_slacks(*((x == 0).double() * FIXED_SLACK for x in (point.row, point.column)))
        saturated_rows, saturated_columns = rows * (point.row < 0), columns * (point.column < 0)
        u, v, w = system.solve_bordered(saturated_rows, saturated_columns, rows.sum(), ADJOINT_TOLERANCE)
        return u + w, v
    v = system.solve((columns - system.rmatvec(system.inverse_row_degrees * rows))[None], ADJOINT_TOLERANCE)[0]
    return system.inverse_row_degrees * (rows - system.matvec(v)), v


class _PrecomputedGradient(Function):
    """A loss value whose gradients were computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *inputs_and_gradients: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs_and_gradients[len(inputs_and_gradients) // 2 :])
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradients = [gradient * upstream.to(gradient.dtype) for gradient in ctx.saved_tensors]
        return None, *gradients, *(None for _ in gradients)


def _attach_gradient(cost: Tensor, value: Tensor, gradient: Tensor | None) -> Tensor:
    value = value.to(torch.promote_types(cost.dtype, torch.float32))
    return value if gradient is None else _PrecomputedGradient.apply(value, cost, gradient.to(cost.dtype))
