"""The linear system that gives Newton steps, interior-point steps and implicit gradients of a transport plan."""

import torch
from torch import Tensor

from triptych.transport.matrix import Matrix

MAX_CHOLESKY_COLUMNS = 2048  # larger systems use only conjugate gradients, because Cholesky takes O(N³)
COUPLING_FLOOR = 1e-14  # couplings below this fraction of a column's mass are rounding errors
ALWAYS_CHOLESKY_COLUMNS = 96  # up to this size, Cholesky is always faster than conjugate gradients
FIXED_SLACK = 1e30  # a slack so large that the potential does not change


class Laplacian:
    """The system [[diag(r + slack), P], [Pᵀ, diag(c + slack)]] (x, y) = (top, right); r and c are the sums of P.

    Eliminating x gives S y = right - Pᵀ R top, with R = 1 / (r + slack) and S = diag(c + slack) - Pᵀ R P. S is the
    Laplacian of a weighted graph plus the slacks. The diagonal of S is computed as a sum of positive terms, because
    c - Pᵀ R P would suffer from cancellation if the plan is close to a permutation.
    """

    def __init__(self, matrix: Matrix, row_scale: Tensor, column_scale: Tensor, prefer_cholesky: bool = False) -> None:
        self.matrix = matrix  # (N, M): P = diag(row_scale) · matrix · diag(column_scale)
        self.row_scale, self.column_scale = row_scale, column_scale  # (N,), (M,)
        # True after conjugate gradients have been slower than Cholesky.
        self.prefer_cholesky = prefer_cholesky or len(column_scale) <= ALWAYS_CHOLESKY_COLUMNS
        self.row_sums = self.matvec(torch.ones_like(column_scale))
        self.column_sums = self.rmatvec(torch.ones_like(row_scale))
        self.set_slacks(torch.zeros_like(row_scale), torch.zeros_like(column_scale))

    def set_slacks(self, row_slack: Tensor, column_slack: Tensor) -> None:
        """Set the slacks: 0 fixes the row or column sum, FIXED_SLACK fixes the potential."""
        self.row_slack, self.column_slack = row_slack, column_slack
        self.inverse_row_degrees = 1 / (self.row_sums + row_slack).clamp_min(1e-300)  # R

    def matvec(self, x: Tensor) -> Tensor:
        return self.row_scale * self.matrix.matvec(self.column_scale * x)  # P x

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.column_scale * self.matrix.rmatvec(self.row_scale * y)  # Pᵀ y

    def to_dense(self) -> Tensor:
        """Return P, (N, M)."""
        return (self.matrix.to_dense() * self.row_scale[:, None]).mul_(self.column_scale)

    def solve_bordered(
        self, row_rhs: Tensor, column_rhs: Tensor, total: Tensor, tolerance: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Solve for x, y and a scalar z, with z · (r, c) added to the left side and r·x + c·y + sum(P) z = total."""
        row_rhs_pair = torch.stack([row_rhs, self.row_sums])
        column_rhs_pair = torch.stack([column_rhs, self.column_sums])
        y = self.solve(column_rhs_pair - self.rmatvec(self.inverse_row_degrees * row_rhs_pair), tolerance)  # (2, M)
        x = self.inverse_row_degrees * (row_rhs_pair - self.matvec(y))  # (2, N)
        # sum(P) - r·x[1] - c·y[1], computed as a sum of squares because it may be below the rounding error of sum(P).
        pivot = self.matrix.weighted_square_sum(1 - x[1], -y[1], self.row_scale, self.column_scale)
        pivot = pivot + self.row_slack @ x[1].square() + self.column_slack @ y[1].square()
        z = (total - self.row_sums @ x[0] - self.column_sums @ y[0]) / pivot.clamp_min(1e-300)
        return x[0] - z * x[1], y[0] - z * y[1], z

    def solve(self, rhs: Tensor, tolerance: float) -> Tensor:
        """Solve S y = rhs (K, M) by conjugate gradients, or by Cholesky if S is small and convergence is slow."""
        if len(self.column_scale) > MAX_CHOLESKY_COLUMNS or not self.matrix.is_dense:
            return self.solve_conjugate_gradients(rhs, tolerance, 1000)[0]
        y = torch.zeros_like(rhs)
        if not self.prefer_cholesky:
            y, converged = self.solve_conjugate_gradients(rhs, tolerance, 100)
            self.prefer_cholesky = not converged
        return self.solve_cholesky(rhs, y) if self.prefer_cholesky else y

    def solve_conjugate_gradients(self, rhs: Tensor, tolerance: float, max_iter: int) -> tuple[Tensor, bool]:
        """Solve by conjugate gradients with a diagonal preconditioner; return the solution and whether it converged."""
        diagonal = self.column_sums - self.column_scale.square() * self.matrix.squared_rmatvec(
            self.row_scale.square() * self.inverse_row_degrees
        )
        preconditioner = 1 / (diagonal.maximum(COUPLING_FLOOR * self.column_sums).clamp_min(1e-300) + self.column_slack)
        degree = self.column_sums + self.column_slack
        y, residual = torch.zeros_like(rhs), rhs
        target_residual = tolerance * rhs.abs().sum(-1, keepdim=True)
        direction = preconditioner * residual
        residual_norm = (residual * direction).sum(-1, keepdim=True)
        for _ in range(max_iter):
            system_direction = degree * direction - self.rmatvec(self.inverse_row_degrees * self.matvec(direction))
            step = residual_norm / (direction * system_direction).sum(-1, keepdim=True).clamp_min(1e-300)
            y = y + step * direction
            residual = residual - step * system_direction
            if (residual.abs().sum(-1, keepdim=True) <= target_residual).all():
                return y, True
            previous_norm = residual_norm.clamp_min(1e-300)
            residual_norm = (residual * preconditioner * residual).sum(-1, keepdim=True)
            direction = preconditioner * residual + (residual_norm / previous_norm) * direction
        return y, False

    def solve_cholesky(self, rhs: Tensor, fallback: Tensor) -> Tensor:
        """Solve by Cholesky, which is faster than conjugate gradients if the plan is close to a permutation."""
        scale = self.row_scale * self.inverse_row_degrees.sqrt()
        scaled_plan = (self.matrix.to_dense() * scale[:, None]).mul_(self.column_scale)
        couplings = (scaled_plan.T @ scaled_plan).fill_diagonal_(0)
        slack_degree = self.column_slack + self.rmatvec(self.row_slack * self.inverse_row_degrees)
        degree = couplings.sum(1) + slack_degree + COUPLING_FLOOR * self.column_sums
        if not slack_degree.any():  # constant vectors are in the null space of S: fix one column
            degree[0] += self.column_sums[0]
        factor, failed = torch.linalg.cholesky_ex(couplings.neg_().diagonal_scatter(degree))
        return fallback if failed else torch.cholesky_solve(rhs.T, factor).T
