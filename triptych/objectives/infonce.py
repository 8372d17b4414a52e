"""Each item must pick its partner out of the batch, both ways."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.contracts import Objective, Pair
from triptych.errors import InputError, RecipeError
from triptych.streaming import BLOCK, log_sum_exps, streamable

Several = Literal["own", "each", "all"]


def infonce(
    logits: Tensor,  # (N, M)
    positive: Tensor,  # (N, M) bool
    counted: Tensor | None = None,  # (N, M) bool
    together: bool = False,
    weight: Tensor | None = None,  # (N,)
    label_smoothing: float = 0.0,
    lenience: float = 0.0,
) -> Tensor:
    """Cross-entropy of each row finding its right answers among the counted columns; one direction.

    For each positive (i, p): -log( e^l_ip / Σ_(j in J) e^l_ij ), where J is p and the wrong answers of row i,
    and with `together` all that is counted, other right answers too. Averaged over all positives; with `together`
    first over the positives of each row, then over the rows that have any. weight: each row's share in that mean.
    label_smoothing = ε puts 1 - ε of the truth on p, and ε evenly on J.
    lenience = q > 0 takes (1 - P^q) / q in place of -log P, with P the probability of p.

    Beware: with one positive in each row, `together` changes nothing. What is not counted is not read: it may be -inf.
    """
    counted = torch.ones_like(positive) if counted is None else counted
    _check(logits, positive, counted, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    rows, columns = (positive & counted).nonzero(as_tuple=True)  # (P,), (P,)
    rivals = counted if together else counted & ~positive  # (N, M)
    own = logits[rows, columns]  # (P,)
    rest = logits.masked_fill(~rivals, -torch.inf).logsumexp(dim=1)[rows]  # (P,)
    # -log sigmoid of the lead: near 0 it keeps the digits that log-sum-exp minus logit would lose.
    losses = rest - own if together else -F.logsigmoid(own - rest)  # (P,)
    if label_smoothing:
        total, number = logits.masked_fill(~rivals, 0.0).sum(dim=1)[rows], rivals.sum(dim=1)[rows]
        mean = total / number if together else (total + own) / (number + 1)
        losses = losses + label_smoothing * (own - mean)
    if lenience:
        losses = -torch.expm1(-lenience * losses) / lenience
    share = torch.ones_like(losses) if weight is None else weight.to(losses.dtype)[rows]
    if together:
        share = share / (positive & counted).sum(dim=1)[rows]
    return (share * losses).sum() / share.sum()


def streamed_infonce(
    query: Tensor,  # (N, S)
    keys: Tensor,  # (N, S)
    scale: Tensor,
    group: Tensor | None = None,  # (N,)
    block: int = BLOCK,
) -> tuple[Tensor, Tensor]:
    """Both directions of infonce, row i with column i, without the (N, N) logits = scale · query @ keys.T.

    mean_i log(1 + e^(r_i - l_ii)), r_i = log Σ_j e^l_ij over the j of other groups; and the same over columns.
    """
    if len(query) != len(keys):
        raise InputError(f"query has {len(query)} rows and keys has {len(keys)}; row i belongs with row i")
    groups = None if group is None else (group, group)
    rest_of_row, rest_of_column = log_sum_exps(query, keys, scale, left_out=groups, diagonal=False, block=block)
    own = scale * torch.einsum("ns,ns->n", query.to(rest_of_row.dtype), keys.to(rest_of_row.dtype))  # (N,)
    return -F.logsigmoid(own - rest_of_row).mean(), -F.logsigmoid(own - rest_of_column).mean()


def _check(logits: Tensor, positive: Tensor, counted: Tensor, weight: Tensor | None) -> None:
    for name, mask in (("positive", positive), ("counted", counted)):
        if logits.dim() != 2 or mask.shape != logits.shape or mask.dtype != torch.bool:
            raise InputError(
                f"logits {tuple(logits.shape)}, {name} {tuple(mask.shape)} {mask.dtype}; need (N, M), bool"
            )
    if not (positive & counted).any():
        raise InputError("positive: no entry is both positive and counted, so there is nothing to find")
    if weight is not None and (weight.shape != logits.shape[:1] or not (weight >= 0).all() or not weight.sum() > 0):
        raise InputError(f"weight is {tuple(weight.shape)}; need ({len(logits)},), none negative, not all 0")


class InfoNCE(Objective):
    """Cross-entropy of finding the partner among all items of the batch, averaged over both directions.

    L = a_weight · mean_i [ -log softmax_j(s_ij / τ)_i ] + b_weight · mean_j [ -log softmax_i(s_ij / τ)_j ]
    several: what becomes of other right answers of i (match_ij, i ≠ j):
      "own"   they are left out of the sums: not wrong, and not asked for;
      "each"  each is asked for in turn, the others left out: mean over all right pairs;
      "all"   each is asked for among everything, other right answers too: mean within a row, then over rows.
    lenience = q in (0, 1] puts (1 - P^q) / q in place of each -log P, P being the softmax above: a pair that does not
      fit at all (P near 0) costs at most 1/q and pulls no more, so wrong pairs are let go; 0 is the cross-entropy.
    block > 0 streams: the (N, N) scores never exist, the numbers are the same (2048 is quick).

    Source: van den Oord et al. 2018; symmetric, with a learned τ: Radford et al. 2021, Elizalde et al. 2022;
      "each" is NT-Xent (Chen et al. 2020), "all" is SupCon (Khosla et al. 2020); lenience: Zhang and Sabuncu 2018.
    Use when: pairs are mostly right and batches are large (hundreds); lenience of 0.5 to 0.8 where some are wrong.
    Beware: every other item of the batch counts as wrong unless it shares the group; without lenience wrong pairs are
      learned too. block needs an exact similarity, several = "own", no label smoothing and no lenience.
    """

    def __init__(
        self,
        temperature: float = 0.07,
        learn_temperature: bool = True,
        smallest_temperature: float = 0.01,
        a_weight: float = 0.5,
        b_weight: float = 0.5,
        label_smoothing: float = 0.0,
        lenience: float = 0.0,
        several: Several = "own",
        block: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < smallest_temperature <= temperature < math.inf:
            raise RecipeError(
                f"infonce: temperature = {temperature} and smallest_temperature = {smallest_temperature}; "
                "need 0 < smallest_temperature <= temperature"
            )
        if not (0 <= a_weight < math.inf and 0 <= b_weight < math.inf and a_weight + b_weight > 0):
            raise RecipeError(f"infonce: a_weight = {a_weight}, b_weight = {b_weight}; need 0 or more, not both 0")
        if not 0 <= label_smoothing < 1:
            raise RecipeError(f"infonce: label_smoothing = {label_smoothing}; need 0 <= label_smoothing < 1")
        if not 0 <= lenience <= 1:
            raise RecipeError(f"infonce: lenience = {lenience}; need 0 <= lenience <= 1")
        if lenience and label_smoothing:
            raise RecipeError("infonce: lenience and label_smoothing are two ways to trust pairs less; choose one")
        if several not in ("own", "each", "all"):
            raise RecipeError(f"infonce: several = {several!r}; need 'own', 'each' or 'all'")
        if block < 0:
            raise RecipeError(f"infonce: block = {block}; need 0 (no streaming) or more")
        if block and (several != "own" or label_smoothing or lenience):
            raise RecipeError(
                f"infonce: block = {block} streams only with several = 'own', label_smoothing = 0 and lenience = 0, "
                f"not with {several!r}, {label_smoothing} and {lenience}"
            )
        self.temperature, self.learn_temperature = temperature, learn_temperature
        self.smallest_temperature = smallest_temperature
        self.a_weight, self.b_weight = a_weight, b_weight
        self.label_smoothing, self.lenience, self.several, self.block = label_smoothing, lenience, several, block
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learn_temperature)

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        a_to_b, b_to_a = self._streamed(pair) if self.block else self._dense(pair)
        return {"a_to_b": self.a_weight * a_to_b, "b_to_a": self.b_weight * b_to_a}

    def _dense(self, pair: Pair) -> tuple[Tensor, Tensor]:
        scores = pair.scores()
        logits = scores.to(torch.promote_types(scores.dtype, torch.float32)) * self.log_scale.exp()  # (N, N)
        positive, counted = pair.match, torch.ones_like(pair.match)
        if self.several == "own":
            positive = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
            counted = ~pair.match | positive
        together = self.several == "all"
        return (
            infonce(logits, positive, counted, together, None, self.label_smoothing, self.lenience),
            infonce(logits.T, positive.T, counted.T, together, None, self.label_smoothing, self.lenience),
        )

    def _streamed(self, pair: Pair) -> tuple[Tensor, Tensor]:
        query, keys, group = streamable(pair)  # (N, S), (N, S), (N,)
        return streamed_infonce(query, keys, self.log_scale.exp(), group, self.block)

    def state(self) -> dict[str, float]:
        return {"temperature": math.exp(-self.log_scale.item())}

    def after_step(self) -> None:
        hottest = max(1.0, self.temperature)
        self.log_scale.data.clamp_(-math.log(hottest), -math.log(self.smallest_temperature))
