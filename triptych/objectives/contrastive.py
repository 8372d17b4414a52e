"""Each item must be closer to its partner than to a few items drawn at random."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from triptych.errors import InputError, RecipeError
from triptych.interfaces import Objective, Pair
from triptych.streaming import compute_streaming_inputs

MAX_RANDOM_NUMBERS = 1 << 22  # random numbers made at once while drawing negatives: 16 MB


def contrastive_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """Cross-entropy of telling the partner from M given negatives; the scores are divided by τ already.

    L = mean_n -log( e^p_n / (e^p_n + Σ_m e^n_nm) )

    positive (N,), negative (N, M); a negative of -inf does not count, and without any the loss is 0.
    """
    if positive.dim() != 1 or negative.shape[:-1] != positive.shape or not len(positive):
        raise InputError(f"positive {tuple(positive.shape)}, negative {tuple(negative.shape)}; need (N,) and (N, M)")
    dtype = torch.promote_types(positive.dtype, torch.float32)
    negative_lse = F.pad(negative.to(dtype), (0, 1), value=-torch.inf).logsumexp(dim=1)  # (N,); the pad: M may be 0
    return -F.logsigmoid(positive.to(dtype) - negative_lse).mean()


def sample_negatives(negative_mask: Tensor, num_negatives: int) -> tuple[Tensor, Tensor]:
    """For each row, `number` of its wrong columns, none twice: indices (N, M) and where they are real (N, M) bool.

    wrong (N, K) bool. A row with fewer wrong columns has them all. Drawn with torch's global generator.
    """
    priority = torch.rand(negative_mask.shape, device=negative_mask.device).masked_fill_(~negative_mask, -1.0)  # (N, K)
    top_priority, columns = priority.topk(min(num_negatives, negative_mask.shape[1]), dim=1)
    return columns, top_priority >= 0


class Contrastive(Objective):
    """Each item must be closer to its partner than to M wrong items drawn at random from the other side.

    L = mean_n -log( e^(x_n·y_n/τ) / (e^(x_n·y_n/τ) + Σ_m e^(x_n·y_m/τ)) ),  x · y the pair's similarity
    anchor: whose item is compared with the negatives: "a" draws them from b, "b" from a.
    num_negatives: M. Right answers are never drawn; where fewer are wrong, all of those are taken.
    stream_block > 0 goes through the rows block by block: no (N, N) scores, O(N · M) numbers in all.

    Source: Wang & Isola 2020, eq. 1 (its limit in M is alignment plus uniformity).
    Use when: the number of negatives is what is studied, or batches are so large that a sample of them will do.
    Beware: random, so two calls differ unless the seed is the same. With a free geometry there is no minimum: longer
      vectors always lower the loss; keep to the sphere or the ball. stream_block needs an exact similarity.
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
        if not 0 < min_temperature <= temperature < math.inf:
            raise RecipeError(
                f"contrastive: temperature = {temperature} and min_temperature = {min_temperature}; "
                "need 0 < min_temperature <= temperature"
            )
        if num_negatives < 1:
            raise RecipeError(f"contrastive: num_negatives = {num_negatives}; need 1 or more")
        if anchor not in ("a", "b"):
            raise RecipeError(f"contrastive: anchor = {anchor!r}; need 'a' or 'b'")
        if stream_block < 0:
            raise RecipeError(f"contrastive: stream_block = {stream_block}; need 0 (no streaming) or more")
        self.num_negatives, self.anchor, self.stream_block = num_negatives, anchor, stream_block
        self.temperature, self.learn_temperature = temperature, learn_temperature
        self.min_temperature = min_temperature
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learn_temperature)

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        positive, negative, is_real = self._streamed_scores(pair) if self.stream_block else self._dense_scores(pair)
        scale = self.log_scale.exp()
        # Blanked after the scale and not before: -inf times the scale has the gradient 0 · inf.
        negative = (_upcast_half(negative) * scale).masked_fill(~is_real, -torch.inf)
        loss = contrastive_loss(_upcast_half(positive) * scale, negative)
        return {"a_to_b" if self.anchor == "a" else "b_to_a": loss}

    def _dense_scores(self, pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
        scores = pair.scores() if self.anchor == "a" else pair.scores().T  # (N, N), rows are anchors
        negative_mask = ~pair.positive_mask if self.anchor == "a" else ~pair.positive_mask.T
        samples = [
            sample_negatives(mask_block, self.num_negatives)
            for mask_block in negative_mask.split(_rows_per_draw(len(negative_mask)))
        ]
        columns, is_real = (torch.cat(parts) for parts in zip(*samples, strict=True))
        return scores.diagonal(), scores.gather(1, columns), is_real

    def _streamed_scores(self, pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
        query, keys, group = compute_streaming_inputs(pair)  # (N, S), (N, S), (N,)
        anchors, others = (query, keys) if self.anchor == "a" else (keys, query)
        # As _dense draws them, so that the same seed gives the same negatives whatever the block.
        negative_masks = (mask_block[:, None] != group for mask_block in group.split(_rows_per_draw(len(group))))
        samples = [sample_negatives(mask_block, self.num_negatives) for mask_block in negative_masks]
        columns, is_real = (torch.cat(parts) for parts in zip(*samples, strict=True))
        parts = []
        for rows, sampled in zip(anchors.split(self.stream_block), columns.split(self.stream_block), strict=True):
            # Checkpointed: the gathered (block, M, S) vectors are gathered again on the way back, not kept.
            parts.append(checkpoint(_sampled_scores, rows, others, sampled, use_reentrant=False))
        return torch.einsum("ns,ns->n", query, keys), torch.cat(parts), is_real

    def after_step(self) -> None:
        max_temperature = max(1.0, self.temperature)
        self.log_scale.data.clamp_(-math.log(max_temperature), -math.log(self.min_temperature))


def _sampled_scores(rows: Tensor, others: Tensor, sampled: Tensor) -> Tensor:
    """Each row's scores with the others chosen for it: (B, S), (N, S), (B, M) -> (B, M)."""
    return torch.einsum("bs,bms->bm", rows, others[sampled])


def _upcast_half(scores: Tensor) -> Tensor:
    """At least float32: half precision has too few digits for a sum of exponentials."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _rows_per_draw(columns: int) -> int:
    return max(1, MAX_RANDOM_NUMBERS // columns)
