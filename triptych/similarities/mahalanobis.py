"""Negative Mahalanobis distance between embeddings, with a fixed or learned metric."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from triptych.errors import InputError, RecipeError, describe_unknown
from triptych.interfaces import Features, Similarity

Metric = Literal["identity", "diagonal", "low_rank", "full"]
DistanceForm = Literal["rooted", "squared"]


class Mahalanobis(Similarity):
    """Negative distance between two embeddings under a metric M.

    s(a, b) = -sqrt(dᵀ M d)   (form = rooted)   or   -dᵀ M d   (form = squared),   d = a - b

    Args:
        embed_dim: D, the dimension of the embeddings.
        metric: identity M = I | diagonal M = diag(w), w >= 0 | low_rank M = LᵀL, L (rank, D) | full M symmetric,
            positive semi-definite. Learned metrics start at the identity (low_rank: at a random projection that
            preserves norms on average). Call `after_step` after each optimizer step.
        rank: the number of rows of L.
        form: "rooted" or "squared".
        normalise: divide all distances by the largest distance of the batch, which also gets a gradient.

    Example:
        >>> import torch
        >>> from triptych.losses import Mahalanobis
        >>> Mahalanobis(embed_dim=2)(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0], [3.0, 0.0]]))
        tensor([[-5., -4.]])

    Source: Luong et al. 2024 (m-LTM). The paper describes the full metric; the code of the authors uses a
    normalised diagonal metric.
    Use when: you train with the matching objective, or some dimensions of the embedding should count more than others.
    Beware: metric = full projects M after each step. If M is not positive definite, the projection takes O(D³)
        operations: 5 ms at D = 128 and 0.5 s at D = 1024. With normalise = true, a score depends on the other items of
        the batch. Sums are computed in float64, which takes up to twice the time of float32. The error of dᵀMd is 1e-15
        · (aᵀMa + bᵀMb). If the distance of two embeddings is below 1e-7 times their norm, score and gradient are 0,
        because the gradient of the square root is infinite at 0. Index vectors are float32, with an error of
        1e-6 · (aᵀMa + bᵀMb), which is small enough to select search candidates.
    """

    def __init__(
        self,
        embed_dim: int = 128,
        metric: Metric = "identity",
        rank: int = 32,
        form: DistanceForm = "rooted",
        normalise: bool = False,
    ) -> None:
        super().__init__()
        if metric not in get_args(Metric):
            raise RecipeError(f"mahalanobis: {describe_unknown('metric', metric, get_args(Metric))}")
        if form not in get_args(DistanceForm):
            raise RecipeError(f"mahalanobis: {describe_unknown('form', form, get_args(DistanceForm))}")
        if embed_dim < 1:
            raise RecipeError(f"mahalanobis: embed_dim = {embed_dim}; need space.embed_dim, at least 1")
        if metric == "low_rank" and not 1 <= rank <= embed_dim:
            raise RecipeError(f"mahalanobis: rank = {rank}; need 1 <= rank <= embed_dim = {embed_dim}")
        self.embed_dim, self.metric, self.rank = embed_dim, metric, rank
        self.form, self.normalise = form, normalise
        self.is_exact = form == "squared" and not normalise  # otherwise, inner products give only the ranking
        if metric == "diagonal":
            self.weight = nn.Parameter(torch.ones(embed_dim))
        elif metric == "low_rank":
            initial = nn.init.orthogonal_(torch.empty(rank, embed_dim), gain=math.sqrt(embed_dim / rank))
            self.factor = nn.Parameter(initial)
        elif metric == "full":
            self.matrix = nn.Parameter(torch.eye(embed_dim))

    def forward(self, a: Features, b: Features) -> Tensor:
        self._check_metric()
        left, _, squared_norm_a = self._bilinear_factors(a.embedding, "a.embedding")
        _, right, squared_norm_b = self._bilinear_factors(b.embedding, "b.embedding")
        squared_norms = squared_norm_a + squared_norm_b.T  # (N, M)
        distances = (squared_norms - 2 * left @ right.T).clamp_min(0)  # dᵀMd, without an (N, M, D) tensor
        if not (distances <= torch.finfo(_score_dtype(a.embedding)).max).all():  # also raises for NaN
            raise InputError("scores: NaN or infinity in an embedding or in the metric, or norms too large")
        if self.form == "rooted":
            # Distances that are not above this rounding error are set to 0, and so are their gradients.
            is_distinct = distances > 64 * torch.finfo(distances.dtype).eps * squared_norms
            distances = torch.where(is_distinct, distances, 1).sqrt() * is_distinct
        if self.normalise and distances.numel():
            largest = distances.max()
            distances = distances / torch.where(largest > 0, largest, 1)  # avoids 0 / 0 if all distances are 0
        return -distances.to(_score_dtype(a.embedding))

    def attribution(self, a: Features, b: Features) -> Tensor:
        # In dᵀMd = aᵀMa + bᵀMb - 2 aᵀMb, only the last term depends on parts of both items.
        left, _, _ = self._bilinear_factors(a.parts.flatten(0, 1), "a.parts")
        _, right, _ = self._bilinear_factors(b.parts.flatten(0, 1), "b.parts")
        left_parts, right_parts = left.unflatten(0, a.mask.shape), right.unflatten(0, b.mask.shape)
        shares = super().attribution(replace(a, parts=left_parts), replace(b, parts=right_parts))
        return 2 * shares.to(_score_dtype(a.embedding))

    def query(self, a: Features) -> Tensor:
        left, _, squared_norm = self._bilinear_factors(a.embedding, "a.embedding")
        columns = [2 * left, -squared_norm, -torch.ones_like(squared_norm)]
        return torch.cat(columns, dim=1).to(_score_dtype(a.embedding))  # (N, D + 2), low_rank: (N, rank + 2)

    def keys(self, b: Features) -> Tensor:
        _, right, squared_norm = self._bilinear_factors(b.embedding, "b.embedding")
        columns = [right, torch.ones_like(squared_norm), squared_norm]
        return torch.cat(columns, dim=1).to(_score_dtype(b.embedding))  # (M, D + 2), low_rank: (M, rank + 2)

    def after_step(self) -> None:
        if self.metric == "diagonal":
            self.weight.data.clamp_(min=0)
        elif self.metric == "full":
            self.matrix.data.copy_(project_to_psd(self.matrix.data))

    def _bilinear_factors(self, vectors: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return vectors left and right (N, S) such that aᵀMb = <left(a), right(b)>, and squared norms xᵀMx (N, 1)."""
        x = _to_float64(vectors)
        if x.shape[1] != self.embed_dim:
            problem = f"{name} has {x.shape[1]} dimensions, but mahalanobis has embed_dim = {self.embed_dim}"
            raise InputError(f"{problem}; set embed_dim of mahalanobis to space.embed_dim")
        left = right = x
        if self.metric == "diagonal":
            left = x * _to_float64(self.weight)
        elif self.metric == "low_rank":
            left = right = x @ _to_float64(self.factor).T
        elif self.metric == "full":
            matrix = _to_float64(self.matrix)
            left = x @ ((matrix + matrix.T) / 2)
        return left, right, (left * right).sum(dim=1, keepdim=True)

    def _check_metric(self) -> None:
        """Raise InputError if the metric is not positive semi-definite, which happens if after_step is not called."""
        if self.metric == "diagonal" and (self.weight < 0).any():
            lowest = self.weight.min().item()
            raise InputError(f"weight of the metric: {lowest:g} is negative; call after_step after each optimizer step")
        if self.metric == "full":
            matrix = _to_float64(self.matrix.detach())
            matrix = (matrix + matrix.T) / 2
            # The tolerance allows eigenvalues slightly below 0, which result from rounding in float32.
            matrix.diagonal().add_(1e-5 * matrix.diagonal().abs().mean())
            if not _is_positive_definite(matrix) and matrix.any():
                raise InputError("matrix of the metric has a negative eigenvalue; call after_step after each step")


