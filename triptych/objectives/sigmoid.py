"""Each pair of the batch is judged alone: do the two belong together or not."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.errors import InputError, RecipeError
from triptych.interfaces import Objective, Pair
from triptych.streaming import compute_streaming_inputs, softplus_sum


def sigmoid_loss(logits: Tensor, positive_mask: Tensor) -> Tensor:
    """Binary cross-entropy of every pair, summed over columns and averaged over rows.

    L = -(1/N) Σ_ij log sigmoid(z_ij · l_ij),  z_ij = +1 where match_ij, else -1

    logits (N, M), match (N, M) bool. A match without any True is a batch of wrong pairs only: that is allowed.
    """
    if (
        logits.dim() != 2
        or positive_mask.shape != logits.shape
        or positive_mask.dtype != torch.bool
        or not logits.numel()
    ):
        raise InputError(
            f"logits {tuple(logits.shape)}, match {tuple(positive_mask.shape)} {positive_mask.dtype}; need (N, M), bool"
        )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return -F.logsigmoid(torch.where(positive_mask, logits, -logits)).sum() / len(logits)


class Sigmoid(Objective):
    """Every pair of the batch is right or wrong on its own: no softmax, so no item competes with another.

    L = -(1/N) Σ_ij log sigmoid(z_ij · (s_ij / τ + bias)),  z_ij = +1 where match_ij, else -1
    stream_block > 0 streams: the (N, N) scores never exist, the numbers are the same (2048 is quick).

    Source: Zhai et al. 2023 (their t' = -log τ, learned from ln 10, and b, learned from -10).
    Use when: batches are small, or rows have several right answers: all of them count, and none is left out.
    Beware: N - 1 of N pairs are wrong, so start with a bias far below 0, else the first steps only learn to say no.
      stream_block needs an exact similarity.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        learn_temperature: bool = True,
        min_temperature: float = 0.01,
        bias: float = -10.0,
        learn_bias: bool = True,
        stream_block: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < min_temperature <= temperature < math.inf:
            raise RecipeError(
                f"sigmoid: temperature = {temperature} and min_temperature = {min_temperature}; "
                "need 0 < min_temperature <= temperature"
            )
        if not math.isfinite(bias):
            raise RecipeError(f"sigmoid: bias = {bias}; need a finite number")
        if stream_block < 0:
            raise RecipeError(f"sigmoid: stream_block = {stream_block}; need 0 (no streaming) or more")
        self.temperature, self.learn_temperature = temperature, learn_temperature
        self.min_temperature = min_temperature
        self.bias, self.learn_bias, self.stream_block = bias, learn_bias, stream_block
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learn_temperature)
        self.logit_bias = nn.Parameter(torch.tensor(float(bias)), requires_grad=learn_bias)

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        scale = self.log_scale.exp()
        if self.stream_block:
            query, keys, group = compute_streaming_inputs(pair)  # (N, S), (N, S), (N,)
            total = softplus_sum(query, keys, scale, self.logit_bias, (group, group), self.stream_block)
            return {"pairs": total / len(query)}
        scores = pair.scores()
        logits = scores.to(torch.promote_types(scores.dtype, torch.float32)) * scale + self.logit_bias  # (N, N)
        return {"pairs": sigmoid_loss(logits, pair.positive_mask)}

    def metrics_to_log(self) -> dict[str, float]:
        return {"temperature": math.exp(-self.log_scale.item())}

    def after_step(self) -> None:
        max_temperature = max(1.0, self.temperature)
        self.log_scale.data.clamp_(-math.log(max_temperature), -math.log(self.min_temperature))
