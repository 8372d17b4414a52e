"""Each item must be closer to its partner than to a few items drawn at random."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from triptych.contracts import Objective, Pair
from triptych.errors import InputError, RecipeError
from triptych.streaming import streamable

DRAWN = 1 << 22  # random numbers made at once while drawing negatives: 16 MB


def contrastive(positive: Tensor, negative: Tensor) -> Tensor:
    """Cross-entropy of telling the partner from M given negatives; the scores are divided by τ already.

    L = mean_n -log( e^p_n / (e^p_n + Σ_m e^n_nm) )

    positive (N,), negative (N, M); a negative of -inf does not count, and without any the loss is 0.
    """
    if positive.dim() != 1 or negative.shape[:-1] != positive.shape or not len(positive):
        raise InputError(f"positive {tuple(positive.shape)}, negative {tuple(negative.shape)}; need (N,) and (N, M)")
    dtype = torch.promote_types(positive.dtype, torch.float32)
    rest = F.pad(negative.to(dtype), (0, 1), value=-torch.inf).logsumexp(dim=1)  # (N,); the pad: M may be 0
    return -F.logsigmoid(positive.to(dtype) - rest).mean()


def draw_negatives(wrong: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """For each row, `number` of its wrong columns, none twice: indices (N, M) and where they are real (N, M) bool.

    wrong (N, K) bool. A row with fewer wrong columns has them all. Drawn with torch's global generator.
    """
    chance = torch.rand(wrong.shape, device=wrong.device).masked_fill_(~wrong, -1.0)  # (N, K)
    found, columns = chance.topk(min(number, wrong.shape[1]), dim=1)
    return columns, found >= 0


class Contrastive(Objective):
    """Each item must be closer to its partner than to M wrong items drawn at random from the other side.

    L = mean_n -log( e^(x_n·y_n/τ) / (e^(x_n·y_n/τ) + Σ_m e^(x_n·y_m/τ)) ),  x · y the pair's similarity
    anchor: whose item is compared with the negatives: "a" draws them from b, "b" from a.
    negatives: M. Right answers are never drawn; where fewer are wrong, all of those are taken.
    block > 0 goes through the rows block by block: no (N, N) scores, O(N · M) numbers in all.

    Source: Wang & Isola 2020, eq. 1 (its limit in M is alignment plus uniformity).
    Use when: the number of negatives is what is studied, or batches are so large that a sample of them will do.
    Beware: random, so two calls differ unless the seed is the same. With a free geometry there is no minimum: longer
      vectors always lower the loss; keep to the sphere or the ball. block needs an exact similarity.
    """

    def __init__(
        self,
        negatives: int = 16,
        temperature: float = 0.07,
        learn_temperature: bool = False,
        smallest_temperature: float = 0.01,
        anchor: Literal["a", "b"] = "a",
        block: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < smallest_temperature <= temperature < math.inf:
            raise RecipeError(
                f"contrastive: temperature = {temperature} and smallest_temperature = {smallest_temperature}; "
                "need 0 < smallest_temperature <= temperature"
            )
        if negatives < 1:
            raise RecipeError(f"contrastive: negatives = {negatives}; need 1 or more")
        if anchor not in ("a", "b"):
            raise RecipeError(f"contrastive: anchor = {anchor!r}; need 'a' or 'b'")
        if block < 0:
            raise RecipeError(f"contrastive: block = {block}; need 0 (no streaming) or more")
        self.negatives, self.anchor, self.block = negatives, anchor, block
        self.temperature, self.learn_temperature = temperature, learn_temperature
        self.smallest_temperature = smallest_temperature
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learn_temperature)

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        positive, negative, real = self._streamed(pair) if self.block else self._dense(pair)
        scale = self.log_scale.exp()
        # Blanked after the scale and not before: -inf times the scale has the gradient 0 · inf.
        negative = (_whole(negative) * scale).masked_fill(~real, -torch.inf)
        loss = contrastive(_whole(positive) * scale, negative)
        return {"a_to_b" if self.anchor == "a" else "b_to_a": loss}

    def _dense(self, pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
        scores = pair.scores() if self.anchor == "a" else pair.scores().T  # (N, N), rows are anchors
        wrong = ~pair.match if self.anchor == "a" else ~pair.match.T
        drawn = [draw_negatives(some, self.negatives) for some in wrong.split(_rows_at_once(len(wrong)))]
        columns, real = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        return scores.diagonal(), scores.gather(1, columns), real

    def _streamed(self, pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
        query, keys, group = streamable(pair)  # (N, S), (N, S), (N,)
        anchors, others = (query, keys) if self.anchor == "a" else (keys, query)
        # As _dense draws them, so that the same seed gives the same negatives whatever the block.
        wrong = (some[:, None] != group for some in group.split(_rows_at_once(len(group))))
        drawn = [draw_negatives(some, self.negatives) for some in wrong]
        columns, real = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        parts = []
        for rows, chosen in zip(anchors.split(self.block), columns.split(self.block), strict=True):
            # Checkpointed: the gathered (block, M, S) vectors are gathered again on the way back, not kept.
            parts.append(checkpoint(_against, rows, others, chosen, use_reentrant=False))
        return torch.einsum("ns,ns->n", query, keys), torch.cat(parts), real

    def after_step(self) -> None:
        hottest = max(1.0, self.temperature)
        self.log_scale.data.clamp_(-math.log(hottest), -math.log(self.smallest_temperature))


def _against(rows: Tensor, others: Tensor, chosen: Tensor) -> Tensor:
    """Each row's scores with the others chosen for it: (B, S), (N, S), (B, M) -> (B, M)."""
    return torch.einsum("bs,bms->bm", rows, others[chosen])


def _whole(scores: Tensor) -> Tensor:
    """At least float32: half precision has too few digits for a sum of exponentials."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _rows_at_once(columns: int) -> int:
    return max(1, DRAWN // columns)
