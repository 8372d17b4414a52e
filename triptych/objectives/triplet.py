"""Triplet loss with mined or sampled negatives."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from triptych.errors import InputError, RecipeError, describe_unknown
from triptych.interfaces import Pair
from triptych.objectives.objective import Objective
from triptych.objectives.scores import check_scores, upcast_half

NegativeMining = Literal["random", "semi_hard", "hardest", "all"]
LossName = Literal["hinge", "polynomial"]
Reduction = Literal["mean", "sum"]
Directions = Literal["both", "a", "b"]

MINING_BLOCK = 256  # rows for which negatives are mined at a time, so that temporaries fit into the CPU cache


def triplet_loss(
    scores: Tensor,  # (N, N)
    positive_mask: Tensor,  # (N, N) bool
    margin: float = 0.2,
    negatives: NegativeMining = "semi_hard",
    loss: LossName = "hinge",
    reduction: Reduction = "mean",
    negative_index: Tensor | None = None,  # (N,)
) -> Tensor:
    """Return the triplet loss with rows as anchors; for columns as anchors, pass `scores.T` and `positive_mask.T`.

    The result is the mean or sum over i of loss(s_ii, s_ij). An anchor without a negative has loss 0.

    Args:
        scores: (N, N); the positive of row i is column i.
        positive_mask: bool (N, N), True on the diagonal. Columns that are positives of a row are never its negatives.
        margin: see `Triplet`.
        negatives: how to select the negative j of row i, see `Triplet`.
        loss: see `Triplet`.
        reduction: "mean" or "sum" over the rows.
        negative_index: the negative j of each row, or -1 for no negative, int64 (N,); replaces `negatives`.

    Returns:
        A scalar tensor.

    Raises:
        InputError: shapes, dtypes or indices are wrong, or a score is NaN or infinite.

    Example:
        >>> import torch
        >>> from triptych.losses import triplet_loss
        >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.5]])
        >>> print(f"{triplet_loss(scores, torch.eye(2, dtype=torch.bool), margin=0.2):.4f}")  # (0.1 + 0) / 2
        0.0500
    """
    scores = upcast_half(scores)
    _check_scores(scores, positive_mask)
    if negative_index is None and negatives == "all":
        return _reduce(_sum_over_negatives(scores, positive_mask, margin, loss), reduction)
    if negative_index is not None:
        _check_negative_index(negative_index, positive_mask)
    elif negatives == "random":
        negative_index = sample_negatives(positive_mask)
    else:
        negative_index = mine_negatives(scores, positive_mask, semi_hard=negatives == "semi_hard")
    negative = scores.gather(1, negative_index.clamp(min=0)[:, None]).squeeze(1)
    losses = _triplet_losses(scores.diagonal(), negative, margin, loss).masked_fill(negative_index < 0, 0.0)  # (N,)
    return _reduce(losses, reduction)


def sample_negatives(positive_mask: Tensor) -> Tensor:
    """Sample one negative per row uniformly, with torch's global generator: (N,), -1 for a row without negatives."""
    rows, items = positive_mask.shape
    negative_index = torch.randint(items, (rows,), device=positive_mask.device)
    # Each row first samples any item. Rows that sampled a positive sample again among their negatives only, so that the
    # final sample is uniform over the negatives. Few rows sample a positive, so the second sampling is fast.
    redraw_rows = positive_mask.gather(1, negative_index[:, None]).squeeze(1).nonzero().squeeze(1)
    negative_mask = (~positive_mask[redraw_rows]).float()
    has_negative = negative_mask.any(dim=1)
    negative_index[redraw_rows[~has_negative]] = -1
    if has_negative.any():
        negative_index[redraw_rows[has_negative]] = torch.multinomial(negative_mask[has_negative], 1).squeeze(1)
    return negative_index


@torch.no_grad()
def mine_negatives(scores: Tensor, positive_mask: Tensor, semi_hard: bool) -> Tensor:
    """Return the index of each row's highest-scoring negative (semi_hard: that scores below the positive), or -1."""
    negative_index = torch.empty(len(scores), dtype=torch.long, device=scores.device)
    positive = scores.diagonal()
    for first in range(0, len(scores), MINING_BLOCK):
        rows = slice(first, first + MINING_BLOCK)
        allowed = ~positive_mask[rows]
        if semi_hard:
            allowed &= scores[rows] < positive[rows, None]
        best, index = torch.where(allowed, scores[rows], -torch.inf).max(dim=1)
        negative_index[rows] = index.masked_fill(best == -torch.inf, -1)
    return negative_index


