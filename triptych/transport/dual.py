"""How a plan is solved: up the dual, in float64 and in log units (potential / epsilon), until it is converged.

Row potentials (and, in the partial problem, the offset) follow exactly from the column potentials, so a point is its
columns. Sweeps, which are Sinkhorn's iteration, bring it near. Balanced, Newton steps on the columns finish it: the
dual is smooth. Partial, its curvature jumps wherever a row or column becomes full, and Newton zigzags between such
sets (200 rounds and more); an interior-point method comes from inside and needs 10 to 25 rounds.
exp of the matrix is taken once: later points only rescale its rows and columns, which costs matrix-vector products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.transport.laplacian import Laplacian
from triptych.transport.matrix import Scores

MAX_LOG_DRIFT = 100.0  # log units a potential may move before exp is taken anew; float64 overflows at 709
CENTRING = 0.1  # each interior-point round aims at this share of the present complementarity
CG_TOLERANCE = 1e-3  # what conjugate gradients may leave of an interior-point round's residual
MAX_LOG_STEP = 2.0  # log units an interior-point round may move: exp is not linear beyond


@dataclass(frozen=True)
class TransportProblem:
    """What a plan must meet. `bounded`: sums are at most the weights (partial), else equal to them (balanced)."""

    a: Tensor  # (N,)
    b: Tensor  # (M,)
    mass: float
    is_partial: bool


@dataclass(frozen=True)
class DualPoint:
    """One point of the dual, with its rows exact: log plan_ij = row_i + column_j + offset + logits_ij."""

    row: Tensor  # (N,), at most 0 where bounded
    column: Tensor  # (M,), at most 0 where bounded
    offset: Tensor  # (), 0 where balanced
    column_sums: Tensor  # (M,) column sums of the plan
    value: Tensor  # () the dual
    error: float  # mass a sweep would still move between columns (L1), as a share of all that moves


class DualProblem:
    """The dual of one problem, which reads its matrix through products alone."""

    def __init__(self, scores: Scores, epsilon: float, problem: TransportProblem, column: Tensor) -> None:
        self.scores, self.epsilon, self.problem = scores, epsilon, problem
        self.log_a, self.log_b = problem.a.log(), problem.b.log()
        self.prefer_cholesky = False
        self.absorb(column)

    def absorb(self, column: Tensor) -> None:
        """Take exp of the matrix at these column potentials: the one step that costs an exp an entry."""
        self.matrix, self.origin_row = self.scores.exponentiate(self.epsilon, column)  # (N, M), at most 1; (N,)
        self.origin_column = column

    def absorb_if_drifted(self, column: Tensor) -> None:
        """Absorb anew where the potentials have gone too far for their exp."""
        if (column - self.origin_column).abs().max() > MAX_LOG_DRIFT:
            self.absorb(column)

    def row_log_sums(self, column: Tensor) -> Tensor:
        """log sum_j exp(logits_ij + column_j)."""
        return self.matrix.matvec((column - self.origin_column).exp()).log() - self.origin_row  # (N,)

    def column_log_sums(self, row: Tensor) -> Tensor:
        """log sum_i exp(logits_ij + row_i)."""
        column_sums = self.matrix.rmatvec((row - self.origin_row).exp())
        return column_sums.clamp_min(1e-290).log() - self.origin_column  # (M,)

    def evaluate(self, column: Tensor) -> DualPoint:
        """The point of these columns. Bounded, they are shifted so that the largest is 0: no entry changes."""
        problem = self.problem
        column = column - column.max() if problem.is_partial else column
        self.absorb_if_drifted(column)
        row_log_sums = self.row_log_sums(column)
        row, offset = (
            capped_row_potentials(row_log_sums, problem)
            if problem.is_partial
            else (self.log_a - row_log_sums, row_log_sums.new_zeros(()))
        )
        column_sums = (self.column_log_sums(row + offset) + column).exp()
        target_sums = torch.minimum(problem.b, column_sums * (-column).exp()) if problem.is_partial else problem.b
        value = problem.a @ row + problem.b @ column + problem.mass * offset
        return DualPoint(
            row, column, offset, column_sums, value, ((column_sums - target_sums).abs().sum() / problem.mass).item()
        )

    def sinkhorn_step(self, point: DualPoint) -> DualPoint:
        """One Sinkhorn iteration: the best columns for the rows as they are, then the best rows."""
        column = point.column + self.log_b - point.column_sums.clamp_min(1e-290).log()
        return self.evaluate(column.clamp_max(0) if self.problem.is_partial else column)

    def scaling_vectors(self, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """What the rows and columns of the matrix are multiplied with to give the plan of these potentials."""
        return (row - self.origin_row).exp(), (column - self.origin_column).exp()

    def laplacian_at(self, point: DualPoint) -> Laplacian:
        """The plan of a point, as the products it can be read through."""
        return self.build_laplacian(point.row + point.offset, point.column)

    def build_laplacian(self, row: Tensor, column: Tensor) -> Laplacian:
        self.absorb_if_drifted(column)
        return Laplacian(self.matrix, *self.scaling_vectors(row, column), self.prefer_cholesky)


def maximise_dual(dual: DualProblem, column: Tensor, tolerance: float, max_iterations: int) -> tuple[DualPoint, int]:
    """The point where the error is at most the goal, or as near as `limit` rounds came; and the rounds."""
    point = dual.evaluate(column)
    for _ in range(10):
        if point.error <= tolerance:
            return point, 0
        point = dual.sinkhorn_step(point)
    return (_interior_point if dual.problem.is_partial else _newton)(dual, point, tolerance, max_iterations)


def _newton(dual: DualProblem, point: DualPoint, tolerance: float, max_iterations: int) -> tuple[DualPoint, int]:
    """Newton on the columns, each step halved until the dual rises enough; two sweeps between steps."""
    for iteration in range(max_iterations):
        if point.error <= tolerance:
            return point, iteration
        gradient = dual.problem.b - point.column_sums
        system = dual.build_laplacian(point.row, point.column)
        step = system.solve(gradient[None], min(0.1, max(point.error, tolerance / point.error / 10)))[0]
        dual.prefer_cholesky = system.prefer_cholesky
        step_size = min(1.0, MAX_LOG_DRIFT / 2 / max(step.abs().max().item(), 1e-300))
        while step_size > 1e-6:
            trial = dual.evaluate(point.column + step_size * step)
            # the last term is rounding: near the top, the rise is less than float64 can hold
            if trial.value >= point.value + 1e-4 * step_size * (gradient @ step) - 1e-14 * point.value.abs().clamp_min(
                1
            ):
                point = trial
                break
            step_size /= 2
        point = dual.sinkhorn_step(dual.sinkhorn_step(point))
    return point, max_iterations


def _interior_point(
    dual: DualProblem, point: DualPoint, tolerance: float, max_iterations: int
) -> tuple[DualPoint, int]:
    """A primal–dual interior-point method: potentials stay below 0 and sums below the weights, by slacks s and t.

    P1 + s = a, Pᵀ1 + t = b, sum(P) = mass, -row · s = -column · t = mu, by Newton, with mu going to 0.
    """
    a, b = dual.problem.a, dual.problem.b
    f, g, offset = point.row.clamp_max(-0.1), point.column.clamp_max(-0.1), point.offset
    system = dual.build_laplacian(f + offset, g)
    s, t = (a - system.row_sums).maximum(0.1 * a), (b - system.column_sums).maximum(0.1 * b)
    best = point
    for iteration in range(max_iterations):
        if best.error <= tolerance:
            return best, iteration
        mu = CENTRING * -(f @ s + g @ t) / (len(f) + len(g))
        system.set_slacks(-s / f, -t / g)
        row_residual, column_residual = a - system.row_sums + mu / f, b - system.column_sums + mu / g
        df, dg, dz = system.solve_bordered(
            row_residual, column_residual, dual.problem.mass - system.column_sums.sum(), CG_TOLERANCE
        )
        ds, dt = -mu / f - s - s / f * df, -mu / g - t - t / g * dg
        largest_step = torch.stack([df.abs().max(), dg.abs().max(), dz.abs()]).max().item()
        step_size = min(
            _largest_feasible_step(-f, -df), _largest_feasible_step(-g, -dg), MAX_LOG_STEP / max(largest_step, 1e-300)
        )
        f, g, offset = f + step_size * df, g + step_size * dg, offset + step_size * dz
        step_size = min(_largest_feasible_step(s, ds), _largest_feasible_step(t, dt))
        s, t = s + step_size * ds, t + step_size * dt
        dual.prefer_cholesky = system.prefer_cholesky
        if (
            -(f @ s + g @ t) < 100 * tolerance * dual.problem.mass or iteration == max_iterations - 1
        ):  # else it cannot be there yet
            point = dual.sinkhorn_step(dual.evaluate(g))  # a sweep sets columns that are not full to exactly 0
            best = point if point.error < best.error else best
        system = dual.build_laplacian(f + offset, g)
    return best, max_iterations


def _largest_feasible_step(values: Tensor, change: Tensor) -> float:
    """The share of a change, at most 1, that leaves all values positive."""
    return min(1.0, 0.99 / max((-change / values).max().item(), 1e-300))


def capped_row_potentials(row_log_sums: Tensor, problem: TransportProblem) -> tuple[Tensor, Tensor]:
    """Row potentials and offset for rows that would sum to exp(reached): none above a, all together the mass.

    All rows rise by one offset, those that become full are capped: sorted by how full they are, the first k are.
    """
    log_a = problem.a.log()
    excess = row_log_sums - log_a
    order = excess.argsort(descending=True)
    remaining_mass = problem.mass - (
        problem.a[order].cumsum(0) - problem.a[order]
    )  # for row k and those after it, if all before it are full
    level = remaining_mass.clamp_min(1e-300).log() - row_log_sums[order].flip(0).logcumsumexp(0).flip(0)
    fits = (level + excess[order] <= 0) & (remaining_mass > 0)
    fits[(remaining_mass > 0).sum() - 1] = True  # so it is, but for rounding
    offset = level[fits.int().argmax()]
    return (-excess - offset).clamp_max(0), offset
