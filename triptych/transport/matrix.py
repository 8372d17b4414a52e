"""The matrix behind a plan, read through products alone: held whole, or made anew tile by tile at every product.

Both forms answer the same questions, so the solver above does not know which it has. Whole, a product is one pass over
N · M numbers. Tiled, it is that and query @ keys.T besides: slower by about the width, in memory for one tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor


class Matrix(Protocol):
    """exp(scores / epsilon + row + column), float64, (N, M). Vectors are rows, (M,) or (K, M): a product with a tall
    (M, K) runs up to 20 times slower on a CPU."""

    whole: bool  # its entries are in memory

    def times(self, x: Tensor) -> Tensor: ...  # x @ matrix.T: (M,) or (K, M) -> (N,) or (K, N)

    def transposed(self, y: Tensor) -> Tensor: ...  # y @ matrix: (N,) or (K, N) -> (M,) or (K, M)

    def squared(self, y: Tensor) -> Tensor: ...  # y @ matrix²: (N,) -> (M,)

    def spread(self, x: Tensor, y: Tensor, left: Tensor, right: Tensor) -> Tensor: ...  # Σ_ij l_i r_j m_ij (x_i + y_j)²

    def entries(self) -> Tensor: ...  # (N, M)


class Scores(Protocol):
    """What is transported: higher is closer. N × M numbers, in memory or not."""

    def span(self) -> float: ...  # the highest less the lowest

    def exponential(self, epsilon: float, column: Tensor) -> tuple[Matrix, Tensor]: ...  # and row (N,): entries <= 1


class WholeMatrix:
    """All entries in memory."""

    whole = True

    def __init__(self, entries: Tensor) -> None:
        self._entries = entries
        self._squares: Tensor | None = None

    def times(self, x: Tensor) -> Tensor:
        return x @ self._entries.T

    def transposed(self, y: Tensor) -> Tensor:
        return y @ self._entries

    def squared(self, y: Tensor) -> Tensor:
        self._squares = self._entries.square() if self._squares is None else self._squares
        return y @ self._squares

    def spread(self, x: Tensor, y: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return left @ ((x[:, None] + y).square_().mul_(self._entries) @ right)

    def entries(self) -> Tensor:
        return self._entries


class WholeScores:
    """Scores (N, M) in memory."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores.detach().double()

    def span(self) -> float:
        low, high = self.scores.aminmax()
        return (high - low).item()

    def exponential(self, epsilon: float, column: Tensor) -> tuple[WholeMatrix, Tensor]:
        scaled = self.scores / epsilon + column
        peak = scaled.amax(dim=1)
        return WholeMatrix(scaled.sub_(peak[:, None]).exp_()), -peak


class TiledScores:
    """Scores query @ keys.T that never exist as a whole."""

    def __init__(self, query: Tensor, keys: Tensor, block: int) -> None:
        self.query, self.keys = (_working(side) for side in (query, keys))  # (N, S), (M, S)
        self.block = block

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """The scores of a block of rows and a block of columns, in float64, one after another."""
        for i in range(0, len(self.query), self.block):
            for j in range(0, len(self.keys), self.block):
                rows, columns = slice(i, i + self.block), slice(j, j + self.block)
                yield rows, columns, (self.query[rows] @ self.keys[columns].T).double()

    def span(self) -> float:
        extremes = [tile.aminmax() for _, _, tile in self.tiles()]
        return (max(high for _, high in extremes) - min(low for low, _ in extremes)).item()

    def exponential(self, epsilon: float, column: Tensor) -> tuple[TiledMatrix, Tensor]:
        peak = torch.full((len(self.query),), -torch.inf, dtype=torch.float64, device=self.query.device)
        for rows, columns, tile in self.tiles():
            peak[rows] = peak[rows].maximum(tile.div_(epsilon).add_(column[columns]).amax(dim=1))
        return TiledMatrix(self, epsilon, -peak, column), -peak


class TiledMatrix:
    """Entries made tile by tile, again for every product."""

    whole = False

    def __init__(self, scores: TiledScores, epsilon: float, row: Tensor, column: Tensor) -> None:
        self.scores, self.epsilon, self.row, self.column = scores, epsilon, row, column

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Tiles of the matrix."""
        for rows, columns, tile in self.scores.tiles():
            tile.div_(self.epsilon).add_(self.column[columns]).add_(self.row[rows][:, None]).exp_()
            yield rows, columns, tile

    def times(self, x: Tensor) -> Tensor:
        found = x.new_zeros(*x.shape[:-1], len(self.row))
        for rows, columns, tile in self.tiles():
            found[..., rows] += x[..., columns] @ tile.T
        return found

    def transposed(self, y: Tensor) -> Tensor:
        found = y.new_zeros(*y.shape[:-1], len(self.column))
        for rows, columns, tile in self.tiles():
            found[..., columns] += y[..., rows] @ tile
        return found

    def squared(self, y: Tensor) -> Tensor:
        found = y.new_zeros(len(self.column))
        for rows, columns, tile in self.tiles():
            found[columns] += y[rows] @ tile.square_()
        return found

    def spread(self, x: Tensor, y: Tensor, left: Tensor, right: Tensor) -> Tensor:
        total = left.new_zeros(())
        for rows, columns, tile in self.tiles():
            total += left[rows] @ (tile.mul_((x[rows][:, None] + y[columns]).square_()) @ right[columns])
        return total

    def entries(self) -> Tensor:
        found = self.row.new_empty(len(self.row), len(self.column))
        for rows, columns, tile in self.tiles():
            found[rows, columns] = tile
        return found


def _working(side: Tensor) -> Tensor:
    return side.detach().to(torch.promote_types(side.dtype, torch.float32)).contiguous()
