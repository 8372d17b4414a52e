"""Each item's partner must score higher than an impostor, by a margin."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from triptych.contracts import Objective, Pair
from triptych.errors import InputError, RecipeError, unknown

Negatives = Literal["random", "semi_hard", "hardest", "all"]
Shape = Literal["hinge", "polynomial"]
Reduction = Literal["mean", "sum"]
Directions = Literal["both", "a", "b"]

BLOCK = 256  # rows looked at together while mining: temporaries stay in the cache, memory O(N · BLOCK)


def triplet(
    scores: Tensor,  # (N, N)
    match: Tensor,  # (N, N) bool
    margin: float = 0.2,
    negatives: Negatives = "semi_hard",
    shape: Shape = "hinge",
    reduction: Reduction = "mean",
    impostors: Tensor | None = None,  # (N,)
) -> Tensor:
    """Loss of the rows of `scores` as anchors; `scores.T` and `match.T` make the columns the anchors.

    mean or sum over i of shape(s_ii, s_ij), with j chosen among the wrong answers of i (not match_ij) by `negatives`,
    or given as `impostors` (-1: none). "all" sums over every wrong j. An anchor without a negative counts as 0.
    """
    scores = _wide(scores)
    _check(scores, match)
    if impostors is None and negatives == "all":
        return _reduce(_all(scores, match, margin, shape), reduction)
    if impostors is None:
        impostors = draw(match) if negatives == "random" else mine(scores, match, semi_hard=negatives == "semi_hard")
    else:
        _check_impostors(impostors, match)
    negative = scores.gather(1, impostors.clamp(min=0)[:, None]).squeeze(1)
    losses = _shaped(scores.diagonal(), negative, margin, shape).masked_fill(impostors < 0, 0.0)  # (N,)
    return _reduce(losses, reduction)


def draw(match: Tensor) -> Tensor:
    """One wrong answer for each row of `match`, uniformly (torch's global generator); -1 where all are right: (N,)."""
    rows, items = match.shape
    drawn = torch.randint(items, (rows,), device=match.device)
    # A uniform draw that hit a right answer is drawn again from that row's wrong ones: still uniform, and cheap,
    # since few rows need it.
    again = match.gather(1, drawn[:, None]).squeeze(1).nonzero().squeeze(1)
    wrong = (~match[again]).float()
    possible = wrong.any(dim=1)
    drawn[again[~possible]] = -1
    if possible.any():
        drawn[again[possible]] = torch.multinomial(wrong[possible], 1).squeeze(1)
    return drawn


@torch.no_grad()
def mine(scores: Tensor, match: Tensor, semi_hard: bool) -> Tensor:
    """The best-scoring wrong answer of each row, if semi_hard only of those below the partner; -1 where none: (N,)."""
    found = torch.empty(len(scores), dtype=torch.long, device=scores.device)
    positive = scores.diagonal()
    for first in range(0, len(scores), BLOCK):
        rows = slice(first, first + BLOCK)
        allowed = ~match[rows]
        if semi_hard:
            allowed &= scores[rows] < positive[rows, None]
        best, index = torch.where(allowed, scores[rows], -torch.inf).max(dim=1)
        found[rows] = index.masked_fill(best == -torch.inf, -1)
    return found


def hinge(positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """relu(margin + s_negative - s_positive)."""
    return (negative - (positive - margin)).relu()


def polynomial(positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """relu(0.2 p² - 0.7 p + 0.5) + relu(0.9 n² - 0.4 n + 0.03) where n + margin > p and p is not yet 1, else 0.

    Source: Wei et al. 2020 (universal weighting for cross-modal matching), with the constants of Mei et al. 2022.
    """
    counts = (negative + margin > positive) & (positive < 1 - 1e-5)
    pull = (0.2 * positive**2 - 0.7 * positive + 0.5).relu()
    push = (0.9 * negative**2 - 0.4 * negative + 0.03).relu()
    return torch.where(counts, pull + push, 0.0)


SHAPES = {"hinge": hinge, "polynomial": polynomial}


class Triplet(Objective):
    """Each item's partner must score higher than an impostor by a margin (Δ).

    L = mean_i relu(margin + s_ij - s_ii)  [rows, a_to_b]  +  mean_j relu(margin + s_ij - s_jj)  [columns, b_to_a]
    The impostor is never another right answer (match). negatives = "random": any, drawn anew each step; "semi_hard":
    the best-scoring one still below the partner; "hardest": the best-scoring one; "all": the sum over all of them.
    shape = "polynomial" weighs by the scores themselves instead of the hinge. An anchor without a negative counts 0.

    Source: Weinberger & Saul 2009, Schroff et al. 2015 (semi-hard); hardest: Faghri et al. 2018; random and semi-hard
    for speech and images: Harwath et al. 2018, 2020; all, one direction, summed: Aytar et al. 2017.
    Use when: batches are small, or some pairs are wrong (semi_hard leaves alone an anchor whose partner scores below
    everything, which is what a wrong pair looks like).
    Beware: the margin is in the units of the scores: 0.2 suits cosine, 1 raw dot products. "hardest" from a cold start
    may pull everything together. "semi_hard" teaches nothing where all scores are equal. "all" grows with the batch.
    "polynomial" needs scores in [-1, 1]. The released code of Harwath et al. masks semi-hard candidates with 0, so an
    impostor never scores below 0; here they are left out.
    """

    def __init__(
        self,
        margin: float = 0.2,
        negatives: Negatives = "semi_hard",
        directions: Directions = "both",
        reduction: Reduction = "mean",
        shape: Shape = "hinge",
    ) -> None:
        super().__init__()
        if not (0 <= margin < math.inf):
            raise RecipeError(f"triplet: margin = {margin}; need a number of 0 or more")
        for key, value, known in (
            ("negatives", negatives, Negatives),
            ("directions", directions, Directions),
            ("reduction", reduction, Reduction),
            ("shape", shape, Shape),
        ):
            if value not in get_args(known):
                raise RecipeError(f"triplet: {unknown(key, str(value), get_args(known))}")
        self.margin = margin
        self.negatives: Negatives = negatives
        self.directions: Directions = directions
        self.reduction: Reduction = reduction
        self.shape: Shape = shape

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        if pair.similarity.exact and self.negatives != "all":
            return self._from_vectors(pair)
        scores, match = pair.scores(), pair.match
        sides = {"a_to_b": (scores, match), "b_to_a": (scores.T, match.T)}
        return {
            name: triplet(*sides[name], self.margin, self.negatives, self.shape, self.reduction)
            for name in self._sides()
        }

    def _sides(self) -> list[str]:
        return {"both": ["a_to_b", "b_to_a"], "a": ["a_to_b"], "b": ["b_to_a"]}[self.directions]

    def _from_vectors(self, pair: Pair) -> dict[str, Tensor]:
        """The same loss where scores are dot products: one matrix product to choose, none to learn.

        Only 2 N of the N² scores have a gradient, so they alone are computed again, as N·S products with a graph.
        Three times fewer matrix products than a backward pass through the whole matrix.
        """
        a, b = _wide(pair.similarity.query(pair.a)), _wide(pair.similarity.keys(pair.b))  # (N, S)
        random = self.negatives == "random"
        scores = None if random else a.detach() @ b.detach().T
        positive = (a * b).sum(dim=1)
        terms = {}
        for name in self._sides():
            forth = name == "a_to_b"
            anchors, others, match = (a, b, pair.match) if forth else (b, a, pair.match.T)
            if scores is None:
                chosen = draw(match)
            else:
                chosen = mine(scores if forth else scores.T, match, semi_hard=self.negatives == "semi_hard")
            negative = (anchors * others[chosen.clamp(min=0)]).sum(dim=1)
            losses = _shaped(positive, negative, self.margin, self.shape).masked_fill(chosen < 0, 0.0)
            terms[name] = _reduce(losses, self.reduction)
        return terms


def _all(scores: Tensor, match: Tensor, margin: float, shape: Shape) -> Tensor:
    """Sum over every wrong answer of each row: (N,)."""
    positive = scores.diagonal()[:, None]
    if shape == "hinge":  # in place: one (N, N) buffer instead of four; masked before relu, so its gradient is 0
        return (scores - (positive - margin)).masked_fill_(match, -1.0).relu_().sum(dim=1)
    return _shaped(positive, scores, margin, shape).masked_fill(match, 0.0).sum(dim=1)


def _shaped(positive: Tensor, negative: Tensor, margin: float, shape: Shape) -> Tensor:
    """The loss of each triplet, after checks that cost O(N)."""
    if not torch.isfinite(positive).all() or not torch.isfinite(negative).all():
        raise InputError("scores: NaN or infinity among those of the triplets; lower the learning rate or the scale")
    if shape == "polynomial" and max(positive.abs().max(), negative.abs().max()) > 1.01:
        largest = max(float(positive.abs().max()), float(negative.abs().max()))
        raise InputError(f"scores: up to {largest:.3g}; shape = 'polynomial' needs scores in [-1, 1], such as cosine")
    return SHAPES[shape](positive, negative, margin)


def _reduce(losses: Tensor, reduction: Reduction) -> Tensor:
    return losses.mean() if reduction == "mean" else losses.sum()


def _wide(values: Tensor) -> Tensor:
    """Half precision as float32: a difference of two scores near 1 would keep two digits."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _check(scores: Tensor, match: Tensor) -> None:
    n = len(scores) if scores.dim() else 0
    if n == 0 or scores.shape != (n, n):
        raise InputError(f"scores is {tuple(scores.shape)}; need (N, N), row i belongs with column i")
    if match.shape != scores.shape or match.dtype != torch.bool or not match.diagonal().all():
        raise InputError(
            f"match is {tuple(match.shape)} {match.dtype}; need ({n}, {n}) torch.bool, True on the diagonal"
        )
    least, most = torch.aminmax(scores.detach())  # passes NaN on; no temporaries, unlike isfinite
    if not (torch.isfinite(least) and torch.isfinite(most)):
        raise InputError(f"scores: from {float(least)} to {float(most)}; need finite numbers")


def _check_impostors(impostors: Tensor, match: Tensor) -> None:
    n = len(match)
    if impostors.shape != (n,) or impostors.dtype != torch.long or impostors.min() < -1 or impostors.max() >= n:
        raise InputError(f"impostors: {tuple(impostors.shape)} {impostors.dtype}; need ({n},) int64 from -1 to {n - 1}")
    right = match.gather(1, impostors.clamp(min=0)[:, None]).squeeze(1) & (impostors >= 0)
    if right.any():
        row = int(right.nonzero()[0])
        raise InputError(f"impostors: row {row} has {int(impostors[row])}, which is a right answer (match)")
