"""A bridge: linear maps between two embeddings of the same texts, by which items of two models are compared.

Two models embed every text as x (half a) and as y (half b). A bridge maps x to y and y to x. It is fitted to texts
only. It also maps the items that only one of the models embeds, such as the images of one and the audio of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

RIDGES = tuple(float(ridge) for ridge in 10.0 ** np.arange(-4, 1.5, 0.5))  # relative to the variance of a dimension
NUM_FOLDS = 5
NOISE = 1.0  # assumed variance of items around the texts that describe them, relative to the variance of the texts
TEST_FRACTION = 0.1  # fraction of the texts on which the report measures the bridge
MAX_TEST_TEXTS = 1000  # recall depends on the number of texts that are ranked


class Bridge(nn.Module):
    """Scores items of model a with items of model b; W_ab and W_ba are the maps, c_a and c_b the centres of the items.

    s(x, y) = ½ cos((x - c_a) W_ab, y - c_b) + ½ cos(x - c_a, (y - c_b) W_ba)

    The score is the inner product of `embed_a(x)` and `embed_b(y)`, which are unit vectors. Each modality has its own
    centre, because the embeddings of different modalities lie in different regions (the modality gap).

    Source: Wang et al. 2023 (C-MCR), who connect two contrastive spaces by the texts that both embed; Liang et al. 2022
    on the modality gap; ridge regression: Hoerl & Kennard 1970.
    """

    def __init__(self, map_ab: Tensor, map_ba: Tensor, centre_a: Tensor, centre_b: Tensor) -> None:
        super().__init__()
        for name, value in (("map_ab", map_ab), ("map_ba", map_ba), ("centre_a", centre_a), ("centre_b", centre_b)):
            self.register_buffer(name, value)
        self.map_ab: Tensor  # (A, B)
        self.map_ba: Tensor  # (B, A)
        self.centre_a: Tensor  # (A,)
        self.centre_b: Tensor  # (B,)

    @property
    def embed_dim(self) -> int:
        """The dimension of the vectors that `embed_a` and `embed_b` return: A + B."""
        return sum(self.map_ab.shape)

    def embed_a(self, x: Tensor) -> Tensor:
        """Return unit vectors (N, B + A) of items x (N, A) of model a."""
        centred = x - self.centre_a
        return _join_unit(centred @ self.map_ab, centred)

    def embed_b(self, y: Tensor) -> Tensor:
        """Return unit vectors (N, B + A) of items y (N, B) of model b."""
        centred = y - self.centre_b
        return _join_unit(centred, centred @ self.map_ba)

    def scores(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the score of every item x of model a with every item y of model b: (N, M)."""
        return self.embed_a(x) @ self.embed_b(y).T


@dataclass(frozen=True)
class BridgeReport:
    """How well half a of a held-out text finds half b of the same text, and the reverse. Recalls are in %."""

    num_texts: int  # number of texts to which the saved maps are fitted
    num_test_texts: int
    ridge_ab: float  # relative to the mean variance of a dimension, chosen by cross-validation
    ridge_ba: float
    recall_ab: dict[int, float]  # by k
    recall_ba: dict[int, float]
    chance: dict[int, float]


def fit_bridge(x: Tensor, y: Tensor, noise: float = NOISE, seed: int = 0) -> tuple[Bridge, BridgeReport]:
    """Fit a bridge to the embeddings x (N, A) and y (N, B) of N different texts; the centres are those of the texts.

    A tenth of the texts, at most 1,000, is held out for the report. The strengths of the regularisation are chosen by
    cross-validation on the other texts; `choose_ridge` describes `noise`. The bridge that is returned is fitted to all
    texts.
    """
    x, y = x.double(), y.double()
    order = np.random.default_rng(seed).permutation(len(x))
    num_test = min(MAX_TEST_TEXTS, max(1, round(TEST_FRACTION * len(x))))
    test, train = order[:num_test], order[num_test:]
    ridges = choose_ridge(x[train], y[train], noise), choose_ridge(y[train], x[train], noise)
    held_out = _fit_with_ridges(x[train], y[train], ridges)
    scores = held_out.scores(x[test], y[test])
    ks = 1, 10
    report = BridgeReport(
        num_texts=len(x),
        num_test_texts=num_test,
        ridge_ab=ridges[0],
        ridge_ba=ridges[1],
        recall_ab=_recall(scores, ks),
        recall_ba=_recall(scores.T, ks),
        chance={k: 100 * min(1.0, k / num_test) for k in ks},
    )
    return _fit_with_ridges(x, y, ridges).float(), report


