"""Sums over scale · query @ keys.T tile by tile: exact, in O(N · block) memory, forward and backward.

Two kernels, each with its own backward: `log_sum_exps` (softmax objectives, transport) and `softplus_sum` (the sigmoid
objective). The (N, M) matrix never exists. A tile is block × block numbers that stay in the cache; what costs time is
the matrix products, so each kernel does as few of them as can be (four and three) and few passes over a tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from triptych.contracts import Pair
from triptych.errors import InputError

BLOCK = 2048  # a float32 tile is 16 MB, and two are needed; smaller tiles were no quicker at N = 8192
LOG2E = math.log2(math.e)  # exp2 costs half of exp on a CPU, so logits are kept in powers of two
HIGHEST = {torch.float32: 100.0, torch.float64: 900.0}  # log2 of the largest exponential the quick way allows
Groups = tuple[Tensor, Tensor]


def log_sum_exps(
    query: Tensor,  # (N, S)
    keys: Tensor,  # (M, S)
    scale: Tensor | float = 1.0,
    row_bias: Tensor | None = None,  # (N,)
    column_bias: Tensor | None = None,  # (M,)
    left_out: Groups | None = None,
    diagonal: bool = True,
    block: int = BLOCK,
) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of every row and of every column of the logits, without the logits.

    logit_ij = scale · <query_i, keys_j> + row_bias_i + column_bias_j
    row_i = log Σ_j e^logit_ij   (N,)      column_j = log Σ_i e^logit_ij   (M,)

    left_out: group ids (N,) and (M,); entries i ≠ j of one group do not count. diagonal: whether entries i = j do.
    A row or column in which nothing counts is -inf, and its gradient is 0.

    Use when: N · M numbers are too many, or too slow to read and write several times.
    Beware: differentiable once, in every tensor given. bfloat16 and half are worked on, and answered, in float32.
    """
    _check(query, keys, block, left_out)
    row_bias = query.new_zeros(len(query)) if row_bias is None else row_bias
    column_bias = keys.new_zeros(len(keys)) if column_bias is None else column_bias
    for name, bias, length in (("row_bias", row_bias, len(query)), ("column_bias", column_bias, len(keys))):
        if bias.shape != (length,) or not torch.isfinite(bias).all():
            raise InputError(f"{name} is {tuple(bias.shape)}; need ({length},), all finite")
    left = _Left(left_out, diagonal)
    return _LogSumExps.apply(query, keys, _scalar(scale, query), row_bias, column_bias, left, block)


def softplus_sum(
    query: Tensor,  # (N, S)
    keys: Tensor,  # (M, S)
    scale: Tensor | float = 1.0,
    bias: Tensor | float = 0.0,
    groups: Groups | None = None,
    block: int = BLOCK,
) -> Tensor:
    """Sum over all pairs of -log sigmoid(z · logit), without the logits.

    Σ_ij log(1 + e^(-z_ij · logit_ij)),  logit_ij = scale · <query_i, keys_j> + bias
    z_ij = +1 where row i and column j share a group (ids (N,) and (M,)), else -1; without groups all are -1.

    Use when: as for log_sum_exps. The gradient is made on the way forward, where the tile is at hand: three products.
    Beware: differentiable once. bfloat16 and half are worked on, and answered, in float32.
    """
    _check(query, keys, block, groups)
    scale, bias = _scalar(scale, query), _scalar(bias, query)
    return _SoftplusSum.apply(query, keys, scale, bias, groups, block, torch.is_grad_enabled())


