"""Sigmoid loss: an independent binary classification of every pair of the batch."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.errors import RecipeError, check_range
from triptych.interfaces import Pair
from triptych.objectives.objective import Objective
from triptych.objectives.scores import check_scores, upcast_half
from triptych.objectives.temperature import clamp_log_scale_, make_log_scale, temperature_of
from triptych.streaming import compute_streaming_inputs, softplus_sum


def sigmoid_loss(logits: Tensor, positive_mask: Tensor) -> Tensor:
    """Return the binary cross-entropy of every pair, summed over columns and averaged over rows.

    L = -(1/N) Σ_ij log sigmoid(z_ij · l_ij),  z_ij = +1 where positive_mask_ij, else -1

    Args:
        logits: scores divided by the temperature, plus the bias, (N, M).
        positive_mask: bool (N, M). If the mask is all False, every pair is a negative.

    Returns:
        A scalar tensor.

    Raises:
        InputError: shapes or dtypes are wrong.

    Example:
        >>> import torch
        >>> from triptych.losses import sigmoid_loss
        >>> print(f"{sigmoid_loss(torch.zeros(2, 3), torch.eye(2, 3, dtype=torch.bool)):.4f}")  # 3 log 2
        2.0794
    """
    check_scores(logits, positive_mask)
    logits = upcast_half(logits)
    return -F.logsigmoid(torch.where(positive_mask, logits, -logits)).sum() / len(logits)


class Sigmoid(Objective):
    """Binary cross-entropy of every pair of the batch, without a softmax over the items of the batch.

    L = -(1/N) Σ_ij log sigmoid(z_ij · (s_ij / τ + bias)),  z_ij = +1 where i and j are positives, else -1

    Args:
        temperature: τ, at the start of training if it is learned.
        learn_temperature: train log(1 / τ) as a parameter of this module.
        min_temperature: the lower bound of τ; `after_step` restores it after an optimizer step.
        bias: the bias, at the start of training if it is learned.
        learn_bias: train the bias as a parameter of this module.
        stream_block: above 0, compute the same result in blocks, without storing the (N, N) scores; 2048 is fast.

    Inputs: embeddings `a` and `b` (N, D), parts with masks and a similarity of parts, or `scores` (N, N); `group` (N,)
        is optional. `Objective.forward` describes the inputs.
    Returns: a scalar tensor.
    Requirements: none; a batch may have one row, or rows of one group.
    Also known as: SigLIP loss, pairwise sigmoid loss. The sum is divided by N, not by N².
    Example:
        >>> import torch
        >>> from triptych.losses import Sigmoid
        >>> a, b = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
        >>> print(f"{Sigmoid()(a, b):.4f}")
        1.4191

    Source: Zhai et al. 2023, who learn t' = -log τ, starting at ln 10, and the bias, starting at -10.
    Use when: batches are small, or rows have several positives. Every positive pair has its own term in the loss.
    Beware: of N pairs, N - 1 are negatives. If the bias does not start far below 0, the first steps only learn that
    most pairs are negatives. stream_block needs an exact similarity.
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
        self.log_scale = make_log_scale("sigmoid", temperature, min_temperature, learn_temperature)
        if not math.isfinite(bias):
            raise RecipeError(f"sigmoid: bias = {bias}; need a finite number")
        check_range("sigmoid: stream_block", stream_block, 0)
        self.temperature, self.learn_temperature, self.min_temperature = temperature, learn_temperature, min_temperature
        self.bias, self.learn_bias, self.stream_block = bias, learn_bias, stream_block
        self.logit_bias = nn.Parameter(torch.tensor(float(bias)), requires_grad=learn_bias)

    def terms(self, pair: Pair) -> dict[str, Tensor]:
        scale = self.log_scale.exp()
        if self.stream_block:
            query, keys, group = compute_streaming_inputs(pair)  # (N, S), (N, S), (N,)
            total = softplus_sum(query, keys, scale, self.logit_bias, (group, group), self.stream_block)
            return {"pairs": total / len(query)}
        logits = upcast_half(pair.scores()) * scale + self.logit_bias  # (N, N)
        return {"pairs": sigmoid_loss(logits, pair.positive_mask)}

    def metrics_to_log(self) -> dict[str, float]:
        return {"temperature": temperature_of(self.log_scale)}

    def after_step(self) -> None:
        clamp_log_scale_(self.log_scale, self.temperature, self.min_temperature)