def fit_ridge(x: Tensor, y: Tensor, ridges: Sequence[float]) -> list[Tensor]:
    """Return, for each strength r, the map W (A, B) that minimises |xW - y|² + λ|W|².

    λ = r · trace(xᵀx) / A. The rows of x (N, A) and y (N, B) are centred.
    W = (xᵀx + λI)⁻¹ xᵀy = V diag(1 / (s + λ)) Vᵀ xᵀy with the eigenvalues s and eigenvectors V of xᵀx.
    """
    eigenvalues, vectors = torch.linalg.eigh(x.T @ x)  # (A,), (A, A)
    projected = vectors.T @ (x.T @ y)  # (A, B)
    mean_variance = eigenvalues.clamp_min(0).mean()
    return [vectors @ (projected / (eigenvalues + ridge * mean_variance)[:, None]) for ridge in ridges]


def choose_ridge(x: Tensor, y: Tensor, noise: float, ridges: Sequence[float] = RIDGES) -> float:
    """Return the strength with the highest mean cosine of (x + e)W and y on held-out rows, cross-validated.

    The map is used for images or audio, whose embeddings differ from those of the texts that describe them. Without
    noise e, texts choose a strength that is too weak for these items. e is Gaussian; its variance is `noise` times the
    variance of x.
    """
    totals, generator = np.zeros(len(ridges)), torch.Generator().manual_seed(0)
    deviation = (noise * (x - x.mean(dim=0)).square().mean()).sqrt()
    noisy = x + deviation * torch.randn(x.shape, generator=generator, dtype=x.dtype)
    for fold in range(NUM_FOLDS):
        is_valid = torch.arange(len(x)) % NUM_FOLDS == fold
        centre_x, centre_y = x[~is_valid].mean(dim=0), y[~is_valid].mean(dim=0)
        maps = fit_ridge(x[~is_valid] - centre_x, y[~is_valid] - centre_y, ridges)
        targets = F.normalize(y[is_valid] - centre_y, dim=1)
        for i, matrix in enumerate(maps):
            predicted = F.normalize((noisy[is_valid] - centre_x) @ matrix, dim=1)
            totals[i] += float((predicted * targets).sum())
    return max(zip(totals, ridges, strict=True))[1]


def _fit_with_ridges(x: Tensor, y: Tensor, ridges: tuple[float, float]) -> Bridge:
    centre_x, centre_y = x.mean(dim=0), y.mean(dim=0)
    (map_ab,) = fit_ridge(x - centre_x, y - centre_y, ridges[:1])
    (map_ba,) = fit_ridge(y - centre_y, x - centre_x, ridges[1:])
    return Bridge(map_ab, map_ba, centre_x, centre_y)


def _join_unit(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat([F.normalize(first, dim=1), F.normalize(second, dim=1)], dim=1) / 2**0.5


def _ranks(scores: Tensor) -> Tensor:
    """Return the rank (N,) of column i for row i, counted from 1. Ties count against the column."""
    return (scores >= scores.diagonal()[:, None]).sum(dim=1)


def _recall(scores: Tensor, ks: Sequence[int]) -> dict[int, float]:
    ranks = _ranks(scores)
    return {k: 100 * float((ranks <= k).double().mean()) for k in ks}