def streamable(pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
    """Query (N, S), keys (N, S) and group ids (N,) of a pair: what the kernels need of it."""
    if not pair.similarity.exact:
        name = type(pair.similarity).__name__
        raise InputError(f"{name} is not exact: its scores are not query @ keys.T and can't be streamed; set block = 0")
    return pair.similarity.query(pair.a), pair.similarity.keys(pair.b), pair.group


def _check(query: Tensor, keys: Tensor, block: int, groups: Groups | None) -> None:
    if query.dim() != 2 or keys.dim() != 2 or query.shape[1] != keys.shape[1] or 0 in (len(query), len(keys)):
        raise InputError(f"query {tuple(query.shape)}, keys {tuple(keys.shape)}; need (N, S) and (M, S), none empty")
    if query.dtype != keys.dtype or not query.is_floating_point():
        raise InputError(f"query is {query.dtype} and keys {keys.dtype}; need one floating type")
    if block < 1:
        raise InputError(f"block = {block}; need 1 or more")
    for name, tensor in (("query", query), ("keys", keys)):
        if not torch.isfinite(tensor).all():
            raise InputError(f"{name} holds NaN or infinity")
    if groups is not None and (groups[0].shape, groups[1].shape) != ((len(query),), (len(keys),)):
        found = f"{tuple(groups[0].shape)} and {tuple(groups[1].shape)}"
        raise InputError(f"groups are {found}; need ({len(query)},) and ({len(keys)},)")


class _Left:
    """Which entries do not count, tile by tile."""

    def __init__(self, groups: Groups | None, diagonal: bool) -> None:
        self.groups, self.diagonal = groups, diagonal

    def blank(self, tile: Tensor, rows: slice, columns: slice, value: float) -> None:
        """Write the value over every entry of the tile that does not count."""
        own = tile.diagonal(rows.start - columns.start) if _crosses(rows, columns) else None
        kept = own.clone() if own is not None and self.diagonal else None
        same = _same(self.groups, rows, columns)
        if same is not None:
            tile.masked_fill_(same, value)
        if own is not None:
            own.fill_(value) if kept is None else own.copy_(kept)


def _crosses(rows: slice, columns: slice) -> bool:
    """Whether a tile holds a part of the diagonal i = j."""
    return max(rows.start, columns.start) < min(rows.stop, columns.stop)


def _same(groups: Groups | None, rows: slice, columns: slice) -> Tensor | None:
    """Where a tile's rows and columns share a group; None where they do nowhere, which is quick to see."""
    if groups is None:
        return None
    left, right = groups[0][rows], groups[1][columns]
    return left[:, None] == right if bool(torch.isin(left, right).any()) else None


def _slices(length: int, block: int) -> Iterator[slice]:
    for start in range(0, length, block):
        yield slice(start, min(start + block, length))


class _Tiles:
    """scale · left @ right.T as tiles, one after another in the same buffer: read a tile before taking the next."""

    def __init__(self, left: Tensor, right: Tensor, scale: Tensor, block: int) -> None:
        self.left, self.right, self.scale, self.block = left, right, scale, block
        self.first = self._room()
        self.second: Tensor | None = None

    def _room(self) -> Tensor:
        return self.left.new_empty(min(self.block, len(self.left)) * min(self.block, len(self.right)))

    def spare(self, like: Tensor) -> Tensor:
        """A second buffer of a tile's shape."""
        self.second = self._room() if self.second is None else self.second
        return self.second[: like.numel()].view(like.shape)

    def __iter__(self) -> Iterator[tuple[slice, slice, Tensor]]:
        for rows in _slices(len(self.left), self.block):
            left = self.left[rows] * self.scale  # here, and not for all rows: a copy of the queries is saved
            for columns in _slices(len(self.right), self.block):
                shape = rows.stop - rows.start, columns.stop - columns.start
                tile = self.first[: shape[0] * shape[1]].view(shape)
                torch.mm(left, self.right[columns].T, out=tile)
                yield rows, columns, tile


def _working(*tensors: Tensor) -> list[Tensor]:
    """The tensors in the type that is worked in: that of the first; float64 stays, all else becomes float32."""
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    return [tensor.detach().to(dtype).contiguous() for tensor in tensors]


def _scalar(number: Tensor | float, query: Tensor) -> Tensor:
    if isinstance(number, Tensor):
        return number.reshape(())
    return query.new_tensor(number, dtype=torch.promote_types(query.dtype, torch.float32))


class _LogSumExps(torch.autograd.Function):
    """The quick way where its sums keep all digits (seen afterwards), else the careful way."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        keys: Tensor,
        scale: Tensor,
        row_bias: Tensor,
        column_bias: Tensor,
        left: _Left,
        block: int,
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(query.device.type, enabled=False):
            q, k, factor, *biases = _working(query, keys, scale, row_bias, column_bias)
            plain = all(bool((bias == bias[0]).all()) for bias in biases)
            bound = abs(factor.item()) * LOG2E * _longest(q) * _longest(k)
            if not math.isfinite(bound):
                raise InputError(f"scale · |query| · |keys| is {bound}: too large for {q.dtype}, or scale is NaN")
            highest = HIGHEST[q.dtype] if plain else HIGHEST[q.dtype] / 3
            shift, sums = max(0.0, bound - highest), []
            if shift < 3 * highest:  # beyond, trying is a waste
                sums = _quick_sums(_Tiles(q, k, factor * LOG2E, block), biases, left, shift)
            ctx.quick = bool(sums) and _all_digits(sums, shift, bound, plain)
            if ctx.quick:
                lses = [
                    total.log() + (shift / LOG2E + other.max()) + own
                    for total, own, other in zip(sums, biases, biases[::-1], strict=True)
                ]
            else:
                sums = lses = _careful_lses(_Tiles(q, k, factor, block), biases, left)
        ctx.save_for_backward(query, keys, scale, row_bias, column_bias, *sums)
        ctx.left, ctx.block, ctx.shift = left, block, shift
        return lses[0], lses[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        row_grad, column_grad = grad_outputs
        query, keys, scale, row_bias, column_bias, row, column = ctx.saved_tensors
        with torch.autocast(query.device.type, enabled=False):
            q, k, factor, *biases = _working(query, keys, scale, row_bias, column_bias)
            # Divided by their largest, so that tiny gradients over huge sums do not fall below the smallest float.
            largest = max(float(row_grad.abs().max()), float(column_grad.abs().max())) or 1.0
            grads = [row_grad / largest, column_grad / largest]
            tiles = _Tiles(q, k, factor * (LOG2E if ctx.quick else 1.0), ctx.block)
            if ctx.quick:
                made = _quick_gradients(tiles, grads, (row, column), biases, ctx.left, ctx.shift)
            else:
                made = _careful_gradients(tiles, grads, (row, column), biases, ctx.left)
            d_query, d_keys, d_row, d_column = _collect(tiles, made, any(ctx.needs_input_grad[3:5]))
            d_scale = _inner(q, d_query) * largest
            d_query.mul_(factor * largest)
            d_keys.mul_(factor * largest)
        found = d_query, d_keys, d_scale, d_row * largest, d_column * largest
        inputs = query, keys, scale, row_bias, column_bias
        return *(x.to(like.dtype) for x, like in zip(found, inputs, strict=True)), None, None


def _longest(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dim=1).max())


def _inner(x: Tensor, y: Tensor) -> Tensor:
    """Σ x · y, without the product in memory."""
    return torch.einsum("ns,ns->n", x, y).sum()


def _quick_sums(tiles: _Tiles, biases: list[Tensor], left: _Left, shift: float) -> list[Tensor]:
    """Σ_j 2^(logit_ij - shift) e^(column_bias_j - its max) and the like over i: one exponential for both directions."""
    weights = [(bias - bias.max()).exp() for bias in biases]
    row, column = torch.zeros_like(weights[0]), torch.zeros_like(weights[1])
    for rows, columns, tile in tiles:
        _raise_two(tile, shift)
        left.blank(tile, rows, columns, 0.0)
        row[rows].addmv_(tile, weights[1][columns])
        column[columns].addmv_(tile.T, weights[0][rows])
    return [row, column]


def _raise_two(tile: Tensor, shift: float) -> None:
    if shift:
        tile.sub_(shift)
    tile.exp2_()


def _all_digits(sums: list[Tensor], shift: float, bound: float, plain: bool) -> bool:
    """Whether what fell below the smallest float is too little to matter in every sum.

    A lost exponential is less than tiny; a lost weight is less than tiny too, times the largest exponential.
    """
    number = torch.finfo(sums[0].dtype)
    lost = number.tiny * (1.0 if plain else 1.0 + 2.0 ** (bound - shift))
    return all(float(total.min()) > lost * sum(map(len, sums)) / number.eps for total in sums)


def _quick_gradients(
    tiles: _Tiles, grads: list[Tensor], sums: tuple[Tensor, Tensor], biases: list[Tensor], left: _Left, shift: float
) -> Iterator[tuple[slice, slice, Tensor]]:
    """g_i · P^row_ij + h_j · P^column_ij: the exponential again, times one rank-two factor."""
    weights = [(bias - bias.max()).exp() for bias in biases]
    outer = torch.stack([grads[0] / sums[0], weights[0]], dim=1)  # (N, 2)
    inner = torch.stack([weights[1], grads[1] / sums[1]])  # (2, M)
    for rows, columns, tile in tiles:
        _raise_two(tile, shift)
        left.blank(tile, rows, columns, 0.0)
        tile.mul_(torch.mm(outer[rows], inner[:, columns], out=tiles.spare(tile)))
        yield rows, columns, tile


def _logits(tiles: _Tiles, biases: list[Tensor], left: _Left) -> Iterator[tuple[slice, slice, Tensor]]:
    for rows, columns, tile in tiles:
        tile.add_(biases[0][rows][:, None]).add_(biases[1][columns])
        left.blank(tile, rows, columns, -math.inf)
        yield rows, columns, tile


def _careful_lses(tiles: _Tiles, biases: list[Tensor], left: _Left) -> list[Tensor]:
    """A maximum for each row and column of each tile: any range of logits, at the price of more passes."""
    row, column = (torch.full_like(bias, -math.inf) for bias in biases)
    for rows, columns, tile in _logits(tiles, biases, left):
        torch.logaddexp(row[rows], tile.logsumexp(1), out=row[rows])
        torch.logaddexp(column[columns], tile.logsumexp(0), out=column[columns])
    return [row, column]


def _careful_gradients(
    tiles: _Tiles, grads: list[Tensor], lses: tuple[Tensor, Tensor], biases: list[Tensor], left: _Left
) -> Iterator[tuple[slice, slice, Tensor]]:
    """As _quick_gradients, with one exponential for each direction."""
    row, column = (
        lse.masked_fill(lse == -math.inf, 0.0) for lse in lses
    )  # all its logits are -inf: any number will do
    for rows, columns, tile in _logits(tiles, biases, left):
        by_row = torch.sub(tile, row[rows][:, None], out=tiles.spare(tile)).exp_().mul_(grads[0][rows][:, None])
        tile.sub_(column[columns]).exp_().mul_(grads[1][columns]).add_(by_row)
        yield rows, columns, tile


def _collect(
    tiles: _Tiles, made: Iterator[tuple[slice, slice, Tensor]], sums: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From tiles of a gradient G: G @ right, G.T @ left, and where they are wanted G's row and column sums (else 0)."""
    d_left, d_right = torch.zeros_like(tiles.left), torch.zeros_like(tiles.right)
    by_row, by_column = (x.new_zeros(len(x)) for x in (tiles.left, tiles.right))
    for rows, columns, tile in made:
        d_left[rows].addmm_(tile, tiles.right[columns])
        d_right[columns].addmm_(tile.T, tiles.left[rows])
        if sums:
            by_row[rows] += tile.sum(1)
            by_column[columns] += tile.sum(0)
    return d_left, d_right, by_row, by_column


class _SoftplusSum(torch.autograd.Function):
    """The sum, and its gradient at the same time: it depends on each logit alone."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        keys: Tensor,
        scale: Tensor,
        bias: Tensor,
        groups: Groups | None,
        block: int,
        grad: bool,
    ) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            q, k, factor = _working(query, keys, scale)
            tiles = _Tiles(q, k, factor, block)
            total, d_bias = q.new_zeros((), dtype=torch.float64), q.new_zeros((), dtype=torch.float64)
            made = _sigmoids(tiles, float(bias.detach()), groups, total, d_bias)
            if grad and any(ctx.needs_input_grad[:4]):
                d_query, d_keys, _, _ = _collect(tiles, made)
                d_scale = _inner(q, d_query)
                d_query.mul_(factor)
                d_keys.mul_(factor)
                ctx.save_for_backward(
                    d_query.to(query.dtype), d_keys.to(keys.dtype), d_scale.to(scale.dtype), d_bias.to(bias.dtype)
                )
            else:
                for _ in made:
                    pass
        if not torch.isfinite(total):
            raise InputError(f"scale = {scale.item()}, bias = {bias.item()}: the logits do not fit into {q.dtype}")
        return total.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return *(made * grad_outputs[0].to(made.dtype) for made in ctx.saved_tensors), None, None, None


def _sigmoids(
    tiles: _Tiles, bias: float, groups: Groups | None, total: Tensor, d_bias: Tensor
) -> Iterator[tuple[slice, slice, Tensor]]:
    """d/dlogit of each tile's softplus(-z · logit); adds the tile's sums to total and d_bias."""
    zero = total.new_zeros((), dtype=tiles.left.dtype)
    for rows, columns, tile in tiles:
        tile.add_(bias)
        right = _same(groups, rows, columns)
        if right is not None:
            torch.where(right, -tile, tile, out=tile)
        spare = tiles.spare(tile)
        if float(tile.max()) < 1.0:
            # -log(1 - sigmoid) has all its digits here, and costs half of softplus.
            total -= torch.neg(tile.sigmoid_(), out=spare).log1p_().sum()
        else:
            # softplus, without its threshold of 20 above which it answers x: too low for float64.
            total += torch.logaddexp(tile, zero, out=spare).sum()
            tile.sigmoid_()
        if right is not None:
            torch.where(right, -tile, tile, out=tile)
        d_bias += tile.sum()
        yield rows, columns, tile