def project_to_psd(matrix: Tensor) -> Tensor:
    """Return the symmetric positive semi-definite matrix that is nearest in the Frobenius norm.

    S = (M + Mᵀ) / 2 = U diag(e) Uᵀ;   nearest = U diag(max(e, 0)) Uᵀ
    The function clips eigenvalues instead of singular values, because singular values are never negative.
    """
    if not torch.isfinite(matrix).all():
        raise InputError("matrix of the metric contains NaN or infinity")
    symmetric = (_to_float64(matrix) + _to_float64(matrix).T) / 2
    if _is_positive_definite(symmetric):  # the Cholesky test takes a tenth of the time of eigh
        return symmetric.to(matrix.dtype)
    values, vectors = torch.linalg.eigh(symmetric)
    nearest = (vectors * values.clamp_min(0)) @ vectors.T
    return ((nearest + nearest.T) / 2).to(matrix.dtype)


def _is_positive_definite(matrix: Tensor) -> bool:
    return not torch.linalg.cholesky_ex(matrix).info.item()


def _to_float64(x: Tensor) -> Tensor:
    """Convert a tensor to float64 (float32 on MPS), because dᵀMd is a small difference of large numbers."""
    return x.float() if x.device.type == "mps" else x.double()


def _score_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of scores, at least float32, because half precision cannot represent small distances."""
    return torch.promote_types(x.dtype, torch.float32)
