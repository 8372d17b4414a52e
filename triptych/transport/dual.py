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

DRIFT = 100.0  # log units a potential may move before exp is taken anew; float64 overflows at 709
CENTRE = 0.1  # each interior-point round aims at this share of the present complementarity
INEXACT = 1e-3  # what conjugate gradients may leave of an interior-point round's residual
STRIDE = 2.0  # log units an interior-point round may move: exp is not linear beyond


@dataclass(frozen=True)
class Problem:
    """What a plan must meet. `bounded`: sums are at most the weights (partial), else equal to them (balanced)."""

    a: Tensor  # (N,)
    b: Tensor  # (M,)
    mass: float
    bounded: bool


@dataclass(frozen=True)
class Point:
    """One point of the dual, with its rows exact: log plan_ij = row_i + column_j + offset + logits_ij."""

    row: Tensor  # (N,), at most 0 where bounded
    column: Tensor  # (M,), at most 0 where bounded
    offset: Tensor  # (), 0 where balanced
    sums: Tensor  # (M,) column sums of the plan
    value: Tensor  # () the dual
    error: float  # mass a sweep would still move between columns (L1), as a share of all that moves


class Dual:
    """The dual of one problem, which reads its matrix through products alone."""

    def __init__(self, scores: Scores, epsilon: float, problem: Problem, column: Tensor) -> None:
        self.scores, self.epsilon, self.problem = scores, epsilon, problem
        self.log_a, self.log_b = problem.a.log(), problem.b.log()
        self.stalled = False
        self.absorb(column)

    def absorb(self, column: Tensor) -> None:
        """Take exp of the matrix at these column potentials: the one step that costs an exp an entry."""
        self.matrix, self.origin_row = self.scores.exponential(self.epsilon, column)  # (N, M), at most 1; (N,)
        self.origin_column = column

    def follow(self, column: Tensor) -> None:
        """Absorb anew where the potentials have gone too far for their exp."""
        if (column - self.origin_column).abs().max() > DRIFT:
            self.absorb(column)

    def rows(self, column: Tensor) -> Tensor:
        """log sum_j exp(logits_ij + column_j)."""
        return self.matrix.times((column - self.origin_column).exp()).log() - self.origin_row  # (N,)

    def columns(self, row: Tensor) -> Tensor:
        """log sum_i exp(logits_ij + row_i)."""
        sums = self.matrix.transposed((row - self.origin_row).exp())
        return sums.clamp_min(1e-290).log() - self.origin_column  # (M,)

    def at(self, column: Tensor) -> Point:
        """The point of these columns. Bounded, they are shifted so that the largest is 0: no entry changes."""
        p = self.problem
        column = column - column.max() if p.bounded else column
        self.follow(column)
        reached = self.rows(column)
        row, offset = filled(reached, p) if p.bounded else (self.log_a - reached, reached.new_zeros(()))
        sums = (self.columns(row + offset) + column).exp()
        settled = torch.minimum(p.b, sums * (-column).exp()) if p.bounded else p.b
        value = p.a @ row + p.b @ column + p.mass * offset
        return Point(row, column, offset, sums, value, ((sums - settled).abs().sum() / p.mass).item())

    def swept(self, point: Point) -> Point:
        """One Sinkhorn iteration: the best columns for the rows as they are, then the best rows."""
        column = point.column + self.log_b - point.sums.clamp_min(1e-290).log()
        return self.at(column.clamp_max(0) if self.problem.bounded else column)

    def scales(self, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """What the rows and columns of the matrix are multiplied with to give the plan of these potentials."""
        return (row - self.origin_row).exp(), (column - self.origin_column).exp()

    def plan(self, point: Point) -> Laplacian:
        """The plan of a point, as the products it can be read through."""
        return self.system(point.row + point.offset, point.column)

    def system(self, row: Tensor, column: Tensor) -> Laplacian:
        self.follow(column)
        return Laplacian(self.matrix, *self.scales(row, column), self.stalled)


def climbed(dual: Dual, column: Tensor, goal: float, limit: int) -> tuple[Point, int]:
    """The point where the error is at most the goal, or as near as `limit` rounds came; and the rounds."""
    point = dual.at(column)
    for _ in range(10):
        if point.error <= goal:
            return point, 0
        point = dual.swept(point)
    return (_from_inside if dual.problem.bounded else _by_newton)(dual, point, goal, limit)


def _by_newton(dual: Dual, point: Point, goal: float, limit: int) -> tuple[Point, int]:
    """Newton on the columns, each step halved until the dual rises enough; two sweeps between steps."""
    for used in range(limit):
        if point.error <= goal:
            return point, used
        gradient = dual.problem.b - point.sums
        system = dual.system(point.row, point.column)
        step = system.solve(gradient[None], min(0.1, max(point.error, goal / point.error / 10)))[0]
        dual.stalled = system.stalled
        share = min(1.0, DRIFT / 2 / max(step.abs().max().item(), 1e-300))
        while share > 1e-6:
            trial = dual.at(point.column + share * step)
            # the last term is rounding: near the top, the rise is less than float64 can hold
            if trial.value >= point.value + 1e-4 * share * (gradient @ step) - 1e-14 * point.value.abs().clamp_min(1):
                point = trial
                break
            share /= 2
        point = dual.swept(dual.swept(point))
    return point, limit


def _from_inside(dual: Dual, point: Point, goal: float, limit: int) -> tuple[Point, int]:
    """A primal–dual interior-point method: potentials stay below 0 and sums below the weights, by slacks s and t.

    P1 + s = a, Pᵀ1 + t = b, sum(P) = mass, -row · s = -column · t = mu, by Newton, with mu going to 0.
    """
    a, b = dual.problem.a, dual.problem.b
    f, g, offset = point.row.clamp_max(-0.1), point.column.clamp_max(-0.1), point.offset
    system = dual.system(f + offset, g)
    s, t = (a - system.row_sums).maximum(0.1 * a), (b - system.sums).maximum(0.1 * b)
    best = point
    for used in range(limit):
        if best.error <= goal:
            return best, used
        mu = CENTRE * -(f @ s + g @ t) / (len(f) + len(g))
        system.hold(-s / f, -t / g)
        top, right = a - system.row_sums + mu / f, b - system.sums + mu / g
        df, dg, dz = system.bordered(top, right, dual.problem.mass - system.sums.sum(), INEXACT)
        ds, dt = -mu / f - s - s / f * df, -mu / g - t - t / g * dg
        longest = torch.stack([df.abs().max(), dg.abs().max(), dz.abs()]).max().item()
        share = min(_room(-f, -df), _room(-g, -dg), STRIDE / max(longest, 1e-300))
        f, g, offset = f + share * df, g + share * dg, offset + share * dz
        share = min(_room(s, ds), _room(t, dt))
        s, t = s + share * ds, t + share * dt
        dual.stalled = system.stalled
        if -(f @ s + g @ t) < 100 * goal * dual.problem.mass or used == limit - 1:  # else it cannot be there yet
            point = dual.swept(dual.at(g))  # a sweep sets columns that are not full to exactly 0
            best = point if point.error < best.error else best
        system = dual.system(f + offset, g)
    return best, limit


def _room(values: Tensor, change: Tensor) -> float:
    """The share of a change, at most 1, that leaves all values positive."""
    return min(1.0, 0.99 / max((-change / values).max().item(), 1e-300))


def filled(reached: Tensor, p: Problem) -> tuple[Tensor, Tensor]:
    """Row potentials and offset for rows that would sum to exp(reached): none above a, all together the mass.

    All rows rise by one offset, those that become full are capped: sorted by how full they are, the first k are.
    """
    log_a = p.a.log()
    excess = reached - log_a
    order = excess.argsort(descending=True)
    room = p.mass - (p.a[order].cumsum(0) - p.a[order])  # for row k and those after it, if all before it are full
    level = room.clamp_min(1e-300).log() - reached[order].flip(0).logcumsumexp(0).flip(0)
    fits = (level + excess[order] <= 0) & (room > 0)
    fits[(room > 0).sum() - 1] = True  # so it is, but for rounding
    offset = level[fits.int().argmax()]
    return (-excess - offset).clamp_max(0), offset
