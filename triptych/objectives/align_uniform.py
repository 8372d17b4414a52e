"""Alignment of positive pairs, and uniformity of the embeddings of each modality."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from triptych.errors import InputError, RecipeError
from triptych.interfaces import Pair
from triptych.objectives.objective import Objective
from triptych.objectives.scores import upcast_half


def align_loss(x: Tensor, y: Tensor, alpha: float = 2.0) -> Tensor:
    """Return mean_i |x_i - y_i|^alpha. A pair with x_i = y_i has gradient 0 for every alpha.

    Args:
        x: embeddings (N, D), usually of length 1.
        y: the positives of x, (N, D).
        alpha: the power of the distance.

    Returns:
        A scalar tensor.

    Raises:
        InputError: shapes are wrong, or the result is not finite.

    Example:
        >>> import torch
        >>> from triptych.losses import align_loss
        >>> print(f"{align_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])):.4f}")
        2.0000
    """
    if x.shape != y.shape or x.dim() != 2 or len(x) == 0:
        raise InputError(f"x is {tuple(x.shape)}, y is {tuple(y.shape)}; need the same (N, D) with at least one row")
    squared_distances = (upcast_half(x) - upcast_half(y)).square().sum(dim=1)  # (N,)
    is_distinct = squared_distances != 0  # also True for NaN, so that _check_finite raises InputError
    # Zero distances are masked, because the gradient of the norm is NaN at 0, and infinite at 0 if alpha < 1.
    distances = torch.where(is_distinct, torch.where(is_distinct, squared_distances, 1.0).pow(alpha / 2), 0.0)
    return _check_finite(distances.mean(), "x, y")


def uniform_loss(x: Tensor, t: float = 2.0, same_group: Tensor | None = None) -> Tensor:
    """Return log mean_{i<j} exp(-t |x_i - x_j|²) over the pairs (i, j) for which `same_group` is False.

    Args:
        x: embeddings (N, D), usually of length 1.
        t: the scale of the Gaussian potential.
        same_group: bool (N, N), symmetric: the pairs that are excluded. By default, all pairs count.

    Returns:
        A scalar tensor.

    Raises:
        InputError: no pair is left, or the result is not finite.

    Example:
        >>> import torch
        >>> from triptych.losses import uniform_loss
        >>> print(f"{uniform_loss(torch.tensor([[1.0, 0.0], [0.0, 1.0]])):.4f}")  # -t · 2
        -4.0000
    """
    # pdist is accurate for vectors of any length; |x|² - 2<x, y> + |y|² is not.
    squared_distances = torch.pdist(upcast_half(x)).square()  # (P,) with P = N (N - 1) / 2
    excluded = torch.zeros_like(squared_distances, dtype=torch.bool)
    if same_group is not None:
        excluded = same_group[torch.ones_like(same_group).triu(1)]
    num_pairs = len(squared_distances) - int(excluded.sum())
    if num_pairs == 0:
        raise InputError(f"x: {len(x)} rows, all of the same group; need rows of at least two groups")
    # logsumexp is used, because exp(-t d²) underflows to 0 in float32 if t d² is above 104.
    log_sum = (-t * squared_distances).masked_fill(excluded, -torch.inf).logsumexp(dim=0)
    return _check_finite(log_sum - math.log(num_pairs), "x")


class AlignUniform(Objective):
    """Alignment of positive pairs, plus uniformity of the embeddings of each modality on the hypersphere.

    align = mean_i |a_i - b_i|^alpha;  uniform(x) = log mean_{i<j} exp(-t |x_i - x_j|²)
    L = align_weight · align + uniform_weight · (uniform(a) + uniform(b)) / 2
    Pairs of rows of the same group are excluded from uniform. If all rows of a batch are in one group, uniform = 0.

    Args:
        alpha: the power of the distance of a pair.
        t: the scale of the Gaussian potential of uniform.
        align_weight: the weight of align.
        uniform_weight: the weight of uniform.

    Inputs: embeddings `a` and `b` (N, D) of length 1; `group` (N,) is optional. No scores and no similarity.
    Returns: a scalar tensor.
    Requirements: normalise the embeddings, for example with torch.nn.functional.normalize. Rows of at least two groups.
    Also known as: the limit of `Contrastive` for many negatives and a fixed temperature, up to weights.
    Example:
        >>> import torch
        >>> from triptych.losses import AlignUniform
        >>> a, b = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
        >>> print(f"{AlignUniform()(a, b):.4f}")
        -2.6000

    Source: Wang & Isola 2020, who set alpha = t = 2 and both weights to 1, and include every pair of rows.
    Use when: you want to weight or study the two terms of a contrastive loss separately. The objective works with small
    batches.
    Beware: the objective compares embeddings directly, not by the similarity, and needs space.geometry = "sphere". With
    the free geometry, longer vectors lower uniform without bound. The cost is O(N² D) per modality, and no matrix
    products can speed it up.
    """

    reads_scores = False

    def __init__(
        self, alpha: float = 2.0, t: float = 2.0, align_weight: float = 1.0, uniform_weight: float = 1.0
    ) -> None:
        super().__init__()
        for name, value in (("alpha", alpha), ("t", t)):
            if not 0 < value < math.inf:
                raise RecipeError(f"align_uniform: {name} = {value}; need a finite number above 0")
        for name, value in (("align_weight", align_weight), ("uniform_weight", uniform_weight)):
            if not 0 <= value < math.inf:
                raise RecipeError(f"align_uniform: {name} = {value}; need a number of 0 or more")
        self.alpha, self.t, self.align_weight, self.uniform_weight = alpha, t, align_weight, uniform_weight

    def terms(self, pair: Pair) -> dict[str, Tensor]:
        a, b = pair.a.embedding, pair.b.embedding  # (N, D)
        terms = {"align": self.align_weight * align_loss(a, b, self.alpha)}
        if bool(pair.positive_mask.all()):
            return terms | {"uniform": torch.zeros_like(terms["align"])}
        uniform_sum = uniform_loss(a, self.t, pair.positive_mask) + uniform_loss(b, self.t, pair.positive_mask)
        return terms | {"uniform": self.uniform_weight * uniform_sum / 2}


def _check_finite(value: Tensor, name: str) -> Tensor:
    if not torch.isfinite(value):
        raise InputError(f"{name}: NaN, infinity, or vectors too long to square; the result is {float(value)}")
    return value
