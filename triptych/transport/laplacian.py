"""The linear system behind every Newton step and every implicit gradient of a transport plan."""

import torch
from torch import Tensor

from triptych.transport.matrix import Matrix

MAX_CHOLESKY_COLUMNS = (
    2048  # most columns for which a Cholesky factor is worth its N³; beyond, conjugate gradients alone
)
COUPLING_FLOOR = 1e-14  # couplings below this share of a column's mass are rounding
ALWAYS_CHOLESKY_COLUMNS = 96  # columns up to which a factor is always the quicker
FIXED_SLACK = 1e30  # a slack that holds a potential where it is


class Laplacian:
    """The system [[diag(r + slack), P], [Pᵀ, diag(c + slack)]] (x, y) = (top, right); r and c are the sums of P.

    With the rows eliminated, S y = right - Pᵀ R top, R = 1 / (r + slack), S = diag(c + slack) - Pᵀ R P: a weighted
    graph's Laplacian plus what leaks through the slacks. So its diagonal is a sum of positive terms, and stays right
    where the plan is so nearly a permutation that c - Pᵀ R P cancels to nothing.
    """

    def __init__(self, matrix: Matrix, row_scale: Tensor, column_scale: Tensor, prefer_cholesky: bool = False) -> None:
        self.matrix = matrix  # (N, M): P = left · matrix · right
        self.row_scale, self.column_scale = row_scale, column_scale  # (N,), (M,)
        self.prefer_cholesky = (
            prefer_cholesky or len(column_scale) <= ALWAYS_CHOLESKY_COLUMNS
        )  # conjugate gradients would take longer than a factor
        self.row_sums, self.column_sums = (
            self.matvec(torch.ones_like(column_scale)),
            self.rmatvec(torch.ones_like(row_scale)),
        )
        self.set_slacks(torch.zeros_like(row_scale), torch.zeros_like(column_scale))

    def set_slacks(self, row_slack: Tensor, column_slack: Tensor) -> None:
        """Set the slacks: 0 where a sum is fixed, HELD where the potential is, between the two on the way there."""
        self.row_slack, self.column_slack = row_slack, column_slack
        self.inverse_row_degrees = 1 / (self.row_sums + row_slack).clamp_min(1e-300)  # R

    def matvec(self, x: Tensor) -> Tensor:
        return self.row_scale * self.matrix.matvec(self.column_scale * x)  # P x

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.column_scale * self.matrix.rmatvec(self.row_scale * y)  # Pᵀ y

    def to_dense(self) -> Tensor:
        """P itself, (N, M)."""
        return (self.matrix.to_dense() * self.row_scale[:, None]).mul_(self.column_scale)

    def solve_bordered(
        self, row_rhs: Tensor, column_rhs: Tensor, total: Tensor, tolerance: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x, y and a scalar z, with z · (r, c) added to the left side and r·x + c·y + sum(P) z = total."""
        row_rhs_pair, column_rhs_pair = (
            torch.stack([row_rhs, self.row_sums]),
            torch.stack([column_rhs, self.column_sums]),
        )
        y = self.solve(column_rhs_pair - self.rmatvec(self.inverse_row_degrees * row_rhs_pair), tolerance)  # (2, M)
        x = self.inverse_row_degrees * (row_rhs_pair - self.matvec(y))  # (2, N)
        # sum(P) - r·x[1] - c·y[1], as the sum of squares that it is: it may be far below the rounding of sum(P)
        pivot = self.matrix.weighted_square_sum(1 - x[1], -y[1], self.row_scale, self.column_scale)
        pivot = pivot + self.row_slack @ x[1].square() + self.column_slack @ y[1].square()
        z = (total - self.row_sums @ x[0] - self.column_sums @ y[0]) / pivot.clamp_min(1e-300)
        return x[0] - z * x[1], y[0] - z * y[1], z

    def solve(self, rhs: Tensor, tolerance: float) -> Tensor:
        """S y = right for (K, M): conjugate gradients, then a factor where they stall and it can be afforded."""
        if len(self.column_scale) > MAX_CHOLESKY_COLUMNS or not self.matrix.is_dense:
            return self.solve_conjugate_gradients(rhs, tolerance, 1000)[0]
        y = torch.zeros_like(rhs)
        if not self.prefer_cholesky:
            y, converged = self.solve_conjugate_gradients(rhs, tolerance, 100)
            self.prefer_cholesky = not converged
        return self.solve_cholesky(rhs, y) if self.prefer_cholesky else y

    def solve_conjugate_gradients(self, rhs: Tensor, tolerance: float, max_iterations: int) -> tuple[Tensor, bool]:
        """Conjugate gradients, preconditioned by the diagonal: two matrix-vector products an iteration."""
        diagonal = self.column_sums - self.column_scale.square() * self.matrix.squared_rmatvec(
            self.row_scale.square() * self.inverse_row_degrees
        )
        preconditioner = 1 / (diagonal.maximum(COUPLING_FLOOR * self.column_sums).clamp_min(1e-300) + self.column_slack)
        degree = self.column_sums + self.column_slack
        y, residual = torch.zeros_like(rhs), rhs
        target_residual = tolerance * rhs.abs().sum(-1, keepdim=True)
        direction = preconditioner * residual
        residual_norm = (residual * direction).sum(-1, keepdim=True)
        for _ in range(max_iterations):
            system_direction = degree * direction - self.rmatvec(self.inverse_row_degrees * self.matvec(direction))
            step = residual_norm / (direction * system_direction).sum(-1, keepdim=True).clamp_min(1e-300)
            y = y + step * direction
            residual = residual - step * system_direction
            if (residual.abs().sum(-1, keepdim=True) <= target_residual).all():
                return y, True
            previous_norm, residual_norm = (
                residual_norm.clamp_min(1e-300),
                (residual * preconditioner * residual).sum(-1, keepdim=True),
            )
            direction = preconditioner * residual + (residual_norm / previous_norm) * direction
        return y, False

    def solve_cholesky(self, rhs: Tensor, fallback: Tensor) -> Tensor:
        """Cholesky, for plans so nearly a permutation that conjugate gradients crawl."""
        scaled_plan = (self.matrix.to_dense() * (self.row_scale * self.inverse_row_degrees.sqrt())[:, None]).mul_(
            self.column_scale
        )
        couplings = (scaled_plan.T @ scaled_plan).fill_diagonal_(0)
        slack_degree = self.column_slack + self.rmatvec(self.row_slack * self.inverse_row_degrees)
        degree = couplings.sum(1) + slack_degree + COUPLING_FLOOR * self.column_sums
        if not slack_degree.any():  # a constant is in the null space: hold one column
            degree[0] += self.column_sums[0]
        factor, failed = torch.linalg.cholesky_ex(couplings.neg_().diagonal_scatter(degree))
        return fallback if failed else torch.cholesky_solve(rhs.T, factor).T
