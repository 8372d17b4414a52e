"""Transport plans: definition, checks of arguments, and epsilon scaling."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.errors import InputError
from triptych.transport.dual import DualPoint, DualProblem, TransportProblem, maximise_dual
from triptych.transport.laplacian import Laplacian
from triptych.transport.matrix import DenseScores, Scores

MAX_COST_TO_EPSILON = 32.0  # if (max - min of the cost) / epsilon exceeds this ratio, larger epsilons are solved first
COARSE_TOLERANCE = 1e-3  # the tolerance for epsilons above the requested epsilon
TOLERANCE, MAX_ITER = 1e-9, 200  # largest `Plan.error` and largest number of iterations for one epsilon


@dataclass(frozen=True)
class Plan:
    """A transport plan: log plan_ij = (row_i + column_j + offset - cost_ij) / epsilon."""

    plan: Tensor  # (N, M), at least float32, because small entries underflow in half precision
    row: Tensor  # (N,) float64 potentials f; at most 0 in a partial plan
    column: Tensor  # (M,) float64 potentials g; at most 0 in a partial plan
    offset: float  # the multiplier of the mass constraint of a partial plan; 0 for a balanced plan
    iterations: int  # Newton or interior-point iterations for all epsilons together, without Sinkhorn iterations
    error: float  # L1 error of the column sums, as a fraction of the mass; row sums are exact
    converged: bool  # True: the error is at most the tolerance


@dataclass(frozen=True)
class SolveInfo:
    """The number of iterations and the final error of the solver."""

    iterations: int
    error: float


def transport_plan(
    cost: Tensor,
    epsilon: float,
    a: Tensor | None = None,
    b: Tensor | None = None,
    mass: float = 1.0,
    tolerance: float = TOLERANCE,
    max_iter: int = MAX_ITER,
) -> Plan:
    """Return the entropic plan between weights a and b (default: uniform) that moves a fraction `mass` of the weight.

    plan = argmin_P <P, C> + epsilon · sum_ij P_ij (log P_ij - 1)
           with P1 = a, Pᵀ1 = b where mass = 1;  with P1 <= a, Pᵀ1 <= b, sum(P) = mass · sum(a) where mass < 1

    Source: Cuturi 2013; partial: Benamou et al. 2015, section 5; Newton on the dual: Brauer et al. 2017.
    Use when: you need the plan itself; for losses use `plan_cross_entropy` and `plan_divergence`.
    Beware: the plan has no gradient. The solver computes in float64, so a cost in half precision is not faster.
    """
    if not tolerance > 0 or max_iter < 1:
        raise InputError(f"tolerance = {tolerance}, max_iter = {max_iter}; need more than 0 and at least 1")
    return solve_plan(cost, epsilon, make_problem_from_cost(cost, epsilon, a, b, mass), tolerance, max_iter)[0]


def sinkhorn_plan(
    cost: Tensor, epsilon: float, a: Tensor | None = None, b: Tensor | None = None, count: int = 10
) -> Tensor:
    """Return the plan after exactly `count` Sinkhorn iterations from u = 1/N: v = b / (Kᵀu), then u = a / (Kv).

    K = exp(-C / epsilon). The iterations are computed in the log domain.

    Source: Cuturi 2013.
    Use when: you reproduce an evaluation with a fixed number of iterations (10 is usual).
    Beware: row sums equal a, but column sums differ from b. `transport_plan` is exact and usually faster.
    """
    if count < 1:
        raise InputError(f"count = {count}; need at least 1")
    problem = make_problem_from_cost(cost, epsilon, a, b, 1.0)
    logits = cost.detach().double() / -epsilon  # (N, M)
    row, column = torch.full_like(problem.a, -math.log(len(problem.a))), torch.zeros_like(problem.b)
    for _ in range(count):
        column = problem.b.log() - torch.logsumexp(logits + row[:, None], dim=0)
        row = problem.a.log() - torch.logsumexp(logits + column, dim=1)
    return (logits + row[:, None] + column).exp().to(torch.promote_types(cost.dtype, torch.float32))


def solve_plan(
    cost: Tensor, epsilon: float, problem: TransportProblem, tolerance: float = TOLERANCE, max_iter: int = MAX_ITER
) -> tuple[Plan, DualPoint, Tensor]:
    """Return the plan, the dual point (potentials / epsilon) and the plan as a float64 matrix."""
    point, iterations, system = solve_dual(DenseScores(-cost), epsilon, problem, tolerance, max_iter)
    matrix = system.to_dense()
    row, column, offset = point.row * epsilon, point.column * epsilon, point.offset.item() * epsilon
    plan = matrix.to(torch.promote_types(cost.dtype, torch.float32))
    return Plan(plan, row, column, offset, iterations, point.error, point.error <= tolerance), point, matrix


def solve_dual(
    scores: Scores, epsilon: float, problem: TransportProblem, tolerance: float = TOLERANCE, max_iter: int = MAX_ITER
) -> tuple[DualPoint, int, Laplacian]:
    """Return the dual point, the number of iterations and the Laplacian. Warn if the solver did not converge.

    The potentials are divided by epsilon. The solver first solves the problem for larger epsilons.
    """
    halvings = max(0, math.ceil(math.log2(max(scores.value_range() / (MAX_COST_TO_EPSILON * epsilon), 1e-300))))
    column, iterations = torch.zeros_like(problem.b), 0
    for level in range(halvings, 0, -1):
        coarse_dual = DualProblem(scores, epsilon * 2**level, problem, column)
        point, count = maximise_dual(coarse_dual, column, max(COARSE_TOLERANCE, tolerance), max_iter)
        column, iterations = point.column * 2, iterations + count
    dual = DualProblem(scores, epsilon, problem, column)
    point, count = maximise_dual(dual, column, tolerance, max_iter)
    if point.error > tolerance:
        problem_text = f"the transport plan did not converge: after {count} iterations its error is {point.error:.1e}"
        remedy = f"(tolerance {tolerance:g}); increase max_iter or epsilon (now {epsilon:g})"
        warnings.warn(f"{problem_text} {remedy}", RuntimeWarning, stacklevel=4)
    return point, iterations + count, dual.laplacian_at(point)


def make_problem_from_cost(
    cost: Tensor, epsilon: float, a: Tensor | None, b: Tensor | None, mass: float
) -> TransportProblem:
    """Return the transport problem for a cost matrix; raise InputError if an argument is invalid."""
    if cost.ndim != 2 or cost.numel() == 0 or not cost.is_floating_point():
        raise InputError(f"cost is {tuple(cost.shape)} {cost.dtype}; need a non-empty (N, M) of floats")
    low, high = cost.detach().aminmax()  # low and high are NaN if an entry is NaN
    if not (low > -torch.inf and high < torch.inf):
        raise InputError("cost contains NaN or infinity")
    return make_problem((cost.shape[0], cost.shape[1]), cost.device, epsilon, a, b, mass)


def make_problem(
    shape: tuple[int, int], device: torch.device, epsilon: float, a: Tensor | None, b: Tensor | None, mass: float
) -> TransportProblem:
    """Return the transport problem for a cost matrix of this shape; raise InputError if an argument is invalid."""
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon = {epsilon}; need a finite number above 0")
    if not 0 < mass <= 1:
        raise InputError(f"mass = {mass}; need a fraction in (0, 1]")
    a, b = _make_weights("a", a, shape[0], device), _make_weights("b", b, shape[1], device)
    row_total, column_total = a.sum().item(), b.sum().item()
    if abs(row_total - column_total) > 1e-5 * row_total:
        raise InputError(f"a sums to {row_total:g} and b sums to {column_total:g}; need equal sums")
    return TransportProblem(a, b * (row_total / column_total), mass * row_total, mass < 1)


def _make_weights(name: str, weights: Tensor | None, count: int, device: torch.device) -> Tensor:
    if weights is None:
        return torch.full((count,), 1 / count, dtype=torch.float64, device=device)
    if weights.shape != (count,):
        raise InputError(f"{name} is {tuple(weights.shape)}; need ({count},), the size of the cost")
    if not (torch.isfinite(weights).all() and (weights > 0).all()):
        raise InputError(f"{name} has a minimum of {weights.min().item():g}; need finite weights above 0")
    return weights.detach().to(device, torch.float64)
