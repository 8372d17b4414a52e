"""How well each word of a text finds the region it speaks of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from triptych.contracts import Features, Similarity
from triptych.errors import InputError, RecipeError
from triptych.similarities.matchmap import check_parts

CAPTIONS, BLOCK = 16, 2**19  # captions at a time, and how many (word, region) entries: what is held is a few blocks
SHORTEST = 1e-8  # the least product of lengths a cosine is divided by


class WordRegion(Similarity):
    """Each word of b looks at the regions of a that speak for it most; the score is how well it then fits, all in all.

    s_tr = <b_t, a_r>;   p_tr = softmax over words t of s_tr;   α_tr = softmax over regions r of attention · p_tr
    c_t = Σ_r α_tr a_r;   cos_t = <c_t, b_t> / max(|c_t| |b_t|, 1e-8);   R = log Σ_t exp(sharpness · cos_t)
    power = true: R / sharpness, which is log (Σ_t exp(sharpness · cos_t))^(1 / sharpness).

    Source: Xu et al. 2018 (AttnGAN), equations 7 to 10; attention = γ1, sharpness = γ2. Their code leaves out the
        power of equation 10, which only rescales the temperature of the objective (γ3): power = false does as it does.
    Use when: captions name things in the picture, and which word means which region matters.
    Beware: a and b have roles: a is looked at, b are the words, so s(a, b) is not s(b, a). Ask forward(image, text) in
        both directions of search and transpose. Longer captions score higher: log Σ grows with the words.
        Costs 2 · N · M · T · R · D products and twice that again for the gradient, which computes the attention anew
        rather than keep it. Index and shortlist use the cosine of the embeddings. Not twice differentiable.
    """

    exact = False
    reads_parts = True

    def __init__(self, attention: float = 4.0, sharpness: float = 5.0, power: bool = False) -> None:
        super().__init__()
        for name, value in (("attention", attention), ("sharpness", sharpness)):
            if not 0 < value < torch.inf:
                raise RecipeError(f"word_region: {name} = {value}; need a positive number")
        self.attention, self.sharpness, self.power = attention, sharpness, power

    def forward(self, a: Features, b: Features) -> Tensor:
        check_parts(a, b)
        scores = relevance(a.parts, a.mask, b.parts, b.mask, self.attention, self.sharpness)
        if not torch.isfinite(scores).all():
            raise InputError("scores: NaN or infinity in a part, or parts so long that products overflow")
        return scores / self.sharpness if self.power else scores  # (N, M)

    def heat(self, a: Features, b: Features) -> Tensor:
        # Not the attention itself: a region that no word fits may still draw much of it. A word's column sums to cos_t.
        weights, words = self.attention_maps(a, b), _clean(b.parts, b.mask)
        regions = _clean(a.parts, a.mask)
        lengths = torch.linalg.vector_norm(weights @ regions, dim=2) * torch.linalg.vector_norm(words, dim=2)
        shares = weights * (words @ regions.transpose(1, 2)) / lengths.clamp_min(SHORTEST).unsqueeze(2)
        return shares.transpose(1, 2)  # (N, R, T)

    def query(self, a: Features) -> Tensor:
        return F.normalize(a.embedding, dim=1)  # (N, D)

    def keys(self, b: Features) -> Tensor:
        return F.normalize(b.embedding, dim=1)  # (M, D)

    def attention_maps(self, a: Features, b: Features) -> Tensor:
        """Where each word of row i of b looks in row i of a: (N, T, R); a real word's row sums to 1, others are 0."""
        check_parts(a, b)
        regions, words = _clean(a.parts, a.mask), _clean(b.parts, b.mask)
        chosen = _over_words(words @ regions.transpose(1, 2), b.mask)
        weights = _over_regions(chosen, a.mask, self.attention)
        return weights.masked_fill(~b.mask.unsqueeze(2), 0)


def relevance(
    regions: Tensor, region_mask: Tensor, words: Tensor, word_mask: Tensor, attention: float, sharpness: float
) -> Tensor:
    """R of every image with every caption, as the class has it: (N, R, D), (N, R), (M, T, D), (M, T) -> (N, M).

    Computed in float32 at least, also under autocast: raw products of some tens, rounded to half precision, would
    shift the softmax over words by tenths.
    """
    with torch.autocast(regions.device.type, enabled=False):
        shortest_first = word_mask.sum(dim=1).argsort()  # captions of one block then need little padding
        scores = _Relevance.apply(
            _clean(regions, region_mask),
            region_mask,
            _clean(words, word_mask)[shortest_first],
            word_mask[shortest_first],
            attention,
            sharpness,
        )
        return scores[:, shortest_first.argsort()]


