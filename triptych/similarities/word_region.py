"""Word-region attention: each word of a caption is compared with the image regions that the word attends to."""

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

CAPTIONS_PER_BLOCK, MAX_BLOCK_ENTRIES = 16, 2**19  # limits of one block: captions, and (word, region) entries
MIN_NORM_PRODUCT = 1e-8  # the lower bound of the denominator of a cosine


class WordRegion(Similarity):
    """Words of caption `b` attend to regions of image `a`; the score is a soft maximum of word-context cosines.

    s_tr = <b_t, a_r>;   p_tr = softmax over words t of s_tr;   α_tr = softmax over regions r of attention_scale · p_tr
    c_t = Σ_r α_tr a_r;   cos_t = <c_t, b_t> / max(|c_t| |b_t|, 1e-8);   R = log Σ_t exp(sharpness · cos_t)

    Args:
        attention_scale: the scale of the attention of words over regions; a larger scale selects fewer regions.
        sharpness: the scale of the soft maximum over words.
        divide_by_sharpness: return R / sharpness, which is log (Σ_t exp(sharpness · cos_t))^(1 / sharpness).

    Example:
        >>> import torch
        >>> from triptych.losses import InfoNCE, WordRegion
        >>> words = torch.eye(3).unsqueeze(1)  # (N, T, D), with one word per caption
        >>> regions = words.expand(3, 2, 3)  # (N, R, D), with two regions per image
        >>> masks = {"a_mask": torch.ones(3, 2, dtype=torch.bool), "b_mask": torch.ones(3, 1, dtype=torch.bool)}
        >>> loss = InfoNCE(temperature=1.0)(regions, words, similarity=WordRegion(), **masks)
        >>> print(f"{loss:.4f}")
        0.0134

    Source: Xu et al. 2018 (AttnGAN), equations 7 to 10; attention_scale = γ1, sharpness = γ2. The code of the
    authors omits the power of equation 10, as `divide_by_sharpness = false` does. The power only rescales the
    temperature of the objective (γ3).
    Use when: captions name objects in the image, and you want to know which word belongs to which region.
    Beware: the similarity is not symmetric, so argument `a` must be the images and argument `b` the captions. To search
        captions by image or images by caption, call forward(image, text) and transpose if needed. Longer captions score
        higher, because log Σ grows with the number of words. The cost is 2 · N · M · T · R · D multiplications, and
        twice as many for the gradient, which recomputes the attention. The search index uses the cosine of the
        embeddings to select candidates. Not twice differentiable.
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
            raise InputError("scores: NaN or infinity in a part, or norms so large that products overflow")
        return scores / self.sharpness if self.divide_by_sharpness else scores  # (N, M)

    def attribution(self, a: Features, b: Features) -> Tensor:
        # Return contributions to cosines instead of attention, because a region that matches no word can get much
        # attention. The column of word t sums to cos_t.
        weights, words = self.attention_maps(a, b), _zero_padding(b.parts, b.mask)
        regions = _zero_padding(a.parts, a.mask)
        norm_products = torch.linalg.vector_norm(weights @ regions, dim=2) * torch.linalg.vector_norm(words, dim=2)
        products = weights * (words @ regions.transpose(1, 2))
        contributions = products / norm_products.clamp_min(MIN_NORM_PRODUCT).unsqueeze(2)
        return contributions.transpose(1, 2)  # (N, R, T)

    def query(self, a: Features) -> Tensor:
        return F.normalize(a.embedding, dim=1)  # (N, D)

    def keys(self, b: Features) -> Tensor:
        return F.normalize(b.embedding, dim=1)  # (M, D)

    def attention_maps(self, a: Features, b: Features) -> Tensor:
        """Return the attention of the words of caption `b_i` over the regions of image `a_i`: (N, T, R), padding 0."""
        check_part_dims(a, b)
        regions, words = _zero_padding(a.parts, a.mask), _zero_padding(b.parts, b.mask)
        word_probs = _softmax_over_words(words @ regions.transpose(1, 2), b.mask)
        weights = _softmax_over_regions(word_probs, a.mask, self.attention_scale)
        return weights.masked_fill(~b.mask.unsqueeze(2), 0)


def word_region_scores(
    regions: Tensor, region_mask: Tensor, words: Tensor, word_mask: Tensor, attention_scale: float, sharpness: float
) -> Tensor:
    """Return the score of every image with every caption: (N, R, D), (N, R), (M, T, D), (M, T) -> (N, M).

    Scores are computed in at least float32, also under autocast. In half precision, rounding errors of large dot
    products would change the softmax over words by more than 0.1.
    """
    with torch.autocast(regions.device.type, enabled=False):
        length_order = word_mask.sum(dim=1).argsort()  # captions of similar length share a block, with little padding
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
    """Computes forward and backward in blocks, and saves the word probabilities, which are expensive, for backward."""

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
            logits = (ctx.sharpness * cosine).unflatten(1, block_mask.shape)
            word_weights = logits.masked_fill(~block_mask, -torch.inf).softmax(dim=2)
            grad_cosine = (grad[i, j].unsqueeze(2) * ctx.sharpness * word_weights).flatten(1)
            # d cos = (<dc, e> + <c, de>) / product, minus the components along c and e, unless the product is clamped.
            is_unclamped = norm_product > MIN_NORM_PRODUCT
            grad_product = grad_cosine / norm_product.clamp_min(MIN_NORM_PRODUCT)
            grad_norm = torch.where(is_unclamped, grad_cosine * cosine, 0)
            context_factor = grad_norm / torch.where(is_unclamped, context_norm**2, 1)
            grad_context = grad_product.unsqueeze(2) * e - context_factor.unsqueeze(2) * context  # (B, C·T, D)
            grad_weights = torch.bmm(grad_context, v.transpose(1, 2))  # (B, C·T, R)
            # The derivative of the softmax over regions would subtract Σ weights · gradient. The sum is 0, because the
            # cosine does not depend on the norm of c. If the norm product is clamped, the sum is negligible (1e-8).
            grad_weights.mul_(weights).mul_(ctx.attention_scale).mul_(word_probs)
            per_word = grad_weights.unflatten(1, block_mask.shape)
            # Apply the derivative of the softmax over words.
            per_word -= word_probs.unflatten(1, block_mask.shape) * per_word.sum(dim=2, keepdim=True)
            grad_regions[i] += torch.bmm(weights.transpose(1, 2), grad_context) + grad_weights.transpose(1, 2) @ e
            # The gradient of the words comes from the dot products and from the cosine.
            grad_weights.addcmul_(weights, grad_product.unsqueeze(2))
            grad_block_words = torch.bmm(grad_weights, v).sum(dim=0)
            grad_block_words -= (grad_norm / torch.where(is_unclamped, word_norm**2, 1)).sum(dim=0).unsqueeze(1) * e
            grad_words[j, :t] += grad_block_words.unflatten(0, block_mask.shape)
        return grad_regions, None, grad_words, None, None, None


def _iter_blocks(regions: Tensor, word_mask: Tensor) -> Iterator[tuple[slice, slice, int]]:
    """Yield blocks: a slice of images, a slice of captions, and the length of the longest caption in the slice."""
    positions = torch.arange(1, word_mask.shape[1] + 1, device=word_mask.device)
    ends = (word_mask * positions).amax(dim=1).tolist()
    for first_caption in range(0, len(ends), CAPTIONS_PER_BLOCK):
        longest = max(ends[first_caption : first_caption + CAPTIONS_PER_BLOCK])
        images_per_block = max(1, MAX_BLOCK_ENTRIES // (CAPTIONS_PER_BLOCK * longest * regions.shape[1]))
        for i in range(0, len(regions), images_per_block):
            yield slice(i, i + images_per_block), slice(first_caption, first_caption + CAPTIONS_PER_BLOCK), longest


def _word_probabilities(v: Tensor, e: Tensor, word_mask: Tensor) -> Tensor:
    """Return p (B, C·T, R), the probabilities over the words for each region."""
    products = (e.flatten(0, 1) @ v.transpose(1, 2)).unflatten(1, word_mask.shape)  # (B, C, T, R)
    return _softmax_over_words(products, word_mask).flatten(1, 2)


def _attend(v: Tensor, region_mask: Tensor, word_probs: Tensor, attention_scale: float) -> tuple[Tensor, Tensor]:
    """Return the attention α, (B, C·T, R), and the context of each word, (B, C·T, D)."""
    weights = _softmax_over_regions(word_probs, region_mask, attention_scale)
    return weights, torch.bmm(weights, v)


def _softmax_over_words(products: Tensor, word_mask: Tensor) -> Tensor:
    """Return p, the softmax over real words, (..., T, R)."""
    if not word_mask.all():
        products = products.masked_fill(~word_mask.unsqueeze(-1), -torch.inf)
    return products.softmax(dim=-2)


def _softmax_over_regions(word_probs: Tensor, region_mask: Tensor, attention_scale: float) -> Tensor:
    """Return α, the softmax over real regions, (..., T, R)."""
    logits = attention_scale * word_probs
    if not region_mask.all():
        logits = logits.masked_fill(~region_mask.unsqueeze(-2), -torch.inf)
    return logits.softmax(dim=-1)


def _cosine_with_context(context: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return word-context cosines (B, C·T), norm products (B, C·T), context norms (B, C·T) and word norms (C·T,)."""
    context_norm, word_norm = torch.linalg.vector_norm(context, dim=2), torch.linalg.vector_norm(e, dim=1)
    norm_product = context_norm * word_norm
    return (context * e).sum(dim=2) / norm_product.clamp_min(MIN_NORM_PRODUCT), norm_product, context_norm, word_norm


def _zero_padding(parts: Tensor, mask: Tensor) -> Tensor:
    """Set padding to 0, so that padding does not change sums, and convert to at least float32."""
    return parts.masked_fill(~mask.unsqueeze(2), 0).to(torch.promote_types(parts.dtype, torch.float32))
