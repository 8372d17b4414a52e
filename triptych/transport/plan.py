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

MAX_COST_TO_EPSILON = 32.0  # if (max - min of the cost) / epsilon exceeds this, larger epsilons are solved first
COARSE_TOLERANCE = 1e-3  # tolerance of the plans of larger epsilons
TOLERANCE, MAX_ITERATIONS = 1e-9, 200


@dataclass(frozen=True)
class Plan:
    """A transport plan: log plan_ij = (row_i + column_j + offset - cost_ij) / epsilon."""

    plan: Tensor  # (N, M), in the dtype of the cost, float32 at least
    row: Tensor  # (N,) float64 potentials f; at most 0 in a partial plan
    column: Tensor  # (M,) float64 potentials g; at most 0 in a partial plan
    offset: float  # lambda, the multiplier of the mass constraint of a partial plan; 0 for a balanced plan
    iterations: int  # Newton or interior-point iterations for all epsilons together; Sinkhorn iterations not counted
    error: float  # L1 error of the column sums (rows are exact), as a fraction of the mass
    converged: bool  # error <= tolerance


@dataclass(frozen=True)
class SolveInfo:
    """Iterations and final error of the solver of a plan."""

    iterations: int
    error: float


def transport_plan(
    cost: Tensor,
    epsilon: float,
    a: Tensor | None = None,
    b: Tensor | None = None,
    mass: float = 1.0,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> Plan:
    """Return the entropic plan between weights a and b (default: uniform) that moves a fraction `mass` of the weight.

    plan = argmin_P <P, C> + epsilon · sum_ij P_ij (log P_ij - 1)
           with P1 = a, Pᵀ1 = b where mass = 1;  with P1 <= a, Pᵀ1 <= b, sum(P) = mass · sum(a) where mass < 1

    Source: Cuturi 2013; partial: Benamou et al. 2015, section 5; Newton on the dual: Brauer et al. 2017.
    Use when: you need the plan itself; for losses use `plan_cross_entropy` and `plan_divergence`.
    Beware: the plan has no gradient. Computes in float64, so half precision is not faster.
    """
    if not tolerance > 0 or max_iterations < 1:
        raise InputError(f"tolerance = {tolerance}, max_iterations = {max_iterations}; need more than 0 and at least 1")
    return solve_plan(cost, epsilon, make_problem_from_cost(cost, epsilon, a, b, mass), tolerance, max_iterations)[0]


def sinkhorn_plan(
    cost: Tensor, epsilon: float, a: Tensor | None = None, b: Tensor | None = None, count: int = 10
) -> Tensor:
    """Return the plan after exactly `count` Sinkhorn iterations from u = 1/N: v = b / (Kᵀu), then u = a / (Kv).

    Source: Cuturi 2013. In the log domain, K = exp(-C / epsilon).
    Use when: you reproduce an evaluation with a fixed number of iterations (10 is usual).
    Beware: row sums equal a, but column sums differ from b. `transport_plan` is exact and mostly faster.
    """
    if count < 1:
        raise InputError(f"count = {count}; need at least 1")
    problem = make_problem_from_cost(cost, epsilon, a, b, 1.0)
    logits = cost.detach().double() / -epsilon  # (N, M)
    row = torch.full_like(problem.a, -math.log(len(problem.a)))
    column = torch.zeros_like(problem.b)
    for _ in range(count):
        column = problem.b.log() - torch.logsumexp(logits + row[:, None], dim=0)
        row = problem.a.log() - torch.logsumexp(logits + column, dim=1)
    return (logits + row[:, None] + column).exp().to(result_dtype(cost.dtype))


def solve_plan(
    cost: Tensor, epsilon: float, problem: TransportProblem, tolerance: float, max_iterations: int
) -> tuple[Plan, DualPoint, Tensor]:
    """Return the plan, the dual point (log units) and the plan as a float64 matrix."""
    point, iterations, system = solve_dual(DenseScores(-cost), epsilon, problem, tolerance, max_iterations)
    matrix = system.to_dense()
    row, column, offset = point.row * epsilon, point.column * epsilon, point.offset.item() * epsilon
    plan = matrix.to(result_dtype(cost.dtype))
    return Plan(plan, row, column, offset, iterations, point.error, point.error <= tolerance), point, matrix


def solve_dual(
    scores: Scores, epsilon: float, problem: TransportProblem, tolerance: float, max_iterations: int
) -> tuple[DualPoint, int, Laplacian]:
    """Return the dual point (log units), the number of iterations and the Laplacian; warn if not converged."""
    halvings = max(0, math.ceil(math.log2(max(scores.value_range() / (MAX_COST_TO_EPSILON * epsilon), 1e-300))))
    column, iterations = torch.zeros_like(problem.b), 0
    for level in range(halvings, 0, -1):
        coarse_dual = DualProblem(scores, epsilon * 2**level, problem, column)
        point, last_iterations = maximise_dual(coarse_dual, column, max(COARSE_TOLERANCE, tolerance), max_iterations)
        column, iterations = point.column * 2, iterations + last_iterations
    dual = DualProblem(scores, epsilon, problem, column)
    point, last_iterations = maximise_dual(dual, column, tolerance, max_iterations)
    if point.error > tolerance:
        warnings.warn(
            f"the transport plan did not converge: after {last_iterations} iterations its error is {point.error:.1e} "
            f"(tolerance {tolerance:g}); increase max_iterations or epsilon (now {epsilon:g})",
            RuntimeWarning,
            stacklevel=4,
        )
    return point, iterations + last_iterations, dual.laplacian_at(point)


def make_problem_from_cost(
    cost: Tensor, epsilon: float, a: Tensor | None, b: Tensor | None, mass: float
) -> TransportProblem:
    """Return the transport problem for a cost matrix; raise InputError if an argument is invalid."""
    if cost.ndim != 2 or cost.numel() == 0 or not cost.is_floating_point():
        raise InputError(f"cost is {tuple(cost.shape)} {cost.dtype}; need a non-empty (N, M) of floats")
    low, high = cost.detach().aminmax()  # both are NaN if any entry is
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
    row_weights = _validate_weights("a", a, shape, 0, device)
    column_weights = _validate_weights("b", b, shape, 1, device)
    row_total, column_total = row_weights.sum().item(), column_weights.sum().item()
    if abs(row_total - column_total) > 1e-5 * row_total:
        raise InputError(f"a sums to {row_total:g} and b to {column_total:g}; need equal sums")
    return TransportProblem(row_weights, column_weights * (row_total / column_total), mass * row_total, mass < 1)


def _validate_weights(
    name: str, weights: Tensor | None, shape: tuple[int, int], side: int, device: torch.device
) -> Tensor:
    count = shape[side]
    if weights is None:
        return torch.full((count,), 1 / count, dtype=torch.float64, device=device)
    if weights.shape != (count,):
        raise InputError(f"{name} is {tuple(weights.shape)} for a cost of {shape}; need ({count},)")
    if not (torch.isfinite(weights).all() and (weights > 0).all()):
        raise InputError(f"{name} has a minimum of {weights.min().item():g}; need finite weights above 0")
    return weights.detach().to(device, torch.float64)


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of plans: at least float32, because the small entries of a plan underflow in half precision."""
    return torch.promote_types(dtype, torch.float32)
