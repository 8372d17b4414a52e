"""The bridge: ridge regression and scores against naive loops in float64, and a known linear map."""

import math

import numpy as np
import pytest
import torch

from triptych.bridge import Bridge, choose_ridge, fit_bridge, fit_ridge


def solve_naively(x, y, ridge):
    """Return (xᵀx + λI)⁻¹ xᵀy by Gaussian elimination on plain lists."""
    n, a, b = len(x), len(x[0]), len(y[0])
    gram = [[sum(x[k][i] * x[k][j] for k in range(n)) for j in range(a)] for i in range(a)]
    strength = ridge * sum(gram[i][i] for i in range(a)) / a
    rows = [
        [gram[i][j] + (strength if i == j else 0.0) for j in range(a)]
        + [sum(x[k][i] * y[k][j] for k in range(n)) for j in range(b)]
        for i in range(a)
    ]
    for i in range(a):
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for other in range(a):
            if other != i:
                rows[other] = [v - rows[other][i] * w for v, w in zip(rows[other], rows[i], strict=True)]
    return [row[a:] for row in rows]


def cosine(u, v):
    norm = math.sqrt(sum(p * p for p in u)) * math.sqrt(sum(q * q for q in v))
    return sum(p * q for p, q in zip(u, v, strict=True)) / norm


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 10.0])
def test_the_map_matches_gaussian_elimination(ridge):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 4)), rng.normal(size=(12, 3))
    (matrix,) = fit_ridge(torch.from_numpy(x), torch.from_numpy(y), [ridge])
    assert matrix.numpy() == pytest.approx(np.array(solve_naively(x.tolist(), y.tolist(), ridge)), abs=1e-12)


def test_scores_match_a_naive_loop():
    rng = np.random.default_rng(1)
    map_ab, map_ba, centre_a, centre_b = (rng.normal(size=s) for s in ((3, 2), (2, 3), 3, 2))
    x, y = rng.normal(size=(4, 3)), rng.normal(size=(5, 2))
    bridge = Bridge(*map(torch.from_numpy, (map_ab, map_ba, centre_a, centre_b)))
    scores = bridge.scores(torch.from_numpy(x), torch.from_numpy(y))
    for i in range(4):
        for j in range(5):
            u = [x[i][k] - centre_a[k] for k in range(3)]
            v = [y[j][k] - centre_b[k] for k in range(2)]
            mapped_u = [sum(u[k] * map_ab[k][m] for k in range(3)) for m in range(2)]
            mapped_v = [sum(v[k] * map_ba[k][m] for k in range(2)) for m in range(3)]
            assert scores[i, j].item() == pytest.approx((cosine(mapped_u, v) + cosine(u, mapped_v)) / 2)
    for vectors in (bridge.embed_a(torch.from_numpy(x)), bridge.embed_b(torch.from_numpy(y))):
        assert vectors.shape[1] == bridge.embed_dim == 5
        assert vectors.norm(dim=1).numpy() == pytest.approx(1.0)


def test_a_known_linear_map_is_recovered():
    """Items that only one model embeds are matched, although their modality has another centre than the texts."""
    generator = torch.Generator().manual_seed(0)
    true_map = torch.randn(8, 8, generator=generator)
    x = torch.randn(600, 8, generator=generator)
    bridge, report = fit_bridge(x, x @ true_map, noise=0.0)
    assert torch.allclose(bridge.map_ab, true_map, atol=1e-2)
    assert torch.allclose(bridge.map_ba, torch.linalg.inv(true_map), atol=1e-1)
    assert report.recall_ab[1] == report.recall_ba[1] == 100
    assert (report.num_texts, report.num_test_texts) == (600, 60)
    assert report.chance == pytest.approx({1: 100 / 60, 10: 1000 / 60})
    items = torch.randn(50, 8, generator=generator)
    shifted = Bridge(bridge.map_ab, bridge.map_ba, items.mean(dim=0) + 5, (items @ true_map).mean(dim=0) - 3)
    scores = shifted.scores(items + 5, items @ true_map - 3)
    assert (scores.argmax(dim=1) == torch.arange(50)).all()


def test_unrelated_halves_are_at_the_chance_level():
    generator = torch.Generator().manual_seed(1)
    _, report = fit_bridge(torch.randn(2000, 6, generator=generator), torch.randn(2000, 6, generator=generator))
    assert report.num_test_texts == 200
    assert report.recall_ab[10] < 12 > report.recall_ba[10]  # chance: 5%


def test_items_that_differ_from_their_texts_need_a_stronger_ridge():
    x = torch.randn(400, 30, generator=torch.Generator().manual_seed(2)).double() * torch.logspace(0, -2, 30)
    chosen = [choose_ridge(x, x, noise) for noise in (0.0, 0.1, 3.0)]
    assert chosen[0] < chosen[1] < chosen[2]


def test_the_fit_is_deterministic():
    x = torch.randn(300, 5, generator=torch.Generator().manual_seed(3))
    first, second = (fit_bridge(x, x.square()) for _ in range(2))
    assert first[1] == second[1]
    assert all(torch.equal(first[0].state_dict()[name], value) for name, value in second[0].state_dict().items())
