"""Solver of the dual transport problem, in float64. All potentials are divided by epsilon (log units).

The optimal row potentials (and, in the partial problem, the offset) are closed-form functions of the column potentials,
so the solver iterates over the column potentials only. The solver starts with up to ten Sinkhorn iterations. The
balanced dual is smooth, so the solver uses Newton's method. The curvature of the partial dual jumps where a row or
column becomes saturated, and Newton's method needs 200 or more iterations. For the partial dual, the solver uses a
primal-dual interior-point method, which needs 10 to 25 iterations. The solver exponentiates the matrix once. Later
iterations only rescale rows and columns, by matrix-vector products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.transport.laplacian import Laplacian
from triptych.transport.matrix import Scores

MAX_LOG_DRIFT = 100.0  # if a potential changes by more, the matrix is exponentiated again
CENTRING = 0.1  # target complementarity of an interior-point iteration, as a fraction of the current complementarity
CG_TOLERANCE = 1e-3  # the relative residual at which conjugate gradients stop
MAX_LOG_STEP = 2.0  # largest interior-point step (log units), because exp is far from linear over larger steps


@dataclass(frozen=True)
class TransportProblem:
    """The constraints of a plan. Balanced: row sums = a, column sums = b. Partial: row sums <= a, column sums <= b."""

    a: Tensor  # (N,) row weights
    b: Tensor  # (M,) column weights
    mass: float  # the sum of all entries of the plan
    is_partial: bool


@dataclass(frozen=True)
class DualPoint:
    """Potentials whose rows are optimal for the columns: log plan_ij = row_i + column_j + offset + logits_ij."""

    row: Tensor  # (N,), at most 0 in the partial problem
    column: Tensor  # (M,), at most 0 in the partial problem
    offset: Tensor  # scalar; 0 in the balanced problem
    column_sums: Tensor  # (M,) column sums of the plan
    value: Tensor  # scalar: the dual objective
    error: float  # L1 change of the column sums by one more Sinkhorn iteration, as a fraction of the mass


class DualProblem:
    """The dual of a transport problem; the matrix is used only in matrix-vector products."""

    def __init__(self, scores: Scores, epsilon: float, problem: TransportProblem, column: Tensor) -> None:
        self.scores, self.epsilon, self.problem = scores, epsilon, problem
        self.log_a, self.log_b = problem.a.log(), problem.b.log()
        self.prefer_cholesky = False
        self.update_matrix(column)

    def update_matrix(self, column: Tensor) -> None:
        """Exponentiate the logits at these column potentials (each row scaled to at most 1), for later products."""
        self.matrix, self.origin_row = self.scores.exponentiate(self.epsilon, column)  # (N, M), at most 1; (N,)
        self.origin_column = column

    def update_matrix_if_drifted(self, column: Tensor) -> None:
        """Call `update_matrix` if a column potential has changed by more than MAX_LOG_DRIFT, to avoid overflow."""
        if (column - self.origin_column).abs().max() > MAX_LOG_DRIFT:
            self.update_matrix(column)

    def row_log_sums(self, column: Tensor) -> Tensor:
        """Return log sum_j exp(logits_ij + column_j)."""
        return self.matrix.matvec((column - self.origin_column).exp()).log() - self.origin_row  # (N,)

    def column_log_sums(self, row: Tensor) -> Tensor:
        """Return log sum_i exp(logits_ij + row_i)."""
        column_sums = self.matrix.rmatvec((row - self.origin_row).exp())
        return column_sums.clamp_min(1e-290).log() - self.origin_column  # (M,)

    def evaluate(self, column: Tensor) -> DualPoint:
        """Return the dual point of column potentials, which a partial problem first shifts to a maximum of 0."""
        problem = self.problem
        column = column - column.max() if problem.is_partial else column
        self.update_matrix_if_drifted(column)
        row_log_sums = self.row_log_sums(column)
        if problem.is_partial:
            row, offset = capped_row_potentials(row_log_sums, problem)
        else:
            row, offset = self.log_a - row_log_sums, row_log_sums.new_zeros(())
        column_sums = (self.column_log_sums(row + offset) + column).exp()
        target_sums = torch.minimum(problem.b, column_sums * (-column).exp()) if problem.is_partial else problem.b
        value = problem.a @ row + problem.b @ column + problem.mass * offset
        error = ((column_sums - target_sums).abs().sum() / problem.mass).item()
        return DualPoint(row, column, offset, column_sums, value, error)

    def sinkhorn_step(self, point: DualPoint) -> DualPoint:
        """Do one Sinkhorn iteration: compute the optimal columns for the current rows, then the optimal rows."""
        column = point.column + self.log_b - point.column_sums.clamp_min(1e-290).log()
        return self.evaluate(column.clamp_max(0) if self.problem.is_partial else column)

    def scaling_vectors(self, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """Return row factors (N,) and column factors (M,) that turn the matrix into the plan of these potentials."""
        return (row - self.origin_row).exp(), (column - self.origin_column).exp()

    def laplacian_at(self, point: DualPoint) -> Laplacian:
        """Return the Laplacian system of the plan of a dual point."""
        return self.build_laplacian(point.row + point.offset, point.column)

    def build_laplacian(self, row: Tensor, column: Tensor) -> Laplacian:
        """Return the Laplacian system of the plan of these potentials."""
        self.update_matrix_if_drifted(column)
        return Laplacian(self.matrix, *self.scaling_vectors(row, column), self.prefer_cholesky)


def maximise_dual(dual: DualProblem, column: Tensor, tolerance: float, max_iter: int) -> tuple[DualPoint, int]:
    """Return the first point with error <= `tolerance` (else the last point), and the number of iterations."""
    point = dual.evaluate(column)
    for _ in range(10):
        if point.error <= tolerance:
            return point, 0
        point = dual.sinkhorn_step(point)
    return (_interior_point if dual.problem.is_partial else _newton)(dual, point, tolerance, max_iter)


def _newton(dual: DualProblem, point: DualPoint, tolerance: float, max_iter: int) -> tuple[DualPoint, int]:
    """Newton's method on the columns with backtracking; two Sinkhorn iterations follow each step."""
    for iteration in range(max_iter):
        if point.error <= tolerance:
            return point, iteration
        gradient = dual.problem.b - point.column_sums
        system = dual.build_laplacian(point.row, point.column)
        step = system.solve(gradient[None], min(0.1, max(point.error, tolerance / point.error / 10)))[0]
        dual.prefer_cholesky = system.prefer_cholesky
        step_size = min(1.0, MAX_LOG_DRIFT / 2 / max(step.abs().max().item(), 1e-300))
        while step_size > 1e-6:
            trial = dual.evaluate(point.column + step_size * step)
            # `rounding` is subtracted because near the maximum, the increase is below the precision of float64.
            rounding = 1e-14 * point.value.abs().clamp_min(1)
            if trial.value >= point.value + 1e-4 * step_size * (gradient @ step) - rounding:
                point = trial
                break
            step_size /= 2
        point = dual.sinkhorn_step(dual.sinkhorn_step(point))
    return point, max_iter


