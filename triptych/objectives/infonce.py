"""InfoNCE: cross-entropy of the positive among all items of the batch, in both directions."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.errors import InputError, RecipeError, check_range
from triptych.interfaces import Pair
from triptych.objectives.objective import Objective
from triptych.objectives.scores import check_scores, upcast_half
from triptych.objectives.temperature import clamp_log_scale_, make_log_scale, temperature_of
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
    """Return the cross-entropy of the positives of each row among the candidate columns, in one direction.

    The loss of a positive (i, p) is -log( e^l_ip / Σ_(j in J) e^l_ij ). J contains p and the negatives of row i. The
    loss is the mean over all positives, and rows without positives are ignored.

    Args:
        logits: scores divided by the temperature, (N, M).
        positive_mask: True where column j is a positive of row i, bool (N, M).
        candidate_mask: the columns that row i reads, bool (N, M). Logits outside the mask may be -inf. The default is
            all columns.
        positives_in_denominator: True: J contains all candidates of row i, including all positives of row i, and the
            loss is the mean over rows of the mean over the positives of each row. With one positive per row, this
            option changes nothing.
        weight: the weight of each row in the mean, (N,).
        label_smoothing: ε puts 1 - ε of the target on p, and distributes ε uniformly over J.
        gce_q: q > 0 replaces -log P by (1 - P^q) / q, where P is the probability of p.

    Returns:
        A scalar tensor.

    Raises:
        InputError: shapes or dtypes are wrong, or no row has a positive among its candidates.

    Example: one set of embeddings with labels, as in SupCon; an item is not its own positive.
        >>> import torch
        >>> from triptych.losses import Cosine, infonce_loss
        >>> x, labels = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> others = ~torch.eye(3, dtype=torch.bool)
        >>> positive_mask = (labels[:, None] == labels) & others
        >>> loss = infonce_loss(Cosine()(x, x) / 0.1, positive_mask, others, positives_in_denominator=True)
        >>> print(f"{loss:.4f}")
        0.0636
    """
    candidate_mask = torch.ones_like(positive_mask) if candidate_mask is None else candidate_mask
    _check_inputs(logits, positive_mask, candidate_mask, weight)
    logits = upcast_half(logits)
    rows, columns = (positive_mask & candidate_mask).nonzero(as_tuple=True)  # (P,), (P,)
    denominator_mask = candidate_mask if positives_in_denominator else candidate_mask & ~positive_mask  # (N, M)
    losses = _cross_entropies(logits, rows, columns, denominator_mask, positives_in_denominator, label_smoothing)
    if gce_q:
        losses = -torch.expm1(-gce_q * losses) / gce_q
    row_weights = torch.ones_like(losses) if weight is None else weight.to(losses.dtype)[rows]
    if positives_in_denominator:
        row_weights = row_weights / (positive_mask & candidate_mask).sum(dim=1)[rows]
    return (row_weights * losses).sum() / row_weights.sum()


def _cross_entropies(
    logits: Tensor,  # (N, M)
    rows: Tensor,  # (P,)
    columns: Tensor,  # (P,)
    denominator_mask: Tensor,  # (N, M) bool
    positives_in_denominator: bool,
    label_smoothing: float,
) -> Tensor:
    """Return the cross-entropy of each positive (row, column): (P,)."""
    positive_logits = logits[rows, columns]  # (P,)
    denominator_lse = logits.masked_fill(~denominator_mask, -torch.inf).logsumexp(dim=1)[rows]  # (P,)
    if positives_in_denominator:
        losses = denominator_lse - positive_logits  # (P,)
    else:
        # -log sigmoid(x) is accurate for losses near 0, where log-sum-exp - logit suffers from cancellation.
        losses = -F.logsigmoid(positive_logits - denominator_lse)
    if label_smoothing:
        total = logits.masked_fill(~denominator_mask, 0.0).sum(dim=1)[rows]
        num_candidates = denominator_mask.sum(dim=1)[rows]
        mean = total / num_candidates if positives_in_denominator else (total + positive_logits) / (num_candidates + 1)
        losses = losses + label_smoothing * (positive_logits - mean)
    return losses


def streamed_infonce_loss(
    query: Tensor,  # (N, S)
    keys: Tensor,  # (N, S)
    scale: Tensor,
    group: Tensor | None = None,  # (N,)
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> tuple[Tensor, Tensor]:
    """Return InfoNCE in both directions without storing the (N, N) logits l = scale · query @ keys.T.

    a_to_b = mean_i log(1 + e^(r_i - l_ii)),  r_i = log Σ_j e^l_ij over the items j of other groups than i
    b_to_a is the same formula for the columns. The positive of query i is key i.
    """
    if len(query) != len(keys):
        raise InputError(f"query has {len(query)} rows and keys has {len(keys)}; need the same number")
    groups = None if group is None else (group, group)
    row_lse, column_lse = log_sum_exps(query, keys, scale, None, None, groups, False, block_size)
    positive_logits = scale * torch.einsum("ns,ns->n", query.to(row_lse.dtype), keys.to(row_lse.dtype))  # (N,)
    return -F.logsigmoid(positive_logits - row_lse).mean(), -F.logsigmoid(positive_logits - column_lse).mean()


def _check_inputs(logits: Tensor, positive_mask: Tensor, candidate_mask: Tensor, weight: Tensor | None) -> None:
    check_scores(logits, positive_mask)
    check_scores(logits, candidate_mask, "candidate_mask")
    if not (positive_mask & candidate_mask).any():
        raise InputError("positive_mask: no row has a positive among its candidates")
    if weight is not None and (weight.shape != logits.shape[:1] or not (weight >= 0).all() or not weight.sum() > 0):
        raise InputError(f"weight is {tuple(weight.shape)}; need ({len(logits)},), none negative, not all 0")


class InfoNCE(Objective):
    """Cross-entropy of the positive among all items of the batch, averaged over both directions.

    L = a_weight · mean_i [ -log softmax_j(s_ij / τ)_i ] + b_weight · mean_j [ -log softmax_i(s_ij / τ)_j ]

    Args:
        temperature: τ, at the start of training if it is learned.
        learn_temperature: train log(1 / τ) as a parameter of this module.
        min_temperature: the lower bound of τ; `after_step` restores it after an optimizer step.
        a_weight: the weight of the direction from a to b.
        b_weight: the weight of the direction from b to a.
        label_smoothing: the part of each target that is distributed uniformly over all candidates.
        gce_q: q in (0, 1] replaces each -log P by (1 - P^q) / q (generalised cross-entropy), where P is the softmax.
            The loss of a pair is then at most 1/q. A pair with P near 0 gets almost no gradient, so mismatched pairs
            have little influence. With 0, the loss is the cross-entropy.
        positives: what to do with the other positives of row i, which are the items j ≠ i of the same group. "single"
            removes the other positives from the softmax, so that the other positives are neither targets nor
            negatives. "pairwise" makes each positive a target once, without the other positives in the denominator,
            and averages over all positive pairs. "supcon" makes each positive a target once, with the other positives
            in the denominator, and averages over the positives of each row, then over rows.
        stream_block: above 0, compute the same result in blocks, without storing the (N, N) scores; 2048 is fast.

    Inputs: embeddings `a` and `b` (N, D), parts with masks and a similarity of parts, or `scores` (N, N); `group` (N,)
        is optional. `Objective.forward` describes the inputs.
    Returns: a scalar tensor.
    Requirements: rows of at least two groups. A batch of one group has no negatives, and its loss is 0. With "supcon",
        the loss of such a batch is above 0, and only makes the scores of each row equal.
    Also known as: CLIP loss, symmetric cross-entropy with in-batch negatives, MultipleNegativesSymmetricRankingLoss
        with scale = 1 / τ. With a_weight = 1 and b_weight = 0: N-pair loss, MultipleNegativesRankingLoss; "pairwise" is
        NT-Xent and "supcon" is SupCon, with anchors in a, and positives and negatives in b. Unlike SimCLR, items of a
        are not compared with each other; for one set of embeddings with labels, use `infonce_loss`. SupConLoss of
        pytorch-metric-learning is 0 for a batch without negatives.
    Example:
        >>> import torch
        >>> from triptych.losses import InfoNCE
        >>> loss = InfoNCE(temperature=0.5)
        >>> a, b = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
        >>> print(f"{loss(a, b):.4f}")
        0.2987
        >>> print(f"{loss(a, b, group=torch.tensor([7, 7])):.4f}")  # the rows are positives of each other
        0.0000

    Source: van den Oord et al. 2018; symmetric, with a learned τ: Radford et al. 2021, Elizalde et al. 2022;
      "pairwise" is NT-Xent (Chen et al. 2020), "supcon" is SupCon (Khosla et al. 2020); gce_q: Zhang and Sabuncu 2018.
    Use when: most pairs are correct and batches are large (hundreds). If some pairs are mismatched, set gce_q to
    0.5–0.8.
    Beware: all items of the batch that are in other groups are negatives. Without gce_q, the space also learns
    mismatched pairs. stream_block needs an exact similarity, positives = "single", no label smoothing and no gce_q.
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
        self.log_scale = make_log_scale("infonce", temperature, min_temperature, learn_temperature)
        if not (0 <= a_weight < math.inf and 0 <= b_weight < math.inf and a_weight + b_weight > 0):
            raise RecipeError(f"infonce: a_weight = {a_weight}, b_weight = {b_weight}; need 0 or more, not both 0")
        if not 0 <= label_smoothing < 1:
            raise RecipeError(f"infonce: label_smoothing = {label_smoothing}; need 0 <= label_smoothing < 1")
        if not 0 <= gce_q <= 1:
            raise RecipeError(f"infonce: gce_q = {gce_q}; need 0 <= gce_q <= 1")
        if gce_q and label_smoothing:
            raise RecipeError("infonce: gce_q and label_smoothing cannot be combined; set one of them to 0")
        if positives not in ("single", "pairwise", "supcon"):
            raise RecipeError(f"infonce: positives = {positives!r}; need 'single', 'pairwise' or 'supcon'")
        check_range("infonce: stream_block", stream_block, 0)
        if stream_block and (positives != "single" or label_smoothing or gce_q):
            needs = "needs positives = 'single', label_smoothing = 0 and gce_q = 0"
            actual = f"not {positives!r}, {label_smoothing} and {gce_q}"
            raise RecipeError(f"infonce: stream_block = {stream_block} {needs}, {actual}")
        self.temperature, self.learn_temperature, self.min_temperature = temperature, learn_temperature, min_temperature
        self.a_weight, self.b_weight, self.label_smoothing, self.gce_q = a_weight, b_weight, label_smoothing, gce_q
        self.positives, self.stream_block = positives, stream_block

    def terms(self, pair: Pair) -> dict[str, Tensor]:
        a_to_b, b_to_a = self._streamed_losses(pair) if self.stream_block else self._dense_losses(pair)
        return {"a_to_b": self.a_weight * a_to_b, "b_to_a": self.b_weight * b_to_a}

    def _dense_losses(self, pair: Pair) -> tuple[Tensor, Tensor]:
        logits = upcast_half(pair.scores()) * self.log_scale.exp()  # (N, N)
        positive_mask, candidate_mask = pair.positive_mask, torch.ones_like(pair.positive_mask)
        if self.positives == "single":
            positive_mask = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
            candidate_mask = ~pair.positive_mask | positive_mask
        options = self.positives == "supcon", None, self.label_smoothing, self.gce_q
        return (
            infonce_loss(logits, positive_mask, candidate_mask, *options),
            infonce_loss(logits.T, positive_mask.T, candidate_mask.T, *options),
        )

    def _streamed_losses(self, pair: Pair) -> tuple[Tensor, Tensor]:
        query, keys, group = compute_streaming_inputs(pair)  # (N, S), (N, S), (N,)
        return streamed_infonce_loss(query, keys, self.log_scale.exp(), group, self.stream_block)

    def metrics_to_log(self) -> dict[str, float]:
        return {"temperature": temperature_of(self.log_scale)}

    def after_step(self) -> None:
        clamp_log_scale_(self.log_scale, self.temperature, self.min_temperature)