class _Relevance(torch.autograd.Function):
    """Block by block, forward and backward; between the two the inputs are kept, and p, which costs most to make."""

    @staticmethod
    def forward(
        ctx: Any,
        regions: Tensor,
        region_mask: Tensor,
        words: Tensor,
        word_mask: Tensor,
        attention: float,
        sharpness: float,
    ) -> Tensor:
        scores = regions.new_empty(len(regions), len(words))
        ctx.chosen = []
        for i, j, t in _blocks(regions, word_mask):
            v, e, real = regions[i], words[j, :t], word_mask[j, :t]
            chosen = _choose(v, e, real)
            if any(ctx.needs_input_grad):
                ctx.chosen.append(chosen)
            _, context = _look(v, region_mask[i], chosen, attention)
            cosine = _fit(context, e.flatten(0, 1))[0].unflatten(1, real.shape)  # (B, C, T)
            scores[i, j] = (sharpness * cosine).masked_fill(~real, -torch.inf).logsumexp(dim=2)
        ctx.save_for_backward(regions, region_mask, words, word_mask)
        ctx.attention, ctx.sharpness = attention, sharpness
        return scores

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]: the decorator hides the name of ctx
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs  # (N, M)
        regions, region_mask, words, word_mask = ctx.saved_tensors
        grad_regions, grad_words = torch.zeros_like(regions), torch.zeros_like(words)
        for (i, j, t), chosen in zip(_blocks(regions, word_mask), ctx.chosen, strict=True):
            v, e, real = regions[i], words[j, :t].flatten(0, 1), word_mask[j, :t]
            weights, context = _look(v, region_mask[i], chosen, ctx.attention)
            cosine, product, own, length = _fit(context, e)  # (B, C·T)
            hot = (ctx.sharpness * cosine).unflatten(1, real.shape).masked_fill(~real, -torch.inf).softmax(dim=2)
            slope = (grad[i, j].unsqueeze(2) * ctx.sharpness * hot).flatten(1)  # of the cosine
            # d cos = (<dc, e> + <c, de>) / product, less what only makes c or e longer, unless the product is held
            free = product > SHORTEST
            along = slope / product.clamp_min(SHORTEST)
            longer = torch.where(free, slope * cosine, 0)
            pull = (
                along.unsqueeze(2) * e - (longer / torch.where(free, own**2, 1)).unsqueeze(2) * context
            )  # (B, C·T, D)
            through = torch.bmm(pull, v.transpose(1, 2))  # (B, C·T, R), of the weights
            # The softmax over regions would take off Σ weights · through: 0, a cosine does not know how long c is
            # (where the product is held, 1e-8 of the rest).
            through.mul_(weights).mul_(ctx.attention).mul_(chosen)
            per_word = through.unflatten(1, real.shape)
            per_word -= chosen.unflatten(1, real.shape) * per_word.sum(dim=2, keepdim=True)  # the softmax over words
            grad_regions[i] += torch.bmm(weights.transpose(1, 2), pull) + through.transpose(1, 2) @ e
            through.addcmul_(weights, along.unsqueeze(2))  # e meets v in the products and in the cosine alike
            of_words = torch.bmm(through, v).sum(dim=0)
            of_words -= (longer / torch.where(free, length**2, 1)).sum(dim=0).unsqueeze(1) * e
            grad_words[j, :t] += of_words.unflatten(0, real.shape)
        return grad_regions, None, grad_words, None, None, None


def _blocks(regions: Tensor, word_mask: Tensor) -> Iterator[tuple[slice, slice, int]]:
    """Which images, which captions, and up to which word those captions go."""
    place = torch.arange(1, word_mask.shape[1] + 1, device=word_mask.device)
    ends = (word_mask * place).amax(dim=1).tolist()
    for first in range(0, len(ends), CAPTIONS):
        longest = max(ends[first : first + CAPTIONS])
        images = max(1, BLOCK // (CAPTIONS * longest * regions.shape[1]))
        for i in range(0, len(regions), images):
            yield slice(i, i + images), slice(first, first + CAPTIONS), longest


def _choose(v: Tensor, e: Tensor, word_mask: Tensor) -> Tensor:
    """p, (B, C·T, R): which word each region would choose."""
    products = (e.flatten(0, 1) @ v.transpose(1, 2)).unflatten(1, word_mask.shape)  # (B, C, T, R)
    return _over_words(products, word_mask).flatten(1, 2)


def _look(v: Tensor, region_mask: Tensor, chosen: Tensor, attention: float) -> tuple[Tensor, Tensor]:
    """α, (B, C·T, R), and the context each word sees, (B, C·T, D)."""
    weights = _over_regions(chosen, region_mask, attention)
    return weights, torch.bmm(weights, v)


def _over_words(products: Tensor, word_mask: Tensor) -> Tensor:
    """p, softmax over the real words, like the products (..., T, R)."""
    if not word_mask.all():
        products = products.masked_fill(~word_mask.unsqueeze(-1), -torch.inf)
    return products.softmax(dim=-2)


def _over_regions(chosen: Tensor, region_mask: Tensor, attention: float) -> Tensor:
    """α, softmax over the real regions, like p (..., T, R)."""
    logits = attention * chosen
    if not region_mask.all():
        logits = logits.masked_fill(~region_mask.unsqueeze(-2), -torch.inf)
    return logits.softmax(dim=-1)


def _fit(context: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cosine of each word with its context, the product of their lengths, and the lengths: (B, C·T) and (C·T,)."""
    own, length = torch.linalg.vector_norm(context, dim=2), torch.linalg.vector_norm(e, dim=1)
    product = own * length
    return (context * e).sum(dim=2) / product.clamp_min(SHORTEST), product, own, length


def _clean(parts: Tensor, mask: Tensor) -> Tensor:
    """Zeros where parts are not real, so that nothing there can leak, and float32 at least."""
    return parts.masked_fill(~mask.unsqueeze(2), 0).to(torch.promote_types(parts.dtype, torch.float32))
