"""How well each word of a text finds the region it speaks of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from triptych.errors import InputError, RecipeError
from triptych.interfaces import Features, Similarity
from triptych.similarities.matchmap import check_part_dims

CAPTIONS_PER_BLOCK, MAX_BLOCK_ENTRIES = (
    16,
    2**19,
)  # captions at a time, and how many (word, region) entries: what is held is a few blocks
MIN_NORM_PRODUCT = 1e-8  # the least product of lengths a cosine is divided by


class WordRegion(Similarity):
    """Each word of b looks at the regions of a that speak for it most; the score is how well it then fits, all in all.

    s_tr = <b_t, a_r>;   p_tr = softmax over words t of s_tr;   α_tr = softmax over regions r of attention_scale · p_tr
    c_t = Σ_r α_tr a_r;   cos_t = <c_t, b_t> / max(|c_t| |b_t|, 1e-8);   R = log Σ_t exp(sharpness · cos_t)
    divide_by_sharpness = true: R / sharpness, which is log (Σ_t exp(sharpness · cos_t))^(1 / sharpness).

    Source: Xu et al. 2018 (AttnGAN), equations 7 to 10; attention_scale = γ1, sharpness = γ2. Their code leaves out the
        power of equation 10, which only rescales the temperature of the objective (γ3): divide_by_sharpness = false does as it does.
    Use when: captions name things in the picture, and which word means which region matters.
    Beware: a and b have roles: a is looked at, b are the words, so s(a, b) is not s(b, a). Ask forward(image, text) in
        both directions of search and transpose. Longer captions score higher: log Σ grows with the words.
        Costs 2 · N · M · T · R · D products and twice that again for the gradient, which computes the attention anew
        rather than keep it. Index and shortlist use the cosine of the embeddings. Not twice differentiable.
    """

    is_exact = False
    reads_parts = True

    def __init__(self, attention_scale: float = 4.0, sharpness: float = 5.0, divide_by_sharpness: bool = False) -> None:
        super().__init__()
        for name, value in (("attention_scale", attention_scale), ("sharpness", sharpness)):
            if not 0 < value < torch.inf:
                raise RecipeError(f"word_region: {name} = {value}; need a positive number")
        self.attention_scale, self.sharpness, self.divide_by_sharpness = attention_scale, sharpness, divide_by_sharpness

    def forward(self, a: Features, b: Features) -> Tensor:
        check_part_dims(a, b)
        scores = word_region_scores(a.parts, a.mask, b.parts, b.mask, self.attention_scale, self.sharpness)
        if not torch.isfinite(scores).all():
            raise InputError("scores: NaN or infinity in a part, or parts so long that products overflow")
        return scores / self.sharpness if self.divide_by_sharpness else scores  # (N, M)

    def attribution(self, a: Features, b: Features) -> Tensor:
        # Not the attention itself: a region that no word fits may still draw much of it. A word's column sums to cos_t.
        weights, words = self.attention_maps(a, b), _zero_padding(b.parts, b.mask)
        regions = _zero_padding(a.parts, a.mask)
        norm_products = torch.linalg.vector_norm(weights @ regions, dim=2) * torch.linalg.vector_norm(words, dim=2)
        contributions = (
            weights * (words @ regions.transpose(1, 2)) / norm_products.clamp_min(MIN_NORM_PRODUCT).unsqueeze(2)
        )
        return contributions.transpose(1, 2)  # (N, R, T)

    def query(self, a: Features) -> Tensor:
        return F.normalize(a.embedding, dim=1)  # (N, D)

    def keys(self, b: Features) -> Tensor:
        return F.normalize(b.embedding, dim=1)  # (M, D)

    def attention_maps(self, a: Features, b: Features) -> Tensor:
        """Where each word of row i of b looks in row i of a: (N, T, R); a real word's row sums to 1, others are 0."""
        check_part_dims(a, b)
        regions, words = _zero_padding(a.parts, a.mask), _zero_padding(b.parts, b.mask)
        word_probs = _softmax_over_words(words @ regions.transpose(1, 2), b.mask)
        weights = _softmax_over_regions(word_probs, a.mask, self.attention_scale)
        return weights.masked_fill(~b.mask.unsqueeze(2), 0)


