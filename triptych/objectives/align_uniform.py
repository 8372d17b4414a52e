"""Partners close together, everything else spread evenly."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from triptych.errors import InputError, RecipeError
from triptych.interfaces import Objective, Pair


def align_loss(x: Tensor, y: Tensor, alpha: float = 2.0) -> Tensor:
    """mean_i |x_i - y_i|^alpha over paired rows; the gradient is 0 where x_i = y_i, whatever alpha."""
    if x.shape != y.shape or x.dim() != 2 or len(x) == 0:
        raise InputError(f"x is {tuple(x.shape)}, y is {tuple(y.shape)}; need the same (N, D), one row is the least")
    squared_distances = (_upcast_half(x) - _upcast_half(y)).square().sum(dim=1)  # (N,)
    is_distinct = squared_distances != 0  # NaN stays NaN, and is caught below
    # The norm's own gradient is NaN at 0, and |·|^alpha has an infinite slope there for alpha < 1.
    distances = torch.where(is_distinct, torch.where(is_distinct, squared_distances, 1.0).pow(alpha / 2), 0.0)
    return _check_finite(distances.mean(), "x, y")


def uniform_loss(x: Tensor, t: float = 2.0, same_group: Tensor | None = None) -> Tensor:
    """log mean_{i<j} exp(-t |x_i - x_j|²) over distinct pairs of rows, leaving out those that `same` (N, N) marks."""
    squared_distances = torch.pdist(
        _upcast_half(x)
    ).square()  # (P,) with P = N (N - 1) / 2; exact at any length, unlike |x|² - 2<x, y>
    excluded = (
        torch.zeros_like(squared_distances, dtype=torch.bool)
        if same_group is None
        else same_group[torch.ones_like(same_group).triu(1)]
    )
    num_pairs = len(squared_distances) - int(excluded.sum())
    if num_pairs == 0:
        raise InputError(f"x: {len(x)} rows without a pair to hold apart; need two rows that are not the same")
    # logsumexp: exp(-t d²) itself is 0 in float32 from t d² = 104 on.
    return _check_finite(
        (-t * squared_distances).masked_fill(excluded, -torch.inf).logsumexp(dim=0) - math.log(num_pairs), "x"
    )


class AlignUniform(Objective):
    """Partners close together (align), and each side spread evenly over the space (uniform).

    align = mean_i |a_i - b_i|^alpha;  uniform(x) = log mean_{i<j} exp(-t |x_i - x_j|²)
    L = align_weight · align + uniform_weight · (uniform(a) + uniform(b)) / 2
    Pairs i, j that are right answers to each other (match) are left out of uniform: they need not be held apart.
    A batch with no pair to hold apart (a single row, or all of one group) has uniform = 0.

    Source: Wang & Isola 2020 (alpha = t = 2, weights 1; there every distinct pair counts).
    Use when: you want to see and weigh the two halves of a contrastive loss by themselves; batches may be small.
    Beware: reads embeddings as the space gives them, not scores: on the sphere only. In a free space longer vectors
    lower uniform without end. O(N² D) for each side, without a matrix product.
    """

    def __init__(
        self, alpha: float = 2.0, t: float = 2.0, align_weight: float = 1.0, uniform_weight: float = 1.0
    ) -> None:
        super().__init__()
        for name, value in (("alpha", alpha), ("t", t)):
            if not 0 < value < math.inf:
                raise RecipeError(f"align_uniform: {name} = {value}; need a number above 0")
        for name, value in (("align_weight", align_weight), ("uniform_weight", uniform_weight)):
            if not 0 <= value < math.inf:
                raise RecipeError(f"align_uniform: {name} = {value}; need a number of 0 or more")
        self.alpha, self.t, self.align_weight, self.uniform_weight = alpha, t, align_weight, uniform_weight

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        a, b = pair.a.embedding, pair.b.embedding  # (N, D)
        terms = {"align": self.align_weight * align_loss(a, b, self.alpha)}
        if bool(pair.positive_mask.all()):
            return terms | {"uniform": torch.zeros_like(terms["align"])}
        uniform_sum = uniform_loss(a, self.t, pair.positive_mask) + uniform_loss(b, self.t, pair.positive_mask)
        return terms | {"uniform": self.uniform_weight * uniform_sum / 2}


def _upcast_half(values: Tensor) -> Tensor:
    """Half precision as float32: differences of nearby vectors would keep two digits."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _check_finite(value: Tensor, name: str) -> Tensor:
    if not torch.isfinite(value):
        raise InputError(f"{name}: NaN, infinity or lengths too large to square; the result is {float(value)}")
    return value
