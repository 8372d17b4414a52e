"""The matrix of a plan, used only in products: stored in memory, or computed tile by tile for every product.

The solver works with both kinds of matrix. A product with a stored matrix reads N · M numbers. A product with a tiled
matrix also computes query @ keys.T. A tiled matrix is therefore slower by a factor of about the embedding dimension,
but needs memory for only one tile.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from triptych.streaming import Tiles


class Matrix(Protocol):
    """exp(scores / epsilon + row + column), float64, (N, M).

    K vectors are passed as (K, M), because products with (M, K) are up to 20 times slower on a CPU.
    """

    is_dense: bool  # True: all entries are in memory

    def matvec(self, x: Tensor) -> Tensor: ...  # x @ matrix.T: (M,) or (K, M) -> (N,) or (K, N)

    def rmatvec(self, y: Tensor) -> Tensor: ...  # y @ matrix: (N,) or (K, N) -> (M,) or (K, M)

    def squared_rmatvec(self, y: Tensor) -> Tensor: ...  # y @ matrix²: (N,) -> (M,)

    # Σ_ij row_scale_i column_scale_j matrix_ij (x_i + y_j)²
    def weighted_square_sum(self, x: Tensor, y: Tensor, row_scale: Tensor, column_scale: Tensor) -> Tensor: ...

    def to_dense(self) -> Tensor: ...  # (N, M)


class Scores(Protocol):
    """The scores (N, M), which are the negated cost: stored in memory or computed tile by tile."""

    def value_range(self) -> float: ...  # the maximum score minus the minimum score

    # The matrix for these column potentials (M,) and the row potentials (N,) that make the maximum of each row 1.
    def exponentiate(self, epsilon: float, column: Tensor) -> tuple[Matrix, Tensor]: ...


class DenseMatrix:
    """A matrix with all entries in memory."""

    is_dense = True

    def __init__(self, entries: Tensor) -> None:
        self._entries = entries
        self._squares: Tensor | None = None

    def matvec(self, x: Tensor) -> Tensor:
        return x @ self._entries.T

    def rmatvec(self, y: Tensor) -> Tensor:
        return y @ self._entries

    def squared_rmatvec(self, y: Tensor) -> Tensor:
        self._squares = self._entries.square() if self._squares is None else self._squares
        return y @ self._squares

    def weighted_square_sum(self, x: Tensor, y: Tensor, row_scale: Tensor, column_scale: Tensor) -> Tensor:
        return row_scale @ ((x[:, None] + y).square_().mul_(self._entries) @ column_scale)

    def to_dense(self) -> Tensor:
        return self._entries


class DenseScores:
    """Scores (N, M) in memory."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores.detach().double()

    def value_range(self) -> float:
        low, high = self.scores.aminmax()
        return (high - low).item()

    def exponentiate(self, epsilon: float, column: Tensor) -> tuple[DenseMatrix, Tensor]:
        scaled = self.scores / epsilon + column
        row_max = scaled.amax(dim=1)
        return DenseMatrix(scaled.sub_(row_max[:, None]).exp_()), -row_max


class TiledScores:
    """Scores query @ keys.T that are computed tile by tile."""

    def __init__(self, query: Tensor, keys: Tensor, block_size: int) -> None:
        upcast = (x.detach().to(torch.promote_types(x.dtype, torch.float32)) for x in (query, keys))
        self.query, self.keys = (x.contiguous() for x in upcast)  # (N, S), (M, S)
        self.block_size = block_size

    def iter_tiles(self) -> Tiles:
        """Yield the row slice, the column slice and the float64 scores of each tile."""
        for i in range(0, len(self.query), self.block_size):
            for j in range(0, len(self.keys), self.block_size):
                rows, columns = slice(i, i + self.block_size), slice(j, j + self.block_size)
                yield rows, columns, (self.query[rows] @ self.keys[columns].T).double()

    def value_range(self) -> float:
        extremes = [tile.aminmax() for _, _, tile in self.iter_tiles()]
        return (max(high for _, high in extremes) - min(low for low, _ in extremes)).item()

    def exponentiate(self, epsilon: float, column: Tensor) -> tuple[TiledMatrix, Tensor]:
        row_max = torch.full((len(self.query),), -torch.inf, dtype=torch.float64, device=self.query.device)
        for rows, columns, tile in self.iter_tiles():
            row_max[rows] = row_max[rows].maximum(tile.div_(epsilon).add_(column[columns]).amax(dim=1))
        return TiledMatrix(self, epsilon, -row_max, column), -row_max


class TiledMatrix:
    """A matrix whose entries are computed tile by tile in every product."""

    is_dense = False

    def __init__(self, scores: TiledScores, epsilon: float, row: Tensor, column: Tensor) -> None:
        self.scores, self.epsilon, self.row, self.column = scores, epsilon, row, column

    def iter_tiles(self) -> Tiles:
        """Yield the row slice, the column slice and the entries of each tile."""
        for rows, columns, tile in self.scores.iter_tiles():
            tile.div_(self.epsilon).add_(self.column[columns]).add_(self.row[rows][:, None]).exp_()
            yield rows, columns, tile

    def matvec(self, x: Tensor) -> Tensor:
        product = x.new_zeros(*x.shape[:-1], len(self.row))
        for rows, columns, tile in self.iter_tiles():
            product[..., rows] += x[..., columns] @ tile.T
        return product

    def rmatvec(self, y: Tensor) -> Tensor:
        product = y.new_zeros(*y.shape[:-1], len(self.column))
        for rows, columns, tile in self.iter_tiles():
            product[..., columns] += y[..., rows] @ tile
        return product

    def squared_rmatvec(self, y: Tensor) -> Tensor:
        product = y.new_zeros(len(self.column))
        for rows, columns, tile in self.iter_tiles():
            product[columns] += y[rows] @ tile.square_()
        return product

    def weighted_square_sum(self, x: Tensor, y: Tensor, row_scale: Tensor, column_scale: Tensor) -> Tensor:
        total = row_scale.new_zeros(())
        for rows, columns, tile in self.iter_tiles():
            total += row_scale[rows] @ (tile.mul_((x[rows][:, None] + y[columns]).square_()) @ column_scale[columns])
        return total

    def to_dense(self) -> Tensor:
        entries = self.row.new_empty(len(self.row), len(self.column))
        for rows, columns, tile in self.iter_tiles():
            entries[rows, columns] = tile
        return entries
