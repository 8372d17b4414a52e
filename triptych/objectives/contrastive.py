"""Contrastive loss with a fixed number of randomly sampled negatives."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from triptych.errors import InputError, RecipeError, check_range
from triptych.interfaces import Pair
from triptych.objectives.objective import Objective
from triptych.objectives.scores import upcast_half
from triptych.objectives.temperature import clamp_log_scale_, make_log_scale
from triptych.streaming import compute_streaming_inputs

MAX_RANDOM_NUMBERS = 1 << 22  # the maximum number of random numbers in memory (16 MB)


def contrastive_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """Return the cross-entropy of each positive among M negatives, for scores already divided by the temperature.

    L = mean_n -log( e^p_n / (e^p_n + Σ_m e^n_nm) )

    Args:
        positive: the score of each anchor with its positive, (N,).
        negative: the scores of each anchor with its negatives, (N, M). A score of -inf is ignored. M may be 0; without
            negatives, the loss is 0.

    Returns:
        A scalar tensor.

    Raises:
        InputError: shapes are wrong, or there is no anchor.

    Example:
        >>> import torch
        >>> from triptych.losses import contrastive_loss
        >>> print(f"{contrastive_loss(torch.zeros(2), torch.zeros(2, 3)):.4f}")  # log 4
        1.3863
    """
    if positive.dim() != 1 or negative.shape[:-1] != positive.shape or not len(positive):
        raise InputError(f"positive {tuple(positive.shape)}, negative {tuple(negative.shape)}; need (N,) and (N, M)")
    positive = upcast_half(positive)
    negative_lse = F.pad(negative.to(positive.dtype), (0, 1), value=-torch.inf).logsumexp(dim=1)  # (N,); M may be 0
    return -F.logsigmoid(positive - negative_lse).mean()


def sample_negatives(negative_mask: Tensor, num_negatives: int) -> tuple[Tensor, Tensor]:
    """Sample negatives of each row without replacement; return column indices (N, M) and their mask (N, M).

    `negative_mask` is a bool tensor (N, K). If a row has fewer than `num_negatives` negatives, all its negatives are
    returned, and the mask is False for the remaining indices. Sampling uses torch's global random generator.
    """
    priority = torch.rand(negative_mask.shape, device=negative_mask.device).masked_fill_(~negative_mask, -1.0)  # (N, K)
    top_priority, columns = priority.topk(min(num_negatives, negative_mask.shape[1]), dim=1)
    return columns, top_priority >= 0


class Contrastive(Objective):
    """Cross-entropy of the positive among M negatives that are sampled at random from the other modality.

    L = mean_n -log( e^(x_n·y_n/τ) / (e^(x_n·y_n/τ) + Σ_m e^(x_n·y_m/τ)) ),  x · y = similarity of x and y

    Args:
        num_negatives: M. Positives are never sampled as negatives. An anchor with fewer than M negatives uses all its
            negatives.
        temperature: τ, at the start of training if it is learned.
        learn_temperature: train log(1 / τ) as a parameter of this module.
        min_temperature: the lower bound of τ; `after_step` restores it after an optimizer step.
        anchor: "a": the anchors x are the items of a, the first modality of the pair. "b": the items of b.
        stream_block: above 0, compute in blocks of rows, without storing the (N, N) scores, in O(N · M) memory.

    Inputs: embeddings `a` and `b` (N, D), parts with masks and a similarity of parts, or `scores` (N, N); `group` (N,)
        is optional. `Objective.forward` describes the inputs.
    Returns: a scalar tensor.
    Requirements: rows of at least two groups; a batch of one group has loss 0.
    Also known as: sampled softmax, contrastive loss with M negatives. With M of at least N - 1, it equals one direction
        of `InfoNCE`. It is not the margin loss of Hadsell et al. 2006, which is also called contrastive loss.
    Example:
        >>> import torch
        >>> from triptych.losses import Contrastive
        >>> a, b = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
        >>> print(f"{Contrastive(num_negatives=1, temperature=0.5)(a, b):.4f}")
        0.2775

    Source: Wang & Isola 2020, eq. 1 (for large M, the loss becomes alignment plus uniformity).
    Use when: you study the number of negatives, or batches are so large that a sample of the negatives is enough.
    Beware: negatives are random, so the loss depends on the seed. Set the geometry to sphere or ball. With the free
    geometry, longer vectors lower the loss without bound. stream_block needs an exact similarity.
    """

    def __init__(
        self,
        num_negatives: int = 16,
        temperature: float = 0.07,
        learn_temperature: bool = False,
        min_temperature: float = 0.01,
        anchor: Literal["a", "b"] = "a",
        stream_block: int = 0,
    ) -> None:
        super().__init__()
        self.log_scale = make_log_scale("contrastive", temperature, min_temperature, learn_temperature)
        if num_negatives < 1:
            raise RecipeError(f"contrastive: num_negatives = {num_negatives}; need 1 or more")
        if anchor not in ("a", "b"):
            raise RecipeError(f"contrastive: anchor = {anchor!r}; need 'a' or 'b'")
        check_range("contrastive: stream_block", stream_block, 0)
        self.num_negatives, self.anchor, self.stream_block = num_negatives, anchor, stream_block
        self.temperature, self.learn_temperature, self.min_temperature = temperature, learn_temperature, min_temperature

    def terms(self, pair: Pair) -> dict[str, Tensor]:
        positive, negative, is_valid = self._streamed_scores(pair) if self.stream_block else self._dense_scores(pair)
        scale = self.log_scale.exp()
        # The scores are masked after scaling, because the gradient of -inf · scale is NaN.
        negative = (upcast_half(negative) * scale).masked_fill(~is_valid, -torch.inf)
        loss = contrastive_loss(upcast_half(positive) * scale, negative)
        return {"a_to_b" if self.anchor == "a" else "b_to_a": loss}

    def _dense_scores(self, pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
        scores = pair.scores() if self.anchor == "a" else pair.scores().T  # (N, N), rows are anchors
        columns, is_valid = self._sample_negatives(pair.group)
        return scores.diagonal(), scores.gather(1, columns), is_valid

    def _streamed_scores(self, pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
        query, keys, group = compute_streaming_inputs(pair)  # (N, S), (N, S), (N,)
        anchors, others = (query, keys) if self.anchor == "a" else (keys, query)
        columns, is_valid = self._sample_negatives(group)
        parts = []
        for rows, sampled in zip(anchors.split(self.stream_block), columns.split(self.stream_block), strict=True):
            # With checkpointing, the backward pass gathers the (block, M, S) vectors again, so that they are not
            # stored.
            parts.append(checkpoint(_sampled_scores, rows, others, sampled, use_reentrant=False))
        return torch.einsum("ns,ns->n", query, keys), torch.cat(parts), is_valid

    def _sample_negatives(self, group: Tensor) -> tuple[Tensor, Tensor]:
        """Sample negatives in blocks of rows. The samples depend on the seed, but not on `stream_block`."""
        blocks = group.split(max(1, MAX_RANDOM_NUMBERS // len(group)))
        samples = [sample_negatives(block[:, None] != group, self.num_negatives) for block in blocks]
        columns, is_valid = (torch.cat(parts) for parts in zip(*samples, strict=True))
        return columns, is_valid

    def after_step(self) -> None:
        clamp_log_scale_(self.log_scale, self.temperature, self.min_temperature)


def _sampled_scores(rows: Tensor, others: Tensor, sampled: Tensor) -> Tensor:
    """Return the scores of each query with its sampled items: (B, S), (N, S), (B, M) -> (B, M)."""
    return torch.einsum("bs,bms->bm", rows, others[sampled])