def _interior_point(dual: DualProblem, point: DualPoint, tolerance: float, max_iter: int) -> tuple[DualPoint, int]:
    """Primal-dual interior-point method; slacks s = a - row sums and t = b - column sums stay positive.

    Newton's method on P1 + s = a, Pᵀ1 + t = b, sum(P) = mass, -row · s = -column · t = mu, with mu going to 0.
    """
    a, b = dual.problem.a, dual.problem.b
    f, g, offset = point.row.clamp_max(-0.1), point.column.clamp_max(-0.1), point.offset
    system = dual.build_laplacian(f + offset, g)
    s, t = (a - system.row_sums).maximum(0.1 * a), (b - system.column_sums).maximum(0.1 * b)
    best = point
    for iteration in range(max_iter):
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
        # While the complementarity is large, the error exceeds the tolerance and is not computed.
        if -(f @ s + g @ t) < 100 * tolerance * dual.problem.mass or iteration == max_iter - 1:
            point = dual.sinkhorn_step(dual.evaluate(g))  # sets the potentials of unsaturated columns to exactly 0
            best = point if point.error < best.error else best
        system = dual.build_laplacian(f + offset, g)
    return best, max_iter


def _largest_feasible_step(values: Tensor, change: Tensor) -> float:
    """Return the largest step size, at most 1, for which values + step · change stays positive."""
    return min(1.0, 0.99 / max((-change / values).max().item(), 1e-300))


def capped_row_potentials(row_log_sums: Tensor, problem: TransportProblem) -> tuple[Tensor, Tensor]:
    """Return row potentials and the offset that change row sums exp(row_log_sums) to at most `a`, with total `mass`.

    All row sums are multiplied by exp(offset), and row sums above `a` are reduced to `a`. If rows are sorted by
    descending row sum / a, the reduced rows are the first k rows.
    """
    log_a = problem.a.log()
    excess = row_log_sums - log_a
    order = excess.argsort(descending=True)
    # The mass that remains for row k and later rows if all rows before row k are saturated.
    remaining_mass = problem.mass - (problem.a[order].cumsum(0) - problem.a[order])
    level = remaining_mass.clamp_min(1e-300).log() - row_log_sums[order].flip(0).logcumsumexp(0).flip(0)
    fits = (level + excess[order] <= 0) & (remaining_mass > 0)
    fits[(remaining_mass > 0).sum() - 1] = True  # this entry always fits, except for rounding errors
    offset = level[fits.int().argmax()]
    return (-excess - offset).clamp_max(0), offset
