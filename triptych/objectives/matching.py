"""Matching loss: divergence between the optimal transport plan of a batch and the plan of its positives."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from triptych.errors import InputError, RecipeError, check_range, describe_unknown
from triptych.interfaces import Objective, Pair
from triptych.objectives.scores import check_scores
from triptych.streaming import DEFAULT_BLOCK_SIZE, compute_streaming_inputs
from triptych.transport import Plan, SolveInfo, plan_cross_entropy, plan_divergence, streamed_optimal_value

MatchingForm = Literal["trimmed", "target", "kl_unnormalised"]
MIN_MASS = 0.1  # lower bound of an estimated mass


def target_plan(positive_mask: Tensor, pair_weights: Tensor) -> Tensor:
    """Return the target plan T for pair weights w: T_ij = positive_mask_ij · w_i · w_j / (N · sum of w in the group).

    Row i and column i of T both sum to w_i / N. For a group of one row, T_ii = w_i / N.
    """
    n = len(positive_mask)
    first_positive = positive_mask.int().argmax(dim=1)  # identifies the group
    if not torch.equal(positive_mask, first_positive[:, None] == first_positive):
        raise InputError("positive_mask does not consist of groups: it must be reflexive, symmetric and transitive")
    pair_weights = pair_weights.to(positive_mask.device, torch.float64)
    group_weights = positive_mask * pair_weights  # (N, N)
    return group_weights.mul_((pair_weights / group_weights.sum(1).clamp_min(1e-300) / n)[:, None])


def estimate_noise_rate(scores: Tensor, positive_mask: Tensor) -> Tensor:
    """Estimate the fraction of mismatched pairs from the ranks of the positives: () in [0, 1].

    The rank of a pair is the fraction of negatives that score higher: uniform on [0, 1] for mismatched pairs, near 0
    for correct pairs. So nearly all pairs with a rank above ½ are mismatched, and they are half of the mismatched
    pairs. The estimate is twice the fraction of pairs with a rank above ½, averaged over both directions.

    Source: Storey 2002, the proportion of true null hypotheses, with p-values computed from scores.
    Beware: the estimate is too high before training (near 1), and too low after mismatched pairs have been memorised.
    """
    num_negatives = (~positive_mask).sum(dim=1).clamp_min(1)  # (N,)
    positive_scores = scores.diagonal()
    rates = []
    for side in (scores, scores.T):
        num_higher = ((side > positive_scores[:, None]) & ~positive_mask).sum(dim=1)
        num_equal = ((side == positive_scores[:, None]) & ~positive_mask).sum(dim=1)
        rates.append(((num_higher + 0.5 * num_equal) / num_negatives > 0.5).double().mean())
    return (2 * torch.stack(rates).mean()).clamp_max(1)


def select_best_pairs(pair_scores: Tensor, mass: float) -> Tensor:
    """Return N pair weights with sum mass · N: 1 for the highest-scoring pairs, then one fraction, then 0."""
    order = pair_scores.argsort(descending=True, stable=True)
    ranks = torch.arange(len(pair_scores), device=pair_scores.device, dtype=torch.float64)
    pair_weights = torch.empty_like(ranks)
    pair_weights[order] = (mass * len(pair_scores) - ranks).clamp(0, 1)
    return pair_weights


def matching_loss(
    scores: Tensor, positive_mask: Tensor, epsilon: float, mass: float = 1.0, form: MatchingForm = "trimmed"
) -> tuple[Tensor, Plan]:
    """Return the loss of `Matching` and the transport plan; scores (N, N), positive_mask (N, N) bool."""
    check_scores(scores, positive_mask, square=True)
    if form not in get_args(MatchingForm):
        raise InputError(describe_unknown("form", form, get_args(MatchingForm)))
    full_weights = torch.ones(len(scores), dtype=torch.float64, device=scores.device)
    if mass == 1 or form != "kl_unnormalised":
        pair_weights = select_best_pairs(scores.detach().diagonal(), mass) if form == "trimmed" else mass * full_weights
        return plan_divergence(
            -scores, target_plan(positive_mask, full_weights if mass == 1 else pair_weights), epsilon, mass=mass
        )
    target = target_plan(positive_mask, full_weights)
    loss, plan = plan_cross_entropy(-scores, target, epsilon, mass=mass)
    positive_entries = target[target > 0]
    return loss + (positive_entries @ positive_entries.log() + math.log(mass)).to(loss.dtype), plan


def streamed_matching_loss(
    query: Tensor,  # (N, S)
    keys: Tensor,  # (N, S)
    group: Tensor,  # (N,)
    epsilon: float,
    mass: float = 1.0,
    form: Literal["trimmed", "target"] = "trimmed",
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> tuple[Tensor, SolveInfo]:
    """Return the loss of `Matching` without storing the scores (N, N) = query @ keys.T, and the solver's SolveInfo.

    Within a group, the target is w_i · w_j / (N · W), where W is the sum of the group's weights. So <T, scores> needs
    one inner product per group: of the weighted sum of the group's queries and the weighted sum of the group's keys.
    """
    if len(query) != len(keys):
        raise InputError(f"query has {len(query)} rows and keys has {len(keys)}; need the same number")
    optimal_value, solve_info = streamed_optimal_value(query, keys, epsilon, mass, block_size)
    n = len(query)
    pair_scores = torch.einsum("ns,ns->n", query.detach().double(), keys.detach().double())
    pair_weights = (
        torch.full_like(pair_scores, mass) if form == "target" or mass == 1 else select_best_pairs(pair_scores, mass)
    )
    groups, member = group.unique(return_inverse=True)  # (G,), (N,)
    group_weights = pair_weights.new_zeros(len(groups)).index_add(0, member, pair_weights)  # (G,)
    totals = (query.new_zeros(len(groups), query.shape[1], dtype=torch.float64) for _ in range(2))
    query_sums, key_sums = (
        total.index_add(0, member, side.double() * pair_weights[:, None])
        for total, side in zip(totals, (query, keys), strict=True)
    )
    target_score = ((query_sums * key_sums).sum(dim=1) / group_weights.clamp_min(1e-300)).sum() / n  # <T, scores>
    # sum T log T
    entropy = 2 * torch.xlogy(pair_weights, pair_weights).sum() - torch.xlogy(group_weights, n * group_weights).sum()
    loss = entropy / n - target_score / epsilon - optimal_value
    return loss.to(torch.promote_types(query.dtype, torch.float32)), solve_info


class Matching(Objective):
    """Divergence between the entropic transport plan of the batch and a target plan that matches only positives.

    P = entropic transport plan of the batch for cost C = -scores, epsilon and uniform weights. T = target plan: I/N, or
    if items have several positives, their mass is distributed uniformly over the positives.
    mass = 1:  L = KL(T || P) = -(1/N) sum_i log P_ii - log N,                   dL/dC = (T - P) / epsilon, exactly.
    mass < 1:  P has total mass `mass`, and rows and columns sum to at most 1/N, so P need not match every item.
      trimmed T = 1/N on the mass · N positive pairs with the highest scores, 0 on all others: pairs that look
               mismatched get no gradient. L = KL(T || P) + the cost of the weights T leaves unused (`plan_divergence`).
      target   T = mass · I/N, all pairs alike; the same L. Mismatched pairs get as much gradient as correct ones.
      kl_unnormalised  L = KL(I/N || P/mass) = -(1/N) sum_i log P_ii - log(N/mass). The target has more mass than P,
               so the worst pairs get the largest gradient, which is implicit: (T - P ∘ (u ⊕ v)) / epsilon.
    mass = "estimate": 1 minus the estimated fraction of mismatched pairs (`estimate_noise_rate`), as a moving average
      of this fraction over about `ema_batches` batches. The average starts at 0, so all pairs count in the first steps.
    The loss is 0 if P = T (kl_unnormalised: P = mass · T). The loss of the original code is larger by log N (mass = 1)
    or log(N/mass) (mass < 1).
    stream_block > 0: compute in blocks, without the (N, N) scores; same result.

    Source: Luong et al. 2024 (ICLR), "Revisiting deep audio-text retrieval through the lens of transportation";
        trimmed and target: Fenchel–Young losses (Blondel et al. 2020), trimming as in least trimmed squares.
    Use when: each item has one positive in a batch. Set mass to 1 - noise rate if some pairs are mismatched.
    Beware: epsilon is in units of the scores: 0.03 to 0.1 for cosine; 0.5 works badly. trimmed ranks pairs by their
        current scores: if mass is below the fraction of correct pairs, low-scoring correct pairs are treated as
        mismatched. stream_block needs an exact similarity, does not support kl_unnormalised with mass < 1, and computes
        all scores about a hundred times.
    """

    def __init__(
        self,
        epsilon: float = 0.05,
        mass: float | Literal["estimate"] = 1.0,
        form: MatchingForm = "trimmed",
        stream_block: int = 0,
        ema_batches: int = 20,
    ) -> None:
        super().__init__()
        if not 0 < epsilon < math.inf:
            raise RecipeError(f"matching: epsilon = {epsilon}; need a finite number above 0")
        if mass != "estimate" and not (isinstance(mass, int | float) and 0 < mass <= 1):
            raise RecipeError(f"matching: mass = {mass!r}; need a fraction in (0, 1], or 'estimate'")
        if ema_batches < 1:
            raise RecipeError(f"matching: ema_batches = {ema_batches}; need at least 1 batch")
        if stream_block and mass == "estimate":
            raise RecipeError(
                f"matching: stream_block = {stream_block} cannot be combined with mass = 'estimate'; "
                "set mass to a number"
            )
        if form not in get_args(MatchingForm):
            raise RecipeError(f"matching: {describe_unknown('form', form, get_args(MatchingForm))}")
        check_range("matching: stream_block", stream_block, 0)
        if stream_block and form == "kl_unnormalised" and mass != 1:
            raise RecipeError(
                f"matching: stream_block = {stream_block} does not support the partial form 'kl_unnormalised'; "
                "use another form"
            )
        self.epsilon, self.mass, self.stream_block, self.ema_batches = epsilon, mass, stream_block, ema_batches
        self.form: MatchingForm = form
        self.register_buffer("noise_rate", torch.zeros((), dtype=torch.float64))  # estimated
        self.noise_rate: Tensor
        self.last_solve: dict[str, float] = {}  # iterations, error and mass of the last plan

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        if self.stream_block:
            form = "target" if self.form == "kl_unnormalised" else self.form  # the two forms are equal for mass = 1
            loss, solve_info = streamed_matching_loss(
                *compute_streaming_inputs(pair), self.epsilon, self._current_mass(), form, self.stream_block
            )
        else:
            scores = pair.scores()
            if self.mass == "estimate" and self.training:
                self.noise_rate.lerp_(
                    estimate_noise_rate(scores.detach(), pair.positive_mask).to(self.noise_rate), 1 / self.ema_batches
                )
            loss, solve_info = matching_loss(scores, pair.positive_mask, self.epsilon, self._current_mass(), self.form)
        self.last_solve = {"iterations": solve_info.iterations, "error": solve_info.error, "mass": self._current_mass()}
        return {"matching": loss}

    def _current_mass(self) -> float:
        return max(MIN_MASS, 1 - self.noise_rate.item()) if self.mass == "estimate" else float(self.mass)

    def metrics_to_log(self) -> dict[str, float]:
        return self.last_solve
