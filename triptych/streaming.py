"""Exact reductions over the logits scale · query @ keys.T, computed in tiles of block_size × block_size.

`log_sum_exps` is for softmax objectives and transport, `softplus_sum` is for the sigmoid objective. Both functions
define their own backward pass. The (N, M) logits are never stored, so the forward and the backward pass need
O(N · block_size) memory. Matrix products dominate the run time. In forward and backward together, `log_sum_exps`
computes four matrix products, and `softplus_sum` computes three.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from triptych.errors import InputError
from triptych.interfaces import Pair

DEFAULT_BLOCK_SIZE = 2048  # rows and columns of a tile, which takes 16 MB in float32
LOG2E = math.log2(math.e)  # converts logits to base 2, because exp2 takes half the time of exp on a CPU
MAX_LOG2 = {torch.float32: 100.0, torch.float64: 900.0}  # the largest base-2 exponent in the fast path
Groups = tuple[Tensor, Tensor] | None  # the group ids of the rows and of the columns
Tiles = Iterator[tuple[slice, slice, Tensor]]  # the rows, columns and entries of each tile


def log_sum_exps(
    query: Tensor,  # (N, S)
    keys: Tensor,  # (M, S)
    scale: Tensor | float = 1.0,
    row_bias: Tensor | None = None,  # (N,)
    column_bias: Tensor | None = None,  # (M,)
    excluded_groups: Groups = None,
    include_diagonal: bool = True,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp of each row and of each column of the logits, without storing the logits.

    logit_ij = scale · <query_i, keys_j> + row_bias_i + column_bias_j
    row_i = log Σ_j e^logit_ij   (N,)      column_j = log Σ_i e^logit_ij   (M,)

    excluded_groups contains group ids of rows (N,) and columns (M,). Entries i ≠ j with equal group ids are excluded.
    include_diagonal = False excludes the entries i = j.
    The log-sum-exp of a row or column without included entries is -inf, with gradient 0.

    Use when: the (N, M) logits do not fit in memory, or several passes over the logits are too slow.
    Beware: the result is differentiable once, with respect to every tensor. bfloat16 and float16 inputs give float32
    outputs.
    """
    _check_inputs(query, keys, block_size, excluded_groups)
    row_bias = query.new_zeros(len(query)) if row_bias is None else row_bias
    column_bias = keys.new_zeros(len(keys)) if column_bias is None else column_bias
    for name, bias, length in (("row_bias", row_bias, len(query)), ("column_bias", column_bias, len(keys))):
        if bias.shape != (length,) or not torch.isfinite(bias).all():
            raise InputError(f"{name} is {tuple(bias.shape)}; need ({length},), all finite")
    mask = _Mask(excluded_groups, include_diagonal)
    return _LogSumExps.apply(query, keys, _to_scalar(scale, query), row_bias, column_bias, mask, block_size)


