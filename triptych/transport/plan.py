"""The plan: what it is, what it may be asked for, and the loop over epsilons that finds it."""

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

MAX_COST_TO_EPSILON = 32.0  # cost span / epsilon beyond which larger epsilons are solved first, roughly, and halved
COARSE_TOLERANCE = 1e-3  # how far those are solved
TOLERANCE, MAX_ITERATIONS = 1e-9, 200


@dataclass(frozen=True)
class Plan:
    """A transport plan: log plan_ij = (row_i + column_j + offset - cost_ij) / epsilon."""

    plan: Tensor  # (N, M), in the dtype of the cost, float32 at least
    row: Tensor  # (N,) float64 potentials f; at most 0 where the plan is partial
    column: Tensor  # (M,) float64 potentials g; at most 0 where the plan is partial
    offset: float  # lambda, the price of mass where the plan is partial, else 0
    iterations: int  # Newton or interior-point rounds, over all epsilons on the way; sweeps alone count 0
    error: float  # mass in the wrong column (L1; rows are exact), as a share of the mass that moves
    converged: bool  # error <= tolerance


@dataclass(frozen=True)
class SolveInfo:
    """How a plan that is not held whole was found."""

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
    """The entropic plan between weights a and b (uniform unless given), for all of the mass or a share of it.

    plan = argmin_P <P, C> + epsilon · sum_ij P_ij (log P_ij - 1)
           with P1 = a, Pᵀ1 = b where mass = 1;  with P1 <= a, Pᵀ1 <= b, sum(P) = mass · sum(a) where mass < 1

    Source: Cuturi 2013; partial: Benamou et al. 2015, section 5; Newton on the dual: Brauer et al. 2017.
    Use when: the plan itself is wanted; losses over it are `plan_cross_entropy` and `plan_divergence`.
    Beware: no gradient flows through the plan. float64 inside, so it is no faster in half precision.
    """
    if not tolerance > 0 or max_iterations < 1:
        raise InputError(f"tolerance = {tolerance}, max_iterations = {max_iterations}; need more than 0 and at least 1")
    return solve_plan(cost, epsilon, make_problem_from_cost(cost, epsilon, a, b, mass), tolerance, max_iterations)[0]


def sinkhorn_plan(
    cost: Tensor, epsilon: float, a: Tensor | None = None, b: Tensor | None = None, count: int = 10
) -> Tensor:
    """The plan after exactly `count` plain Sinkhorn iterations from u = 1/N: v = b / (Kᵀu), then u = a / (Kv).

    Source: Cuturi 2013. In the log domain, K = exp(-C / epsilon).
    Use when: an evaluation that stops after so many (10 is usual) is to be matched number by number.
    Beware: rows sum to a, columns do not yet sum to b. `transport_plan` is both exact and, mostly, faster.
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
    """The plan as handed out, its dual point (log units) and its matrix in float64."""
    point, iterations, system = solve_dual(DenseScores(-cost), epsilon, problem, tolerance, max_iterations)
    matrix = system.to_dense()
    row, column, offset = point.row * epsilon, point.column * epsilon, point.offset.item() * epsilon
    plan = matrix.to(result_dtype(cost.dtype))
    return Plan(plan, row, column, offset, iterations, point.error, point.error <= tolerance), point, matrix


def solve_dual(
    scores: Scores, epsilon: float, problem: TransportProblem, tolerance: float, max_iterations: int
) -> tuple[DualPoint, int, Laplacian]:
    """The dual point (log units) of a problem, the rounds it took, and its plan as products; warns where it stopped."""
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
            f"the transport plan stopped after {last_iterations} rounds with {point.error:.1e} of its mass in the wrong place "
            f"(tolerance {tolerance:g}); allow more iterations or a larger epsilon (it is {epsilon:g})",
            RuntimeWarning,
            stacklevel=4,
        )
    return point, iterations + last_iterations, dual.laplacian_at(point)


def make_problem_from_cost(
    cost: Tensor, epsilon: float, a: Tensor | None, b: Tensor | None, mass: float
) -> TransportProblem:
    """The problem these arguments state, or the error that names the one that is wrong."""
    if cost.ndim != 2 or cost.numel() == 0 or not cost.is_floating_point():
        raise InputError(f"cost is {tuple(cost.shape)} {cost.dtype}; need a non-empty (N, M) of floats")
    low, high = cost.detach().aminmax()  # both are NaN if any entry is
    if not (low > -torch.inf and high < torch.inf):
        raise InputError("cost holds NaN or infinity")
    return make_problem((cost.shape[0], cost.shape[1]), cost.device, epsilon, a, b, mass)


def make_problem(
    shape: tuple[int, int], device: torch.device, epsilon: float, a: Tensor | None, b: Tensor | None, mass: float
) -> TransportProblem:
    """The problem of a cost of this shape, or the error that names the argument that is wrong."""
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon = {epsilon}; need a finite number above 0")
    if not 0 < mass <= 1:
        raise InputError(f"mass = {mass}; need a share in (0, 1]")
    row_weights, column_weights = (
        _validate_weights("a", a, shape, 0, device),
        _validate_weights("b", b, shape, 1, device),
    )
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
        raise InputError(f"{name} has a least weight of {weights.min().item():g}; need finite weights above 0")
    return weights.detach().to(device, torch.float64)


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype results are handed back in: half precision cannot hold the small entries of a plan."""
    return torch.promote_types(dtype, torch.float32)