def word_region_scores(
    regions: Tensor, region_mask: Tensor, words: Tensor, word_mask: Tensor, attention_scale: float, sharpness: float
) -> Tensor:
    """R of every image with every caption, as the class has it: (N, R, D), (N, R), (M, T, D), (M, T) -> (N, M).

    Computed in float32 at least, also under autocast: raw products of some tens, rounded to half precision, would
    shift the softmax over words by tenths.
    """
    with torch.autocast(regions.device.type, enabled=False):
        length_order = word_mask.sum(dim=1).argsort()  # captions of one block then need little padding
        scores = _WordRegionScores.apply(
            _zero_padding(regions, region_mask),
            region_mask,
            _zero_padding(words, word_mask)[length_order],
            word_mask[length_order],
            attention_scale,
            sharpness,
        )
        return scores[:, length_order.argsort()]


class _WordRegionScores(torch.autograd.Function):
    """Block by block, forward and backward; between the two the inputs are kept, and p, which costs most to make."""

    @staticmethod
    def forward(
        ctx: Any,
        regions: Tensor,
        region_mask: Tensor,
        words: Tensor,
        word_mask: Tensor,
        attention_scale: float,
        sharpness: float,
    ) -> Tensor:
        scores = regions.new_empty(len(regions), len(words))
        ctx.word_probs = []
        for i, j, t in _iter_blocks(regions, word_mask):
            v, e, block_mask = regions[i], words[j, :t], word_mask[j, :t]
            word_probs = _word_probabilities(v, e, block_mask)
            if any(ctx.needs_input_grad):
                ctx.word_probs.append(word_probs)
            _, context = _attend(v, region_mask[i], word_probs, attention_scale)
            cosine = _cosine_with_context(context, e.flatten(0, 1))[0].unflatten(1, block_mask.shape)  # (B, C, T)
            scores[i, j] = (sharpness * cosine).masked_fill(~block_mask, -torch.inf).logsumexp(dim=2)
        ctx.save_for_backward(regions, region_mask, words, word_mask)
        ctx.attention_scale, ctx.sharpness = attention_scale, sharpness
        return scores

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]: the decorator hides the name of ctx
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs  # (N, M)
        regions, region_mask, words, word_mask = ctx.saved_tensors
        grad_regions, grad_words = torch.zeros_like(regions), torch.zeros_like(words)
        for (i, j, t), word_probs in zip(_iter_blocks(regions, word_mask), ctx.word_probs, strict=True):
            v, e, block_mask = regions[i], words[j, :t].flatten(0, 1), word_mask[j, :t]
            weights, context = _attend(v, region_mask[i], word_probs, ctx.attention_scale)
            cosine, norm_product, context_norm, word_norm = _cosine_with_context(context, e)  # (B, C·T)
            word_weights = (
                (ctx.sharpness * cosine)
                .unflatten(1, block_mask.shape)
                .masked_fill(~block_mask, -torch.inf)
                .softmax(dim=2)
            )
            grad_cosine = (grad[i, j].unsqueeze(2) * ctx.sharpness * word_weights).flatten(1)  # of the cosine
            # d cos = (<dc, e> + <c, de>) / product, less what only makes c or e longer, unless the product is held
            is_unclamped = norm_product > MIN_NORM_PRODUCT
            grad_product = grad_cosine / norm_product.clamp_min(MIN_NORM_PRODUCT)
            grad_norm = torch.where(is_unclamped, grad_cosine * cosine, 0)
            grad_context = (
                grad_product.unsqueeze(2) * e
                - (grad_norm / torch.where(is_unclamped, context_norm**2, 1)).unsqueeze(2) * context
            )  # (B, C·T, D)
            grad_weights = torch.bmm(grad_context, v.transpose(1, 2))  # (B, C·T, R), of the weights
            # The softmax over regions would take off Σ weights · through: 0, a cosine does not know how long c is
            # (where the product is held, 1e-8 of the rest).
            grad_weights.mul_(weights).mul_(ctx.attention_scale).mul_(word_probs)
            per_word = grad_weights.unflatten(1, block_mask.shape)
            per_word -= word_probs.unflatten(1, block_mask.shape) * per_word.sum(
                dim=2, keepdim=True
            )  # the softmax over words
            grad_regions[i] += torch.bmm(weights.transpose(1, 2), grad_context) + grad_weights.transpose(1, 2) @ e
            grad_weights.addcmul_(
                weights, grad_product.unsqueeze(2)
            )  # e meets v in the products and in the cosine alike
            grad_block_words = torch.bmm(grad_weights, v).sum(dim=0)
            grad_block_words -= (grad_norm / torch.where(is_unclamped, word_norm**2, 1)).sum(dim=0).unsqueeze(1) * e
            grad_words[j, :t] += grad_block_words.unflatten(0, block_mask.shape)
        return grad_regions, None, grad_words, None, None, None


