"""The linear system behind every Newton step and every implicit gradient of a transport plan."""

import torch
from torch import Tensor

from triptych.transport.matrix import Matrix

FACTORED = 2048  # most columns for which a Cholesky factor is worth its N³; beyond, conjugate gradients alone
FLAT = 1e-14  # couplings below this share of a column's mass are rounding
SMALL = 96  # columns up to which a factor is always the quicker
HELD = 1e30  # a slack that holds a potential where it is


class Laplacian:
    """The system [[diag(r + slack), P], [Pᵀ, diag(c + slack)]] (x, y) = (top, right); r and c are the sums of P.

    With the rows eliminated, S y = right - Pᵀ R top, R = 1 / (r + slack), S = diag(c + slack) - Pᵀ R P: a weighted
    graph's Laplacian plus what leaks through the slacks. So its diagonal is a sum of positive terms, and stays right
    where the plan is so nearly a permutation that c - Pᵀ R P cancels to nothing.
    """

    def __init__(self, matrix: Matrix, left: Tensor, right: Tensor, stalled: bool = False) -> None:
        self.matrix = matrix  # (N, M): P = left · matrix · right
        self.left, self.right = left, right  # (N,), (M,)
        self.stalled = stalled or len(right) <= SMALL  # conjugate gradients would take longer than a factor
        self.row_sums, self.sums = self.times(torch.ones_like(right)), self.transposed(torch.ones_like(left))
        self.hold(torch.zeros_like(left), torch.zeros_like(right))

    def hold(self, row_slack: Tensor, column_slack: Tensor) -> None:
        """Set the slacks: 0 where a sum is fixed, HELD where the potential is, between the two on the way there."""
        self.row_slack, self.column_slack = row_slack, column_slack
        self.shares = 1 / (self.row_sums + row_slack).clamp_min(1e-300)  # R

    def times(self, x: Tensor) -> Tensor:
        return self.left * self.matrix.times(self.right * x)  # P x

    def transposed(self, y: Tensor) -> Tensor:
        return self.right * self.matrix.transposed(self.left * y)  # Pᵀ y

    def plan(self) -> Tensor:
        """P itself, (N, M)."""
        return (self.matrix.entries() * self.left[:, None]).mul_(self.right)

    def bordered(self, top: Tensor, right: Tensor, total: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
        """x, y and a scalar z, with z · (r, c) added to the left side and r·x + c·y + sum(P) z = total."""
        tops, rights = torch.stack([top, self.row_sums]), torch.stack([right, self.sums])
        y = self.solve(rights - self.transposed(self.shares * tops), tolerance)  # (2, M)
        x = self.shares * (tops - self.times(y))  # (2, N)
        # sum(P) - r·x[1] - c·y[1], as the sum of squares that it is: it may be far below the rounding of sum(P)
        pivot = self.matrix.spread(1 - x[1], -y[1], self.left, self.right)
        pivot = pivot + self.row_slack @ x[1].square() + self.column_slack @ y[1].square()
        z = (total - self.row_sums @ x[0] - self.sums @ y[0]) / pivot.clamp_min(1e-300)
        return x[0] - z * x[1], y[0] - z * y[1], z

    def solve(self, right: Tensor, tolerance: float) -> Tensor:
        """S y = right for (K, M): conjugate gradients, then a factor where they stall and it can be afforded."""
        if len(self.right) > FACTORED or not self.matrix.whole:
            return self.conjugate(right, tolerance, 1000)[0]
        y = torch.zeros_like(right)
        if not self.stalled:
            y, met = self.conjugate(right, tolerance, 100)
            self.stalled = not met
        return self.factored(right, y) if self.stalled else y

    def conjugate(self, right: Tensor, tolerance: float, limit: int) -> tuple[Tensor, bool]:
        """Conjugate gradients, preconditioned by the diagonal: two matrix-vector products an iteration."""
        diagonal = self.sums - self.right.square() * self.matrix.squared(self.left.square() * self.shares)
        inverse = 1 / (diagonal.maximum(FLAT * self.sums).clamp_min(1e-300) + self.column_slack)
        degree = self.sums + self.column_slack
        y, residual = torch.zeros_like(right), right
        goal = tolerance * right.abs().sum(-1, keepdim=True)
        direction = inverse * residual
        size = (residual * direction).sum(-1, keepdim=True)
        for _ in range(limit):
            image = degree * direction - self.transposed(self.shares * self.times(direction))
            step = size / (direction * image).sum(-1, keepdim=True).clamp_min(1e-300)
            y = y + step * direction
            residual = residual - step * image
            if (residual.abs().sum(-1, keepdim=True) <= goal).all():
                return y, True
            before, size = size.clamp_min(1e-300), (residual * inverse * residual).sum(-1, keepdim=True)
            direction = inverse * residual + (size / before) * direction
        return y, False

    def factored(self, right: Tensor, otherwise: Tensor) -> Tensor:
        """Cholesky, for plans so nearly a permutation that conjugate gradients crawl."""
        p = (self.matrix.entries() * (self.left * self.shares.sqrt())[:, None]).mul_(self.right)
        couplings = (p.T @ p).fill_diagonal_(0)
        leak = self.column_slack + self.transposed(self.row_slack * self.shares)
        degree = couplings.sum(1) + leak + FLAT * self.sums
        if not leak.any():  # a constant is in the null space: hold one column
            degree[0] += self.sums[0]
        factor, failed = torch.linalg.cholesky_ex(couplings.neg_().diagonal_scatter(degree))
        return otherwise if failed else torch.cholesky_solve(right.T, factor).T