def hinge(positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """Return relu(margin + s_negative - s_positive)."""
    return (negative - (positive - margin)).relu()


def polynomial(positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """Return relu(0.2 p² - 0.7 p + 0.5) + relu(0.9 n² - 0.4 n + 0.03) if n + margin > p and p < 1, else 0.

    Source: Wei et al. 2020 (universal weighting for cross-modal matching); the constants are from Mei et al. 2022.
    """
    is_active = (negative + margin > positive) & (positive < 1 - 1e-5)
    pull = (0.2 * positive**2 - 0.7 * positive + 0.5).relu()
    push = (0.9 * negative**2 - 0.4 * negative + 0.03).relu()
    return torch.where(is_active, pull + push, 0.0)


LOSSES = {"hinge": hinge, "polynomial": polynomial}


class Triplet(Objective):
    """Hinge loss that makes each positive score higher than a negative of the same anchor, by at least a margin.

    L = mean_i relu(margin + s_ij - s_ii)  [rows, a_to_b]  +  mean_j relu(margin + s_ij - s_jj)  [columns, b_to_a]
    The positive of a_i is b_i. Items of the anchor's group are never negatives. An anchor without a negative has loss
    0.

    Args:
        margin: the difference of scores that is large enough, in the unit of the scores.
        negatives: "random": one negative, sampled uniformly in each step; "semi_hard": the highest-scoring negative
            that scores below the positive; "hardest": the highest-scoring negative; "all": the sum of the losses over
            all negatives.
        directions: "a": anchors in a; "b": anchors in b; "both": the sum of both directions.
        reduction: "mean" over all N anchors, or "sum".
        loss: "hinge", or "polynomial", which replaces the hinge by polynomials of scores.

    Inputs: embeddings `a` and `b` (N, D), parts with masks and a similarity of parts, or `scores` (N, N); `group` (N,)
        is optional. `Objective.forward` describes the inputs.
    Returns: a scalar tensor.
    Requirements: rows of at least two groups; a batch of one group has loss 0.
    Also known as: max-margin ranking loss; "hardest" is VSE++ or batch hard, "all" is the sum of hinges of VSE.
        pytorch-metric-learning's TripletMarginLoss has the same hinge: with CosineSimilarity for the default
        similarity; with LpDistance for Mahalanobis(form = "rooted") on normalised embeddings. BatchHardMiner is
        "hardest", and BatchEasyHardMiner with neg_strategy = "semihard" is "semi_hard", if each row is a group. The
        differences: TripletMarginLoss averages over the triplets with a loss above 0 (here: over all anchors), and
        also uses the other items of the anchor's group as positives (here: only b_i).
    Example:
        >>> import torch
        >>> from triptych.losses import Triplet
        >>> a, b = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
        >>> print(f"{Triplet(margin=0.5, negatives='hardest')(a, b):.4f}")  # (0.1 + 0) / 2 + (0 + 0.3) / 2
        0.2000

    Source: Weinberger & Saul 2009, Schroff et al. 2015 (semi_hard), Faghri et al. 2018 (hardest), Harwath et al. 2018,
    2020 (random and semi_hard for speech and images), Aytar et al. 2017 (all, in one direction, summed).
    Use when: batches are small, or some pairs are mismatched. semi_hard gives no gradient to an anchor whose positive
    scores below all negatives, and most mismatched pairs have this property.
    Beware: the margin has the unit of the scores; 0.2 suits cosine, and 1 suits dot products. With "hardest", all
    embeddings may collapse to one point if encoders are trained from scratch. "semi_hard" gives no gradient if all
    scores are equal. The loss of "all" grows with the batch size. "polynomial" needs scores in [-1, 1]. This objective
    never chooses excluded candidates; the released code of Harwath et al. sets their scores to 0 instead.
    """

    def __init__(
        self,
        margin: float = 0.2,
        negatives: NegativeMining = "semi_hard",
        directions: Directions = "both",
        reduction: Reduction = "mean",
        loss: LossName = "hinge",
    ) -> None:
        super().__init__()
        if not (0 <= margin < math.inf):
            raise RecipeError(f"triplet: margin = {margin}; need a number of 0 or more")
        for key, value, allowed in (
            ("negatives", negatives, NegativeMining),
            ("directions", directions, Directions),
            ("reduction", reduction, Reduction),
            ("loss", loss, LossName),
        ):
            if value not in get_args(allowed):
                raise RecipeError(f"triplet: {describe_unknown(key, str(value), get_args(allowed))}")
        self.margin = margin
        self.negatives: NegativeMining = negatives
        self.directions: Directions = directions
        self.reduction: Reduction = reduction
        self.loss: LossName = loss

    def terms(self, pair: Pair) -> dict[str, Tensor]:
        if pair.similarity.is_exact and self.negatives != "all":
            return self._forward_from_vectors(pair)
        scores, positive_mask = pair.scores(), pair.positive_mask
        sides = {"a_to_b": (scores, positive_mask), "b_to_a": (scores.T, positive_mask.T)}
        return {
            name: triplet_loss(*sides[name], self.margin, self.negatives, self.loss, self.reduction)
            for name in self._direction_names()
        }

    def _direction_names(self) -> list[str]:
        return {"both": ["a_to_b", "b_to_a"], "a": ["a_to_b"], "b": ["b_to_a"]}[self.directions]

    def _forward_from_vectors(self, pair: Pair) -> dict[str, Tensor]:
        """Compute the loss from vectors, for similarities whose scores are dot products.

        Only 2 N of the N² scores have a gradient. All scores are computed without an autograd graph, and the 2 N scores
        with a gradient are computed again with a graph. This method needs a third of the matrix products of a backward
        pass through all scores.
        """
        a, b = upcast_half(pair.similarity.query(pair.a)), upcast_half(pair.similarity.keys(pair.b))  # (N, S)
        is_random = self.negatives == "random"
        scores = None if is_random else a.detach() @ b.detach().T
        positive = (a * b).sum(dim=1)
        terms = {}
        for name in self._direction_names():
            is_a_to_b = name == "a_to_b"
            anchors, others, positive_mask = (a, b, pair.positive_mask) if is_a_to_b else (b, a, pair.positive_mask.T)
            if scores is None:
                negative_index = sample_negatives(positive_mask)
            else:
                side = scores if is_a_to_b else scores.T
                negative_index = mine_negatives(side, positive_mask, semi_hard=self.negatives == "semi_hard")
            negative = (anchors * others[negative_index.clamp(min=0)]).sum(dim=1)
            losses = _triplet_losses(positive, negative, self.margin, self.loss).masked_fill(negative_index < 0, 0.0)
            terms[name] = _reduce(losses, self.reduction)
        return terms


def _sum_over_negatives(scores: Tensor, positive_mask: Tensor, margin: float, loss: LossName) -> Tensor:
    """Sum the losses over all negatives of each row: (N,)."""
    positive = scores.diagonal()[:, None]
    if loss == "hinge":  # in place, so that one (N, N) buffer is enough; relu maps masked entries to 0
        return (scores - (positive - margin)).masked_fill_(positive_mask, -1.0).relu_().sum(dim=1)
    return _triplet_losses(positive, scores, margin, loss).masked_fill(positive_mask, 0.0).sum(dim=1)


def _triplet_losses(positive: Tensor, negative: Tensor, margin: float, loss: LossName) -> Tensor:
    """Return the loss of each triplet; raise InputError if scores are not finite or out of range."""
    if not torch.isfinite(positive).all() or not torch.isfinite(negative).all():
        raise InputError("scores: NaN or infinity; lower the learning rate or the scale")
    if loss == "polynomial" and max(positive.abs().max(), negative.abs().max()) > 1.01:
        largest = max(float(positive.abs().max()), float(negative.abs().max()))
        raise InputError(f"scores: up to {largest:.3g}; loss = 'polynomial' needs scores in [-1, 1], such as cosine")
    return LOSSES[loss](positive, negative, margin)


def _reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    return losses.mean() if reduction == "mean" else losses.sum()


def _check_scores(scores: Tensor, positive_mask: Tensor) -> None:
    check_scores(scores, positive_mask, square=True)
    if not positive_mask.diagonal().all():
        raise InputError("positive_mask: False on the diagonal; row i and column i must be positives")
    lowest, highest = torch.aminmax(scores.detach())  # aminmax propagates NaN and allocates no temporaries
    if not (torch.isfinite(lowest) and torch.isfinite(highest)):
        raise InputError(f"scores: from {float(lowest)} to {float(highest)}; need finite numbers")


def _check_negative_index(negative_index: Tensor, positive_mask: Tensor) -> None:
    n = len(positive_mask)
    is_index = negative_index.shape == (n,) and negative_index.dtype == torch.long
    if not is_index or negative_index.min() < -1 or negative_index.max() >= n:
        actual = f"{tuple(negative_index.shape)} {negative_index.dtype}"
        raise InputError(f"negative_index: {actual}; need ({n},) int64 from -1 to {n - 1}")
    is_positive = positive_mask.gather(1, negative_index.clamp(min=0)[:, None]).squeeze(1) & (negative_index >= 0)
    if is_positive.any():
        row = int(is_positive.nonzero()[0])
        raise InputError(f"negative_index: row {row} has {int(negative_index[row])}, which is a positive")
