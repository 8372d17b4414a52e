"""Each item must pick its partner out of the batch, both ways."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.errors import InputError, RecipeError
from triptych.interfaces import Objective, Pair
from triptych.streaming import DEFAULT_BLOCK_SIZE, compute_streaming_inputs, log_sum_exps

PositivesMode = Literal["single", "pairwise", "supcon"]


def infonce_loss(
    logits: Tensor,  # (N, M)
    positive_mask: Tensor,  # (N, M) bool
    candidate_mask: Tensor | None = None,  # (N, M) bool
    positives_in_denominator: bool = False,
    weight: Tensor | None = None,  # (N,)
    label_smoothing: float = 0.0,
    gce_q: float = 0.0,
) -> Tensor:
    """Cross-entropy of each row finding its right answers among the counted columns; one direction.

    For each positive (i, p): -log( e^l_ip / Σ_(j in J) e^l_ij ), where J is p and the wrong answers of row i,
    and with `together` all that is counted, other right answers too. Averaged over all positives; with `together`
    first over the positives of each row, then over the rows that have any. weight: each row's share in that mean.
    label_smoothing = ε puts 1 - ε of the truth on p, and ε evenly on J.
    gce_q = q > 0 takes (1 - P^q) / q in place of -log P, with P the probability of p.

    Beware: with one positive in each row, `together` changes nothing. What is not counted is not read: it may be -inf.
    """
    candidate_mask = torch.ones_like(positive_mask) if candidate_mask is None else candidate_mask
    _check_inputs(logits, positive_mask, candidate_mask, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    rows, columns = (positive_mask & candidate_mask).nonzero(as_tuple=True)  # (P,), (P,)
    denominator_mask = candidate_mask if positives_in_denominator else candidate_mask & ~positive_mask  # (N, M)
    positive_logits = logits[rows, columns]  # (P,)
    denominator_lse = logits.masked_fill(~denominator_mask, -torch.inf).logsumexp(dim=1)[rows]  # (P,)
    # -log sigmoid of the lead: near 0 it keeps the digits that log-sum-exp minus logit would lose.
    losses = (
        denominator_lse - positive_logits
        if positives_in_denominator
        else -F.logsigmoid(positive_logits - denominator_lse)
    )  # (P,)
    if label_smoothing:
        total, num_rivals = (
            logits.masked_fill(~denominator_mask, 0.0).sum(dim=1)[rows],
            denominator_mask.sum(dim=1)[rows],
        )
        mean = total / num_rivals if positives_in_denominator else (total + positive_logits) / (num_rivals + 1)
        losses = losses + label_smoothing * (positive_logits - mean)
    if gce_q:
        losses = -torch.expm1(-gce_q * losses) / gce_q
    row_weights = torch.ones_like(losses) if weight is None else weight.to(losses.dtype)[rows]
    if positives_in_denominator:
        row_weights = row_weights / (positive_mask & candidate_mask).sum(dim=1)[rows]
    return (row_weights * losses).sum() / row_weights.sum()


def streamed_infonce_loss(
    query: Tensor,  # (N, S)
    keys: Tensor,  # (N, S)
    scale: Tensor,
    group: Tensor | None = None,  # (N,)
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> tuple[Tensor, Tensor]:
    """Both directions of infonce, row i with column i, without the (N, N) logits = scale · query @ keys.T.

    mean_i log(1 + e^(r_i - l_ii)), r_i = log Σ_j e^l_ij over the j of other groups; and the same over columns.
    """
    if len(query) != len(keys):
        raise InputError(f"query has {len(query)} rows and keys has {len(keys)}; row i belongs with row i")
    groups = None if group is None else (group, group)
    row_lse, column_lse = log_sum_exps(
        query, keys, scale, excluded_groups=groups, include_diagonal=False, block_size=block_size
    )
    positive_logits = scale * torch.einsum("ns,ns->n", query.to(row_lse.dtype), keys.to(row_lse.dtype))  # (N,)
    return -F.logsigmoid(positive_logits - row_lse).mean(), -F.logsigmoid(positive_logits - column_lse).mean()


def _check_inputs(logits: Tensor, positive_mask: Tensor, candidate_mask: Tensor, weight: Tensor | None) -> None:
    for name, mask in (("positive", positive_mask), ("counted", candidate_mask)):
        if logits.dim() != 2 or mask.shape != logits.shape or mask.dtype != torch.bool:
            raise InputError(
                f"logits {tuple(logits.shape)}, {name} {tuple(mask.shape)} {mask.dtype}; need (N, M), bool"
            )
    if not (positive_mask & candidate_mask).any():
        raise InputError("positive: no entry is both positive and counted, so there is nothing to find")
    if weight is not None and (weight.shape != logits.shape[:1] or not (weight >= 0).all() or not weight.sum() > 0):
        raise InputError(f"weight is {tuple(weight.shape)}; need ({len(logits)},), none negative, not all 0")


class InfoNCE(Objective):
    """Cross-entropy of finding the partner among all items of the batch, averaged over both directions.

    L = a_weight · mean_i [ -log softmax_j(s_ij / τ)_i ] + b_weight · mean_j [ -log softmax_i(s_ij / τ)_j ]
    positives: what becomes of other right answers of i (match_ij, i ≠ j):
      "single"   they are left out of the sums: not wrong, and not asked for;
      "pairwise"  each is asked for in turn, the others left out: mean over all right pairs;
      "supcon"   each is asked for among everything, other right answers too: mean within a row, then over rows.
    gce_q = q in (0, 1] puts (1 - P^q) / q in place of each -log P, P being the softmax above: a pair that does not
      fit at all (P near 0) costs at most 1/q and pulls no more, so wrong pairs are let go; 0 is the cross-entropy.
    stream_block > 0 streams: the (N, N) scores never exist, the numbers are the same (2048 is quick).

    Source: van den Oord et al. 2018; symmetric, with a learned τ: Radford et al. 2021, Elizalde et al. 2022;
      "pairwise" is NT-Xent (Chen et al. 2020), "supcon" is SupCon (Khosla et al. 2020); gce_q: Zhang and Sabuncu 2018.
    Use when: pairs are mostly right and batches are large (hundreds); gce_q of 0.5 to 0.8 where some are wrong.
    Beware: every other item of the batch counts as wrong unless it shares the group; without gce_q wrong pairs are
      learned too. stream_block needs an exact similarity, positives = "single", no label smoothing and no gce_q.
    """

    def __init__(
        self,
        temperature: float = 0.07,
        learn_temperature: bool = True,
        min_temperature: float = 0.01,
        a_weight: float = 0.5,
        b_weight: float = 0.5,
        label_smoothing: float = 0.0,
        gce_q: float = 0.0,
        positives: PositivesMode = "single",
        stream_block: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < min_temperature <= temperature < math.inf:
            raise RecipeError(
                f"infonce: temperature = {temperature} and min_temperature = {min_temperature}; "
                "need 0 < min_temperature <= temperature"
            )
        if not (0 <= a_weight < math.inf and 0 <= b_weight < math.inf and a_weight + b_weight > 0):
            raise RecipeError(f"infonce: a_weight = {a_weight}, b_weight = {b_weight}; need 0 or more, not both 0")
        if not 0 <= label_smoothing < 1:
            raise RecipeError(f"infonce: label_smoothing = {label_smoothing}; need 0 <= label_smoothing < 1")
        if not 0 <= gce_q <= 1:
            raise RecipeError(f"infonce: gce_q = {gce_q}; need 0 <= gce_q <= 1")
        if gce_q and label_smoothing:
            raise RecipeError("infonce: gce_q and label_smoothing are two ways to trust pairs less; choose one")
        if positives not in ("single", "pairwise", "supcon"):
            raise RecipeError(f"infonce: positives = {positives!r}; need 'single', 'pairwise' or 'supcon'")
        if stream_block < 0:
            raise RecipeError(f"infonce: stream_block = {stream_block}; need 0 (no streaming) or more")
        if stream_block and (positives != "single" or label_smoothing or gce_q):
            raise RecipeError(
                f"infonce: stream_block = {stream_block} streams only with positives = 'single', label_smoothing = 0 and gce_q = 0, "
                f"not with {positives!r}, {label_smoothing} and {gce_q}"
            )
        self.temperature, self.learn_temperature = temperature, learn_temperature
        self.min_temperature = min_temperature
        self.a_weight, self.b_weight = a_weight, b_weight
        self.label_smoothing, self.gce_q, self.positives, self.stream_block = (
            label_smoothing,
            gce_q,
            positives,
            stream_block,
        )
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learn_temperature)

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        a_to_b, b_to_a = self._streamed_losses(pair) if self.stream_block else self._dense_losses(pair)
        return {"a_to_b": self.a_weight * a_to_b, "b_to_a": self.b_weight * b_to_a}

    def _dense_losses(self, pair: Pair) -> tuple[Tensor, Tensor]:
        scores = pair.scores()
        logits = scores.to(torch.promote_types(scores.dtype, torch.float32)) * self.log_scale.exp()  # (N, N)
        positive_mask, candidate_mask = pair.positive_mask, torch.ones_like(pair.positive_mask)
        if self.positives == "single":
            positive_mask = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
            candidate_mask = ~pair.positive_mask | positive_mask
        positives_in_denominator = self.positives == "supcon"
        return (
            infonce_loss(
                logits, positive_mask, candidate_mask, positives_in_denominator, None, self.label_smoothing, self.gce_q
            ),
            infonce_loss(
                logits.T,
                positive_mask.T,
                candidate_mask.T,
                positives_in_denominator,
                None,
                self.label_smoothing,
                self.gce_q,
            ),
        )

    def _streamed_losses(self, pair: Pair) -> tuple[Tensor, Tensor]:
        query, keys, group = compute_streaming_inputs(pair)  # (N, S), (N, S), (N,)
        return streamed_infonce_loss(query, keys, self.log_scale.exp(), group, self.stream_block)

    def metrics_to_log(self) -> dict[str, float]:
        return {"temperature": math.exp(-self.log_scale.item())}

    def after_step(self) -> None:
        max_temperature = max(1.0, self.temperature)
        self.log_scale.data.clamp_(-math.log(max_temperature), -math.log(self.min_temperature))