def softplus_sum(
    query: Tensor,  # (N, S)
    keys: Tensor,  # (M, S)
    scale: Tensor | float = 1.0,
    bias: Tensor | float = 0.0,
    groups: Groups = None,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> Tensor:
    """Return the sum over all pairs of -log sigmoid(z · logit), without storing the logits.

    Σ_ij log(1 + e^(-z_ij · logit_ij)),  logit_ij = scale · <query_i, keys_j> + bias
    z_ij = +1 if row i and column j have the same group id, else -1. Without `groups`, every z_ij is -1.

    Use when: the (N, M) logits do not fit in memory. The gradient is computed in the forward pass.
    Beware: the result is differentiable once. bfloat16 and float16 inputs give float32 outputs.
    """
    _check_inputs(query, keys, block_size, groups)
    scale, bias = _to_scalar(scale, query), _to_scalar(bias, query)
    return _SoftplusSum.apply(query, keys, scale, bias, groups, block_size, torch.is_grad_enabled())


def compute_streaming_inputs(pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inputs of the kernels for a pair: query vectors (N, S), key vectors (N, S) and group ids (N,)."""
    if not pair.similarity.is_exact:
        name = type(pair.similarity).__name__
        raise InputError(f"{name} is not exact, so its scores cannot be streamed; set stream_block = 0")
    return pair.similarity.query(pair.a), pair.similarity.keys(pair.b), pair.group


def check_factors(query: Tensor, keys: Tensor, block_size: int) -> None:
    """Raise InputError unless query is (N, S), keys is (M, S), all numbers are finite, and block_size is positive."""
    if query.dim() != 2 or keys.dim() != 2 or query.shape[1] != keys.shape[1] or 0 in (len(query), len(keys)):
        raise InputError(f"query {tuple(query.shape)}, keys {tuple(keys.shape)}; need (N, S) and (M, S), none empty")
    if block_size < 1:
        raise InputError(f"block_size = {block_size}; need 1 or more")
    for name, tensor in (("query", query), ("keys", keys)):
        if not torch.isfinite(tensor).all():
            raise InputError(f"{name} contains NaN or infinity")


def _check_inputs(query: Tensor, keys: Tensor, block_size: int, groups: Groups) -> None:
    check_factors(query, keys, block_size)
    if query.dtype != keys.dtype or not query.is_floating_point():
        raise InputError(f"query is {query.dtype} and keys {keys.dtype}; need the same floating-point type")
    if groups is not None and (groups[0].shape, groups[1].shape) != ((len(query),), (len(keys),)):
        shapes = f"{tuple(groups[0].shape)} and {tuple(groups[1].shape)}"
        raise InputError(f"groups are {shapes}; need ({len(query)},) and ({len(keys)},)")


class _Mask:
    """The entries of the logits that are excluded from the sums."""

    def __init__(self, groups: Groups, include_diagonal: bool) -> None:
        self.groups, self.include_diagonal = groups, include_diagonal

    def fill(self, tile: Tensor, rows: slice, columns: slice, value: float) -> None:
        """Write the value to every excluded entry of the tile."""
        has_diagonal = max(rows.start, columns.start) < min(
            rows.stop, columns.stop
        )  # True: the tile has an entry i = j
        diagonal = tile.diagonal(rows.start - columns.start) if has_diagonal else None
        saved_diagonal = diagonal.clone() if diagonal is not None and self.include_diagonal else None
        same_group = _same_group_mask(self.groups, rows, columns)
        if same_group is not None:
            tile.masked_fill_(same_group, value)
        if diagonal is not None:
            diagonal.fill_(value) if saved_diagonal is None else diagonal.copy_(saved_diagonal)


def _same_group_mask(groups: Groups, rows: slice, columns: slice) -> Tensor | None:
    """Return the mask of the tile's entries whose row and column have the same group; None if no entry has."""
    if groups is None:
        return None
    row_groups, column_groups = groups[0][rows], groups[1][columns]
    return row_groups[:, None] == column_groups if bool(torch.isin(row_groups, column_groups).any()) else None


def _iter_slices(length: int, block_size: int) -> Iterator[slice]:
    for start in range(0, length, block_size):
        yield slice(start, min(start + block_size, length))


class _Tiles:
    """Tiles of scale · left @ right.T. All tiles share one buffer, so each tile overwrites the tile before it."""

    def __init__(self, left: Tensor, right: Tensor, scale: Tensor, block_size: int) -> None:
        self.left, self.right, self.scale, self.block_size = left, right, scale, block_size
        self._buffer = left.new_empty(min(block_size, len(left)) * min(block_size, len(right)))

    @cached_property
    def _spare_buffer(self) -> Tensor:
        return torch.empty_like(self._buffer)

    def spare_tile(self, like: Tensor) -> Tensor:
        """Return a second buffer with the shape of a tile."""
        return self._spare_buffer[: like.numel()].view(like.shape)

    def __iter__(self) -> Tiles:
        for rows in _iter_slices(len(self.left), self.block_size):
            scaled_rows = self.left[rows] * self.scale  # scales per tile, to avoid a scaled copy of all rows
            for columns in _iter_slices(len(self.right), self.block_size):
                shape = rows.stop - rows.start, columns.stop - columns.start
                tile = self._buffer[: shape[0] * shape[1]].view(shape)
                torch.mm(scaled_rows, self.right[columns].T, out=tile)
                yield rows, columns, tile


def _to_compute_dtype(*tensors: Tensor) -> list[Tensor]:
    """Cast all tensors to float64 if the first tensor is float64, otherwise to float32."""
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    return [tensor.detach().to(dtype).contiguous() for tensor in tensors]


def _to_scalar(value: Tensor | float, query: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value.reshape(())
    return query.new_tensor(value, dtype=torch.promote_types(query.dtype, torch.float32))


class _LogSumExps(torch.autograd.Function):
    """Compute log-sum-exps by the fast path, or by the stable path if underflow makes the fast sums inaccurate."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, scale: Tensor, row: Tensor, column: Tensor, mask: _Mask, block_size: int
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(query.device.type, enabled=False):
            q, k, factor, *biases = _to_compute_dtype(query, keys, scale, row, column)
            has_constant_biases = all(bool((bias == bias[0]).all()) for bias in biases)
            bound = abs(factor.item()) * LOG2E * _max_norm(q) * _max_norm(k)
            if not math.isfinite(bound):
                raise InputError(f"scale · |query| · |keys| is {bound}: too large for {q.dtype}, or scale is NaN")
            max_log2 = MAX_LOG2[q.dtype] if has_constant_biases else MAX_LOG2[q.dtype] / 3
            shift, sums = max(0.0, bound - max_log2), []
            if shift < 3 * max_log2:  # for larger shifts, the fast path would underflow
                sums = _fast_exp_sums(_Tiles(q, k, factor * LOG2E, block_size), biases, mask, shift)
            ctx.is_fast = bool(sums) and _is_accurate(sums, shift, bound, has_constant_biases)
            if ctx.is_fast:
                lses = [
                    total.log() + (shift / LOG2E + other_bias.max()) + side_bias
                    for total, side_bias, other_bias in zip(sums, biases, biases[::-1], strict=True)
                ]
            else:
                sums = lses = _stable_log_sum_exps(_Tiles(q, k, factor, block_size), biases, mask)
        ctx.save_for_backward(query, keys, scale, row, column, *sums)
        ctx.mask, ctx.block_size, ctx.shift = mask, block_size, shift
        return lses[0], lses[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        row_grad, column_grad = grad_outputs
        *inputs, row, column = ctx.saved_tensors
        with torch.autocast(inputs[0].device.type, enabled=False):
            q, k, factor, *biases = _to_compute_dtype(*inputs)
            # Gradients are normalised, because tiny gradients divided by huge sums would underflow.
            max_grad = max(float(row_grad.abs().max()), float(column_grad.abs().max())) or 1.0
            grads = [row_grad / max_grad, column_grad / max_grad]
            tiles = _Tiles(q, k, factor * (LOG2E if ctx.is_fast else 1.0), ctx.block_size)
            if ctx.is_fast:
                grad_tiles = _fast_gradient_tiles(tiles, grads, (row, column), biases, ctx.mask, ctx.shift)
            else:
                grad_tiles = _stable_gradient_tiles(tiles, grads, (row, column), biases, ctx.mask)
            has_biases = any(ctx.needs_input_grad[3:5])
            d_query, d_keys, d_row, d_column = _accumulate_gradients(tiles, grad_tiles, has_biases)
            d_scale = _inner_product(q, d_query) * max_grad
            d_query.mul_(factor * max_grad)
            d_keys.mul_(factor * max_grad)
        gradients = d_query, d_keys, d_scale, d_row * max_grad, d_column * max_grad
        return *(x.to(like.dtype) for x, like in zip(gradients, inputs, strict=True)), None, None


def _max_norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dim=1).max())


def _inner_product(x: Tensor, y: Tensor) -> Tensor:
    return torch.einsum("ns,ns->n", x, y).sum()  # einsum does not store the product x · y


def _fast_exp_sums(tiles: _Tiles, biases: list[Tensor], mask: _Mask, shift: float) -> list[Tensor]:
    """Return Σ_j 2^(logit_ij - shift) e^(column_bias_j - max) and the sum over i, with one exponential per entry."""
    weights = [(bias - bias.max()).exp() for bias in biases]
    row, column = torch.zeros_like(weights[0]), torch.zeros_like(weights[1])
    for rows, columns, tile in tiles:
        (tile.sub_(shift) if shift else tile).exp2_()
        mask.fill(tile, rows, columns, 0.0)
        row[rows].addmv_(tile, weights[1][columns])
        column[columns].addmv_(tile.T, weights[0][rows])
    return [row, column]


def _is_accurate(sums: list[Tensor], shift: float, bound: float, has_constant_biases: bool) -> bool:
    """Return whether underflow is negligible in every sum.

    The error of an underflowed exponential is below finfo.tiny. The error of an underflowed weight exp(bias - max) is
    below finfo.tiny times the largest exponential.
    """
    finfo = torch.finfo(sums[0].dtype)
    max_underflow = finfo.tiny * (1.0 if has_constant_biases else 1.0 + 2.0 ** (bound - shift))
    return all(float(total.min()) > max_underflow * sum(map(len, sums)) / finfo.eps for total in sums)


def _fast_gradient_tiles(
    tiles: _Tiles, grads: list[Tensor], sums: tuple[Tensor, Tensor], biases: list[Tensor], mask: _Mask, shift: float
) -> Tiles:
    """Yield g_i · P^row_ij + h_j · P^column_ij: the recomputed exponential times a rank-two factor."""
    weights = [(bias - bias.max()).exp() for bias in biases]
    outer = torch.stack([grads[0] / sums[0], weights[0]], dim=1)  # (N, 2)
    inner = torch.stack([weights[1], grads[1] / sums[1]])  # (2, M)
    for rows, columns, tile in tiles:
        (tile.sub_(shift) if shift else tile).exp2_()
        mask.fill(tile, rows, columns, 0.0)
        tile.mul_(torch.mm(outer[rows], inner[:, columns], out=tiles.spare_tile(tile)))
        yield rows, columns, tile


def _iter_logit_tiles(tiles: _Tiles, biases: list[Tensor], mask: _Mask) -> Tiles:
    for rows, columns, tile in tiles:
        tile.add_(biases[0][rows][:, None]).add_(biases[1][columns])
        mask.fill(tile, rows, columns, -math.inf)
        yield rows, columns, tile


def _stable_log_sum_exps(tiles: _Tiles, biases: list[Tensor], mask: _Mask) -> list[Tensor]:
    """Compute log-sum-exps for any range of logits; this path is slower, because tiles need row and column maxima."""
    row, column = (torch.full_like(bias, -math.inf) for bias in biases)
    for rows, columns, tile in _iter_logit_tiles(tiles, biases, mask):
        torch.logaddexp(row[rows], tile.logsumexp(1), out=row[rows])
        torch.logaddexp(column[columns], tile.logsumexp(0), out=column[columns])
    return [row, column]


def _stable_gradient_tiles(
    tiles: _Tiles, grads: list[Tensor], lses: tuple[Tensor, Tensor], biases: list[Tensor], mask: _Mask
) -> Tiles:
    """Yield the tiles of `_fast_gradient_tiles`, computed with one exponential per direction."""
    row, column = (lse.masked_fill(lse == -math.inf, 0.0) for lse in lses)  # avoids -inf - -inf
    for rows, columns, tile in _iter_logit_tiles(tiles, biases, mask):
        by_row = torch.sub(tile, row[rows][:, None], out=tiles.spare_tile(tile)).exp_().mul_(grads[0][rows][:, None])
        tile.sub_(column[columns]).exp_().mul_(grads[1][columns]).add_(by_row)
        yield rows, columns, tile


def _accumulate_gradients(
    tiles: _Tiles, gradient_tiles: Tiles, with_sums: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return G @ right, G.T @ left, the row sums and the column sums of a gradient G; sums are 0 if not requested."""
    d_left, d_right = torch.zeros_like(tiles.left), torch.zeros_like(tiles.right)
    by_row, by_column = (x.new_zeros(len(x)) for x in (tiles.left, tiles.right))
    for rows, columns, tile in gradient_tiles:
        d_left[rows].addmm_(tile, tiles.right[columns])
        d_right[columns].addmm_(tile.T, tiles.left[rows])
        if with_sums:
            by_row[rows] += tile.sum(1)
            by_column[columns] += tile.sum(0)
    return d_left, d_right, by_row, by_column


class _SoftplusSum(torch.autograd.Function):
    """The sum of softplus terms and its gradient, both computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, scale: Tensor, bias: Tensor, groups: Groups, size: int, needs_grad: bool
    ) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            q, k, factor = _to_compute_dtype(query, keys, scale)
            tiles = _Tiles(q, k, factor, size)
            total, d_bias = (q.new_zeros((), dtype=torch.float64) for _ in range(2))
            gradient_tiles = _sigmoid_gradient_tiles(tiles, float(bias.detach()), groups, total, d_bias)
            if needs_grad and any(ctx.needs_input_grad[:4]):
                d_query, d_keys, _, _ = _accumulate_gradients(tiles, gradient_tiles)
                d_scale = _inner_product(q, d_query)
                d_query.mul_(factor)
                d_keys.mul_(factor)
                pairs = (d_query, query), (d_keys, keys), (d_scale, scale), (d_bias, bias)
                ctx.save_for_backward(*(gradient.to(tensor.dtype) for gradient, tensor in pairs))
            else:
                for _ in gradient_tiles:
                    pass
        if not torch.isfinite(total):
            raise InputError(f"scale = {scale.item()}, bias = {bias.item()}: the logits do not fit into {q.dtype}")
        return total.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return *(gradient * grad_outputs[0].to(gradient.dtype) for gradient in ctx.saved_tensors), None, None, None


def _sigmoid_gradient_tiles(tiles: _Tiles, bias: float, groups: Groups, total: Tensor, d_bias: Tensor) -> Tiles:
    """Yield the derivative of softplus(-z · logit) for each tile; add the tile's sums to `total` and `d_bias`."""
    zero = total.new_zeros((), dtype=tiles.left.dtype)
    for rows, columns, tile in tiles:
        tile.add_(bias)
        same_group = _same_group_mask(groups, rows, columns)
        if same_group is not None:
            torch.where(same_group, -tile, tile, out=tile)
        buffer = tiles.spare_tile(tile)
        if float(tile.max()) < 1.0:
            # In this range, -log(1 - sigmoid) is accurate and takes half the time of softplus.
            total -= torch.neg(tile.sigmoid_(), out=buffer).log1p_().sum()
        else:
            # F.softplus returns x for x > 20, which is not accurate enough for float64.
            total += torch.logaddexp(tile, zero, out=buffer).sum()
            tile.sigmoid_()
        if same_group is not None:
            torch.where(same_group, -tile, tile, out=tile)
        d_bias += tile.sum()
        yield rows, columns, tile
