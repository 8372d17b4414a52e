"""Which part of one item fits which part of the other, boiled down to one score."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from triptych.contracts import Features, Similarity
from triptych.errors import InputError, RecipeError, unknown

Kind = Literal["misa", "sisa", "sima"]


class Matchmap(Similarity):
    """Mean or best dot products of the parts of a (regions r) with the parts of b (frames t).

    M_rt = <a_r, b_t>   (raw, no normalisation), and over real parts only
    kind = sisa: s = mean_rt M_rt  |  misa: s = mean_t max_r M_rt  |  sima: s = mean_r max_t M_rt

    Source: Harwath et al. 2018 (DAVEnet), with a = image regions, b = speech frames; misa was their best.
    Use when: the parts should find each other: which frame of the sound names which region of the picture.
    Beware: misa and sima have roles: a is what is looked at, b what is listened to, so s(a, b) is not s(b, a). Ask
        forward(image, audio) in both directions of search and transpose. Lengths count: parts lie in free space.
        Index and shortlist use the mean parts, exact for sisa only; sisa sees nothing of single parts.
        Costs N · M · R · T · D products; `block` is how many entries of matchmaps are held at a time. Beside them
        stays one index a frame and pair for the gradient, which touches the winning part alone. Not twice
        differentiable.
    """

    def __init__(self, kind: Kind = "misa", block: int = 2**20) -> None:
        super().__init__()
        if kind not in get_args(Kind):
            raise RecipeError(f"matchmap: {unknown('kind', kind, get_args(Kind))}")
        if block < 1:
            raise RecipeError(f"matchmap: block = {block}; need at least 1 entry at a time")
        self.kind, self.block = kind, block
        self.exact = kind == "sisa"
        self.reads_parts = True

    def forward(self, a: Features, b: Features) -> Tensor:
        check_parts(a, b)
        if self.kind == "misa":
            scores = mean_of_best(b.parts, b.mask, a.parts, a.mask, self.block).T
        elif self.kind == "sima":
            scores = mean_of_best(a.parts, a.mask, b.parts, b.mask, self.block)
        else:
            scores = self.query(a) @ self.keys(b).T
        if not torch.isfinite(scores).all():
            raise InputError("scores: NaN or infinity in a part, or parts so long that products overflow")
        return scores  # (N, M)

    def heat(self, a: Features, b: Features) -> Tensor:
        check_parts(a, b)
        real = a.mask.unsqueeze(2) & b.mask.unsqueeze(1)
        return (a.parts @ b.parts.transpose(1, 2)).masked_fill(~real, 0)  # (N, R, T), M itself

    def query(self, a: Features) -> Tensor:
        return a.mean_part()  # (N, D)

    def keys(self, b: Features) -> Tensor:
        return b.mean_part()  # (M, D)


def check_parts(a: Features, b: Features) -> None:
    """Parts that are compared with each other must have one width."""
    if a.parts.shape[2] != b.parts.shape[2]:
        raise InputError(f"a.parts is {a.parts.shape[2]} wide and b.parts {b.parts.shape[2]}; need the same width")


def mean_of_best(
    seeking: Tensor, seeking_mask: Tensor, sought: Tensor, sought_mask: Tensor, block: int = 2**20
) -> Tensor:
    """For each part of x the best dot product with a part of y, and the mean of those: for all pairs of x and y.

    score(x, y) = mean_t max_r <x_t, y_r>, x from seeking (M, T, D), y from sought (N, R, D), masks True where real.
    Returns (M, N), in float32 at least. Holds `block` dot products at a time; padding of `seeking` costs nothing.
    """
    owner, place = seeking_mask.nonzero(as_tuple=True)  # (P,) real parts of all items of seeking, one after the other
    real = seeking.flatten(0, 1)  # (P, D)
    if len(owner) < len(real):
        real = real.index_select(0, owner * seeking.shape[1] + place)
    return _MeanOfBest.apply(real, owner, seeking_mask.sum(dim=1), sought, sought_mask, block)


class _MeanOfBest(torch.autograd.Function):
    """Forward by blocks of matrix products; backward by sums over the winners alone, R times less than dense."""

    @staticmethod
    def forward(
        ctx: Any, real: Tensor, owner: Tensor, count: Tensor, sought: Tensor, mask: Tensor, block: int
    ) -> Tensor:
        (n, regions, width), parts = sought.shape, len(real)
        items = max(1, int(math.sqrt(block) / regions))  # near-square blocks, in multiples of 8, multiply quickest
        items = max(1, min(n, items - items % 8 if items > 8 else items))
        rows = max(1, block // (items * regions))
        learns = any(ctx.needs_input_grad)
        hidden = None if bool(mask.all()) else ~mask
        total = torch.zeros(len(count), n, dtype=torch.promote_types(real.dtype, torch.float32), device=real.device)
        small = torch.int16 if regions < 2**15 else torch.int32
        winner = torch.empty(parts if learns else 0, n, dtype=small, device=real.device)
        for i in range(0, n, items):
            keys = sought[i : i + items].reshape(-1, width).T  # (D, items · R)
            for p in range(0, parts, rows):
                products = (real[p : p + rows] @ keys).view(-1, min(items, n - i), regions)
                if hidden is not None:
                    products.masked_fill_(hidden[i : i + items], -torch.inf)
                if learns:
                    best, at = products.max(dim=2)
                    winner[p : p + rows, i : i + items] = at
                else:
                    best = products.amax(dim=2)
                total[:, i : i + items].index_add_(0, owner[p : p + rows], best.to(total.dtype))
        ctx.save_for_backward(real, owner, count, sought, winner)
        ctx.block = block
        return total / count[:, None]

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]: the decorator hides the name of ctx
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs  # (M, N)
        real, owner, count, sought, winner = ctx.saved_tensors
        n, regions, width = sought.shape
        x, y = real.to(grad.dtype), sought.reshape(-1, width).to(grad.dtype)
        share = grad / count[:, None]  # (M, N), what each part of an item passes on
        first = torch.arange(n, device=real.device) * regions
        grad_x = torch.empty_like(x)
        grad_y = torch.zeros_like(y)
        rows = max(1, ctx.block // (4 * max(1, n)))  # some four arrays of this size live at once
        for p in range(0, len(x), rows):
            weight = share[owner[p : p + rows]]  # (rows, N)
            won = winner[p : p + rows] + first  # (rows, N), which row of y
            grad_x[p : p + rows] = F.embedding_bag(won, y, per_sample_weights=weight, mode="sum")
            # The same sum seen from y: sort the parts of x by whom they chose, then add up each one's choosers.
            order = winner[p : p + rows].T.argsort(dim=1, stable=True)  # (N, rows)
            wins = won.flatten().bincount(minlength=len(y))
            grad_y += F.embedding_bag(
                order.flatten(),
                x[p : p + rows],
                wins.cumsum(0) - wins,
                per_sample_weights=weight.T.gather(1, order).flatten(),
                mode="sum",
            )
        return grad_x.to(real.dtype), None, None, grad_y.view_as(sought).to(sought.dtype), None, None
