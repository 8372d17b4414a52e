"""How near two embeddings lie, under a metric that may be learned."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from triptych.contracts import Features, Similarity
from triptych.errors import InputError, RecipeError, unknown

Metric = Literal["identity", "diagonal", "low_rank", "full"]
Form = Literal["rooted", "squared"]


class Mahalanobis(Similarity):
    """Minus how far apart two embeddings lie under a metric M.

    s(a, b) = -sqrt(dᵀ M d)   (form = rooted)   or   -dᵀ M d   (form = squared),   d = a - b
    metric: identity M = I | diagonal M = diag(w), w >= 0 | low_rank M = LᵀL, L (rank, D) | full M symmetric, all
    eigenvalues >= 0. Learned metrics start at the identity (low_rank: at a random projection that keeps lengths on
    average). normalise divides by the largest value of the batch; the gradient flows through that largest value.

    Source: Luong et al. 2024 (m-LTM), who write the full metric; their code uses its diagonal alone, normalised.
    Use when: with the matching objective, or where some directions of the space should count more than others.
    Beware: full projects M after each step, O(D³) once M touches the boundary: 5 ms at D = 128, 0.5 s at D = 1024.
        normalise makes a score depend on the rest of the batch. Sums are kept in float64, which costs up to twice the
        time of float32 and leaves an error of 1e-15 · (aᵀMa + bᵀMb) in dᵀMd; a pair nearer than 1e-7 of its own
        length counts as identical: score 0, gradient 0 (the root's own slope there is infinite). query and keys are
        float32: 1e-6 · (aᵀMa + bᵀMb), enough for a shortlist.
    """

    def __init__(
        self,
        width: int = 128,
        metric: Metric = "identity",
        rank: int = 32,
        form: Form = "rooted",
        normalise: bool = False,
    ) -> None:
        super().__init__()
        if metric not in get_args(Metric):
            raise RecipeError(f"mahalanobis: {unknown('metric', metric, get_args(Metric))}")
        if form not in get_args(Form):
            raise RecipeError(f"mahalanobis: {unknown('form', form, get_args(Form))}")
        if width < 1:
            raise RecipeError(f"mahalanobis: width = {width}; need the width of the embeddings, at least 1")
        if metric == "low_rank" and not 1 <= rank <= width:
            raise RecipeError(f"mahalanobis: rank = {rank}; need 1 <= rank <= width = {width}")
        self.width, self.metric, self.rank = width, metric, rank
        self.form, self.normalise = form, normalise
        self.exact = form == "squared" and not normalise  # rooted and normalised: the same order, other numbers
        if metric == "diagonal":
            self.weight = nn.Parameter(torch.ones(width))
        elif metric == "low_rank":
            start = nn.init.orthogonal_(torch.empty(rank, width), gain=math.sqrt(width / rank))
            self.factor = nn.Parameter(start)
        elif metric == "full":
            self.matrix = nn.Parameter(torch.eye(width))

    def forward(self, a: Features, b: Features) -> Tensor:
        self._check_metric()
        left, _, length_a = self._sides(a.embedding, "a.embedding")
        _, right, length_b = self._sides(b.embedding, "b.embedding")
        lengths = length_a + length_b.T  # (N, M)
        gap = (lengths - 2 * left @ right.T).clamp_min(0)  # dᵀMd, without the (N, M, D) differences
        if not (gap <= torch.finfo(_readable(a.embedding)).max).all():  # false for NaN too
            raise InputError("scores: NaN or infinity in an embedding or in the metric, or embeddings too long")
        if self.form == "rooted":
            apart = gap > 64 * torch.finfo(gap.dtype).eps * lengths  # below, it is rounding, whose slope means nothing
            gap = torch.where(apart, gap, 1).sqrt() * apart
        if self.normalise and gap.numel():
            largest = gap.max()
            gap = gap / torch.where(largest > 0, largest, 1)  # all rows identical: 0, not 0 / 0
        return -gap.to(_readable(a.embedding))

    def heat(self, a: Features, b: Features) -> Tensor:
        # Of dᵀMd = aᵀMa + bᵀMb - 2 aᵀMb only the last term is of two parts.
        left, _, _ = self._sides(a.parts.flatten(0, 1), "a.parts")
        _, right, _ = self._sides(b.parts.flatten(0, 1), "b.parts")
        sides = left.unflatten(0, a.mask.shape), right.unflatten(0, b.mask.shape)
        return 2 * super().heat(replace(a, parts=sides[0]), replace(b, parts=sides[1])).to(_readable(a.embedding))

    def query(self, a: Features) -> Tensor:
        left, _, length = self._sides(a.embedding, "a.embedding")
        columns = [2 * left, -length, -torch.ones_like(length)]
        return torch.cat(columns, dim=1).to(_readable(a.embedding))  # (N, D + 2), low_rank: (N, rank + 2)

    def keys(self, b: Features) -> Tensor:
        _, right, length = self._sides(b.embedding, "b.embedding")
        columns = [right, torch.ones_like(length), length]
        return torch.cat(columns, dim=1).to(_readable(b.embedding))  # (M, D + 2), low_rank: (M, rank + 2)

    def after_step(self) -> None:
        if self.metric == "diagonal":
            self.weight.data.clamp_(min=0)
        elif self.metric == "full":
            self.matrix.data.copy_(nearest_metric(self.matrix.data))

    def _sides(self, vectors: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Left and right with aᵀMb = <left of a, right of b>, and xᵀMx: (N, S), (N, S), (N, 1)."""
        x = _wide(vectors)
        if x.shape[1] != self.width:
            raise InputError(f"{name} is {x.shape[1]} wide and mahalanobis has width = {self.width}")
        left = right = x
        if self.metric == "diagonal":
            left = x * _wide(self.weight)
        elif self.metric == "low_rank":
            left = right = x @ _wide(self.factor).T
        elif self.metric == "full":
            matrix = _wide(self.matrix)
            left = x @ ((matrix + matrix.T) / 2)
        return left, right, (left * right).sum(dim=1, keepdim=True)

    def _check_metric(self) -> None:
        """A metric that calls some differences less than nothing is an error: after_step was not called."""
        if self.metric == "diagonal" and (self.weight < 0).any():
            lowest = self.weight.min().item()
            raise InputError(f"weight of the metric: {lowest:g} is negative; call after_step after each optimizer step")
        if self.metric == "full":
            matrix = _wide(self.matrix.detach())
            matrix = (matrix + matrix.T) / 2
            matrix.diagonal().add_(1e-5 * matrix.diagonal().abs().mean())  # float32 leaves eigenvalues just below 0
            if not _is_positive(matrix) and matrix.any():
                raise InputError("matrix of the metric has a negative eigenvalue; call after_step after each step")


def nearest_metric(matrix: Tensor) -> Tensor:
    """The nearest symmetric matrix without negative eigenvalues (Frobenius norm), itself where it is one already.

    S = (M + Mᵀ) / 2 = U diag(e) Uᵀ;   nearest = U diag(max(e, 0)) Uᵀ
    Singular values are never negative, so clipping those instead would change nothing.
    """
    if not torch.isfinite(matrix).all():
        raise InputError("matrix of the metric holds NaN or infinity")
    symmetric = (_wide(matrix) + _wide(matrix).T) / 2
    if _is_positive(symmetric):  # a Cholesky attempt costs a tenth of the eigenvalues
        return symmetric.to(matrix.dtype)
    values, vectors = torch.linalg.eigh(symmetric)
    nearest = (vectors * values.clamp_min(0)) @ vectors.T
    return ((nearest + nearest.T) / 2).to(matrix.dtype)


def _is_positive(matrix: Tensor) -> bool:
    return not torch.linalg.cholesky_ex(matrix).info.item()


def _wide(x: Tensor) -> Tensor:
    """In float64, where the device has it: dᵀMd is the small difference of large numbers."""
    return x.float() if x.device.type == "mps" else x.double()


def _readable(x: Tensor) -> torch.dtype:
    """Half precision cannot hold a small gap beside a large one: scores are float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)
