"""Matchmap similarities: the dot products of all pairs of parts, reduced to one score."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from triptych.errors import InputError, RecipeError, describe_unknown
from triptych.interfaces import Features, Similarity

MatchmapReduction = Literal["misa", "sisa", "sima"]


class Matchmap(Similarity):
    """Mean or maximum of the dot products of the parts of item `a` (regions r) with the parts of item `b` (frames t).

    M_rt = <a_r, b_t>   (not normalised), without padding
    reduction = sisa: s = mean_rt M_rt  |  misa: s = mean_t max_r M_rt  |  sima: s = mean_r max_t M_rt

    Args:
        reduction: "sisa", "misa" or "sima".
        block_size: the number of matchmap entries in memory at a time.

    Example:
        >>> import torch
        >>> from triptych.losses import InfoNCE, Matchmap
        >>> regions, frames = torch.eye(3).unsqueeze(1), torch.eye(3).unsqueeze(1)  # (N, L, D), with L = 1
        >>> mask = torch.ones(3, 1, dtype=torch.bool)
        >>> loss = InfoNCE(temperature=0.5)(regions, frames, similarity=Matchmap(), a_mask=mask, b_mask=mask)
        >>> print(f"{loss:.4f}")
        0.2395

    Source: Harwath et al. 2018 (DAVEnet), with a = image regions, b = speech frames; misa gave their best results.
    Use when: you want to learn which audio frame names which image region, without labels of frames or regions.
    Beware: misa and sima are not symmetric, so argument `a` must be the images and argument `b` the audio. To search
        images by audio, transpose the result. Part vectors are not normalised, so their norms affect the score. The
        search index stores mean part vectors, which give exact scores for sisa only. The cost is N · M · R · T · D
        multiplications. The gradient of a maximum reaches only the best part, whose index is stored for every frame and
        pair of items. Not twice differentiable.
    """

    def __init__(self, reduction: MatchmapReduction = "misa", block_size: int = 2**20) -> None:
        super().__init__()
        if reduction not in get_args(MatchmapReduction):
            raise RecipeError(f"matchmap: {describe_unknown('reduction', reduction, get_args(MatchmapReduction))}")
        if block_size < 1:
            raise RecipeError(f"matchmap: block_size = {block_size}; need at least 1")
        self.reduction, self.block_size = reduction, block_size
        self.is_exact = reduction == "sisa"
        self.reads_parts = True

    def forward(self, a: Features, b: Features) -> Tensor:
        check_part_dims(a, b)
        if self.reduction == "misa":
            scores = mean_max_similarity(b.parts, b.mask, a.parts, a.mask, self.block_size).T
        elif self.reduction == "sima":
            scores = mean_max_similarity(a.parts, a.mask, b.parts, b.mask, self.block_size)
        else:
            scores = self.query(a) @ self.keys(b).T
        if not torch.isfinite(scores).all():
            raise InputError("scores: NaN or infinity in a part, or norms so large that products overflow")
        return scores  # (N, M)

    def attribution(self, a: Features, b: Features) -> Tensor:
        check_part_dims(a, b)
        pair_mask = a.mask.unsqueeze(2) & b.mask.unsqueeze(1)
        return (a.parts @ b.parts.transpose(1, 2)).masked_fill(~pair_mask, 0)  # (N, R, T): the matchmap

    def query(self, a: Features) -> Tensor:
        return a.mean_pool()  # (N, D)

    def keys(self, b: Features) -> Tensor:
        return b.mean_pool()  # (M, D)


def check_part_dims(a: Features, b: Features) -> None:
    """Raise InputError unless the part vectors of `a` and `b` have the same dimension."""
    if a.parts.shape[2] != b.parts.shape[2]:
        raise InputError(f"a.parts have {a.parts.shape[2]} dimensions and b.parts {b.parts.shape[2]}; need the same")


def mean_max_similarity(
    query_parts: Tensor, query_mask: Tensor, key_parts: Tensor, key_mask: Tensor, block_size: int = 2**20
) -> Tensor:
    """For each query and key: return the mean over query parts of the largest dot product with a part of the key.

    score(x, y) = mean_t max_r <x_t, y_r>, x in query_parts (M, T, D), y in key_parts (N, R, D); masks: False = padding.
    Returns (M, N), at least float32. Computes `block_size` dot products at a time; padded query parts are skipped.
    """
    item_index, part_index = query_mask.nonzero(as_tuple=True)  # (P,), the parts that are not padding
    flat_parts = query_parts.flatten(0, 1)  # (P, D)
    if len(item_index) < len(flat_parts):
        flat_parts = flat_parts.index_select(0, item_index * query_parts.shape[1] + part_index)
    return _MeanMaxSimilarity.apply(flat_parts, item_index, query_mask.sum(dim=1), key_parts, key_mask, block_size)


class _MeanMaxSimilarity(torch.autograd.Function):
    """Forward multiplies matrices in blocks. Backward sums over the best parts only, which are R times fewer terms."""

    @staticmethod
    def forward(
        ctx: Any,
        flat_parts: Tensor,
        item_index: Tensor,
        part_counts: Tensor,
        key_parts: Tensor,
        key_mask: Tensor,
        block_size: int,
    ) -> Tensor:
        (n, regions, dim), num_parts = key_parts.shape, len(flat_parts)
        items = max(1, int(math.sqrt(block_size) / regions))  # nearly square blocks are fastest
        items = max(1, min(n, items - items % 8 if items > 8 else items))
        rows = max(1, block_size // (items * regions))
        needs_grad = any(ctx.needs_input_grad)
        padding = None if bool(key_mask.all()) else ~key_mask
        score_dtype = torch.promote_types(flat_parts.dtype, torch.float32)
        total = torch.zeros(len(part_counts), n, dtype=score_dtype, device=flat_parts.device)
        index_dtype = torch.int16 if regions < 2**15 else torch.int32
        argmax = torch.empty(num_parts if needs_grad else 0, n, dtype=index_dtype, device=flat_parts.device)
        for i in range(0, n, items):
            keys = key_parts[i : i + items].reshape(-1, dim).T  # (D, items · R)
            for p in range(0, num_parts, rows):
                products = (flat_parts[p : p + rows] @ keys).view(-1, min(items, n - i), regions)
                if padding is not None:
                    products.masked_fill_(padding[i : i + items], -torch.inf)
                if needs_grad:
                    best, best_region = products.max(dim=2)
                    argmax[p : p + rows, i : i + items] = best_region
                else:
                    best = products.amax(dim=2)
                total[:, i : i + items].index_add_(0, item_index[p : p + rows], best.to(total.dtype))
        ctx.save_for_backward(flat_parts, item_index, part_counts, key_parts, argmax)
        ctx.block_size = block_size
        return total / part_counts[:, None]

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]: the decorator hides the name of ctx
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs  # (M, N)
        flat_parts, item_index, part_counts, key_parts, argmax = ctx.saved_tensors
        n, regions, dim = key_parts.shape
        x, y = flat_parts.to(grad.dtype), key_parts.reshape(-1, dim).to(grad.dtype)
        part_grad = grad / part_counts[:, None]  # (M, N), the gradient of each part of an item
        item_offsets = torch.arange(n, device=flat_parts.device) * regions
        grad_x = torch.empty_like(x)
        grad_y = torch.zeros_like(y)
        rows = max(1, ctx.block_size // (4 * max(1, n)))  # four arrays of (rows, N) numbers are in memory at a time
        for p in range(0, len(x), rows):
            weight = part_grad[item_index[p : p + rows]]  # (rows, N)
            best_rows = argmax[p : p + rows] + item_offsets  # (rows, N), rows of y
            grad_x[p : p + rows] = F.embedding_bag(best_rows, y, per_sample_weights=weight, mode="sum")
            # The same sum for y: sort the parts of x by their best part of y, then sum each group.
            order = argmax[p : p + rows].T.argsort(dim=1, stable=True)  # (N, rows)
            win_counts = best_rows.flatten().bincount(minlength=len(y))
            grad_y += F.embedding_bag(
                order.flatten(),
                x[p : p + rows],
                win_counts.cumsum(0) - win_counts,
                per_sample_weights=weight.T.gather(1, order).flatten(),
                mode="sum",
            )
        return grad_x.to(flat_parts.dtype), None, None, grad_y.view_as(key_parts).to(key_parts.dtype), None, None
