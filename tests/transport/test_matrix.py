"""Tiled matrices against dense ones."""

import pytest
import torch

from tests.transport.naive import random_cost
from triptych.transport.matrix import DenseScores, TiledScores

N, M, DIM, EPSILON = 7, 5, 3, 0.3


@pytest.fixture(params=[1, 2, 4, 16])
def matrices(request):
    """A dense and a tiled matrix of the same scores, with their row potentials."""
    query, keys = random_cost(N, DIM, seed=1), random_cost(M, DIM, seed=2)
    column = random_cost(M, seed=3)
    dense, tiled = DenseScores(query @ keys.T), TiledScores(query, keys, request.param)
    assert tiled.value_range() == pytest.approx(dense.value_range())
    return dense.exponentiate(EPSILON, column), tiled.exponentiate(EPSILON, column)


def test_entries_are_scaled_to_a_row_maximum_of_one(matrices):
    query, keys, column = random_cost(N, DIM, seed=1), random_cost(M, DIM, seed=2), random_cost(M, seed=3)
    for matrix, row in matrices:
        entries = matrix.to_dense()
        for i in range(N):
            logits = torch.stack([query[i] @ keys[j] / EPSILON + column[j] for j in range(M)])
            assert row[i].item() == pytest.approx(-logits.max().item())
            assert torch.allclose(entries[i], (logits - logits.max()).exp())


def test_tiled_products_equal_dense_products(matrices):
    (dense, _), (tiled, _) = matrices
    assert dense.is_dense
    assert not tiled.is_dense
    x, y = random_cost(M, seed=4), random_cost(N, seed=5)
    row_scale, column_scale = random_cost(N, seed=6), random_cost(M, seed=7)
    entries = dense.to_dense()
    assert torch.allclose(tiled.to_dense(), entries)
    for matrix in (dense, tiled):
        assert torch.allclose(matrix.matvec(x), entries @ x)
        assert torch.allclose(matrix.matvec(torch.stack([x, 2 * x])), torch.stack([entries @ x, 2 * entries @ x]))
        assert torch.allclose(matrix.rmatvec(y), entries.T @ y)
        assert torch.allclose(matrix.rmatvec(torch.stack([y, 2 * y])), torch.stack([y @ entries, 2 * y @ entries]))
        assert torch.allclose(matrix.squared_rmatvec(y), (entries**2).T @ y)
        expected = sum(
            row_scale[i] * column_scale[j] * entries[i, j] * (y[i] + x[j]) ** 2 for i in range(N) for j in range(M)
        )
        assert torch.allclose(matrix.weighted_square_sum(y, x, row_scale, column_scale), torch.as_tensor(expected))


def test_half_precision_scores_are_computed_in_float32():
    query = random_cost(N, DIM, seed=1).bfloat16()
    scores = TiledScores(query, query, 4)
    assert scores.query.dtype == torch.float32
    assert all(tile.dtype == torch.float64 for _, _, tile in scores.iter_tiles())