def _iter_blocks(regions: Tensor, word_mask: Tensor) -> Iterator[tuple[slice, slice, int]]:
    """Which images, which captions, and up to which word those captions go."""
    positions = torch.arange(1, word_mask.shape[1] + 1, device=word_mask.device)
    ends = (word_mask * positions).amax(dim=1).tolist()
    for first_caption in range(0, len(ends), CAPTIONS_PER_BLOCK):
        longest = max(ends[first_caption : first_caption + CAPTIONS_PER_BLOCK])
        images_per_block = max(1, MAX_BLOCK_ENTRIES // (CAPTIONS_PER_BLOCK * longest * regions.shape[1]))
        for i in range(0, len(regions), images_per_block):
            yield slice(i, i + images_per_block), slice(first_caption, first_caption + CAPTIONS_PER_BLOCK), longest


def _word_probabilities(v: Tensor, e: Tensor, word_mask: Tensor) -> Tensor:
    """p, (B, C·T, R): which word each region would choose."""
    products = (e.flatten(0, 1) @ v.transpose(1, 2)).unflatten(1, word_mask.shape)  # (B, C, T, R)
    return _softmax_over_words(products, word_mask).flatten(1, 2)


def _attend(v: Tensor, region_mask: Tensor, word_probs: Tensor, attention_scale: float) -> tuple[Tensor, Tensor]:
    """α, (B, C·T, R), and the context each word sees, (B, C·T, D)."""
    weights = _softmax_over_regions(word_probs, region_mask, attention_scale)
    return weights, torch.bmm(weights, v)


def _softmax_over_words(products: Tensor, word_mask: Tensor) -> Tensor:
    """p, softmax over the real words, like the products (..., T, R)."""
    if not word_mask.all():
        products = products.masked_fill(~word_mask.unsqueeze(-1), -torch.inf)
    return products.softmax(dim=-2)


def _softmax_over_regions(word_probs: Tensor, region_mask: Tensor, attention_scale: float) -> Tensor:
    """α, softmax over the real regions, like p (..., T, R)."""
    logits = attention_scale * word_probs
    if not region_mask.all():
        logits = logits.masked_fill(~region_mask.unsqueeze(-2), -torch.inf)
    return logits.softmax(dim=-1)


def _cosine_with_context(context: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cosine of each word with its context, the product of their lengths, and the lengths: (B, C·T) and (C·T,)."""
    context_norm, word_norm = torch.linalg.vector_norm(context, dim=2), torch.linalg.vector_norm(e, dim=1)
    norm_product = context_norm * word_norm
    return (context * e).sum(dim=2) / norm_product.clamp_min(MIN_NORM_PRODUCT), norm_product, context_norm, word_norm


def _zero_padding(parts: Tensor, mask: Tensor) -> Tensor:
    """Zeros where parts are not real, so that nothing there can leak, and float32 at least."""
    return parts.masked_fill(~mask.unsqueeze(2), 0).to(torch.promote_types(parts.dtype, torch.float32))
