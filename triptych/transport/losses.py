"""Losses over a transport plan, with gradients in closed form: nothing is back-propagated through iterations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from triptych.errors import InputError
from triptych.streaming import DEFAULT_BLOCK_SIZE
from triptych.transport.dual import DualPoint, TransportProblem
from triptych.transport.laplacian import FIXED_SLACK, Laplacian
from triptych.transport.matrix import DenseMatrix, TiledScores
from triptych.transport.plan import (
    MAX_ITERATIONS,
    TOLERANCE,
    Plan,
    SolveInfo,
    make_problem,
    make_problem_from_cost,
    result_dtype,
    solve_dual,
    solve_plan,
)

ADJOINT_TOLERANCE = 1e-12  # residual left in an implicit gradient


def plan_cross_entropy(
    cost: Tensor, target: Tensor, epsilon: float, a: Tensor | None = None, b: Tensor | None = None, mass: float = 1.0
) -> tuple[Tensor, Plan]:
    """Cross-entropy of the plan against any target, differentiable in the cost.

    L = - sum_ij T_ij log P_ij          dL/dC = (T - P ∘ (u ⊕ v)) / epsilon
    with [[diag(P1), P], [Pᵀ, diag(Pᵀ1)]] (u, v) = (T1, Tᵀ1): the optimality conditions, differentiated. Partial:
    u_i = w where row i is not full, v_j = 0 where column j is not, and sum(P ∘ (u ⊕ v)) = sum(T). Where T has the
    marginals of a balanced plan, u ⊕ v = 1 and nothing is solved.

    Source: implicit differentiation of the optimality conditions, as in Luise et al. 2018.
    Use when: the target does not meet the plan's constraints; where it does, see `plan_divergence`.
    Beware: a partial plan has kinks, where a row or column becomes full; the gradient there is a one-sided one.
    """
    problem = make_problem_from_cost(cost, epsilon, a, b, mass)
    target64 = _validate_target(target, cost)
    plan, point, plan64 = solve_plan(cost, epsilon, problem, TOLERANCE, MAX_ITERATIONS)
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
    """How far a target that meets the constraints is from the plan that is best (Fenchel–Young loss).

    L = (E(T) - E(P)) / epsilon >= 0,  E(P) = <P, C> + epsilon · sum_ij P_ij log P_ij,         dL/dC = (T - P) / epsilon
    Balanced it is KL(T || P). Partial it is KL(T || P) + <T1 - a, f> / epsilon + <Tᵀ1 - b, g> / epsilon, so no less.

    Source: Blondel, Martins and Niculae 2020; the gradient is the envelope theorem's.
    Use when: the target meets the plan's constraints: row and column sums and the mass. Convex in the cost.
    Beware: a target that breaks them has no such value and is refused.
    """
    problem = make_problem_from_cost(cost, epsilon, a, b, mass)
    target64 = _validate_target(target, cost)
    marginal_gap = torch.cat([target64.sum(1) - problem.a, target64.sum(0) - problem.b])
    violation = (marginal_gap.clamp_min(0) if problem.is_partial else marginal_gap).abs().sum().item()
    total = target64.sum().item()
    if max(violation, abs(total - problem.mass)) > 1e-5 * problem.mass:
        raise InputError(
            f"target has mass {total:g} and is off the weights by {violation:g}; need mass {problem.mass:g} and rows and "
            f"columns that sum to {'at most ' if problem.is_partial else ''}a and b"
        )
    plan, point, plan64 = solve_plan(cost, epsilon, problem, TOLERANCE, MAX_ITERATIONS)
    positive_entries = target64[target64 > 0]
    value = positive_entries @ positive_entries.log() + (target64 * cost.detach()).sum() / epsilon - point.value
    return _attach_gradient(cost, value, (target64 - plan64).div_(epsilon) if cost.requires_grad else None), plan


def streamed_optimal_value(
    query: Tensor, keys: Tensor, epsilon: float, mass: float = 1.0, block_size: int = DEFAULT_BLOCK_SIZE
) -> tuple[Tensor, SolveInfo]:
    """The least that can be reached, for cost = -query @ keys.T and uniform weights, without the (N, M) matrix.

    V = min_P E(P) / epsilon,  E as in `plan_divergence`;          dV/dquery = -P @ keys / epsilon, and so for the keys.
    So a divergence is (E(T) / epsilon) - V, with E(T) = <T, C> + epsilon · sum T log T from whoever knows T.

    Source: as `plan_divergence`. Newton or the interior point as there, by conjugate gradients alone.
    Use when: N · M numbers are too many. Memory is a few tiles of block × block.
    Beware: every product with the plan makes all scores anew, and there are about a hundred: slower by as much as
        the embeddings are wide. Where the matrix fits into memory, `plan_divergence` is the one to take.
    """
    if query.ndim != 2 or keys.ndim != 2 or query.shape[1] != keys.shape[1] or 0 in (len(query), len(keys)):
        raise InputError(f"query {tuple(query.shape)}, keys {tuple(keys.shape)}; need (N, S) and (M, S), none empty")
    if block_size < 1:
        raise InputError(f"block_size = {block_size}; need 1 or more")
    for name, tensor in (("query", query), ("keys", keys)):
        if not torch.isfinite(tensor).all():
            raise InputError(f"{name} holds NaN or infinity")
    problem = make_problem((len(query), len(keys)), query.device, epsilon, None, None, mass)
    scores = TiledScores(query, keys, block_size)
    point, iterations, system = solve_dual(scores, epsilon, problem, TOLERANCE, MAX_ITERATIONS)
    gradients: tuple[Tensor, ...] = ()
    if query.requires_grad or keys.requires_grad:
        gradients = tuple(
            gradient.T.div_(-epsilon).to(side.dtype)
            for gradient, side in (
                (system.matvec(scores.keys.double().T), query),
                (system.rmatvec(scores.query.double().T), keys),
            )
        )
    # In float64: a divergence is the small difference of two such numbers.
    return (_PrecomputedGradient.apply(point.value, query, keys, *gradients) if gradients else point.value), SolveInfo(
        iterations, point.error
    )


def _validate_target(target: Tensor, cost: Tensor) -> Tensor:
    if target.shape != cost.shape:
        raise InputError(f"target is {tuple(target.shape)} for a cost of {tuple(cost.shape)}; need the same")
    low, high = target.detach().aminmax()  # both are NaN if any entry is
    if not (low >= 0 and high < torch.inf):
        raise InputError("target holds a negative number, NaN or infinity")
    return target.detach().to(cost.device, torch.float64)


def _solve_adjoint(
    plan: Tensor, point: DualPoint, problem: TransportProblem, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """u and v of `plan_cross_entropy` for a target with these sums."""
    system = Laplacian(DenseMatrix(plan), torch.ones_like(rows), torch.ones_like(columns))
    if problem.is_partial:
        fixed_slack, no_slack = rows.new_tensor(FIXED_SLACK), rows.new_zeros(())
        system.set_slacks(
            torch.where(point.row == 0, fixed_slack, no_slack), torch.where(point.column == 0, fixed_slack, no_slack)
        )
        u, v, w = system.solve_bordered(
            rows * (point.row < 0), columns * (point.column < 0), rows.sum(), ADJOINT_TOLERANCE
        )
        return u + w, v
    v = system.solve((columns - system.rmatvec(system.inverse_row_degrees * rows))[None], ADJOINT_TOLERANCE)[0]
    return system.inverse_row_degrees * (rows - system.matvec(v)), v


class _PrecomputedGradient(Function):
    """A value whose gradients are known already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *inputs_and_gradients: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs_and_gradients[len(inputs_and_gradients) // 2 :])
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        input_gradients = [gradient * upstream.to(gradient.dtype) for gradient in ctx.saved_tensors]
        return None, *input_gradients, *(None for _ in input_gradients)


def _attach_gradient(cost: Tensor, value: Tensor, gradient: Tensor | None) -> Tensor:
    value = value.to(result_dtype(cost.dtype))
    return value if gradient is None else _PrecomputedGradient.apply(value, cost, gradient.to(cost.dtype))
