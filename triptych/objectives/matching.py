"""Matching loss: divergence between the optimal transport plan of a batch and the plan of its positives."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from triptych.errors import InputError, RecipeError, check_range, describe_unknown
from triptych.interfaces import Pair
from triptych.objectives.objective import Objective
from triptych.objectives.scores import check_scores
from triptych.streaming import DEFAULT_BLOCK_SIZE, compute_streaming_inputs
from triptych.transport import Plan, SolveInfo, plan_cross_entropy, plan_divergence, streamed_optimal_value

MatchingForm = Literal["trimmed", "target", "kl_unnormalised"]
MIN_MASS = 0.1  # the lower bound of the mass if mass = "estimate"


def target_plan(positive_mask: Tensor, pair_weights: Tensor) -> Tensor:
    """Return the target plan T for pair weights w: T_ij = positive_mask_ij · w_i · w_j / (N · sum of w in the group).

    Row i and column i of T both sum to w_i / N. For a group of one row, T_ii = w_i / N.
    """
    n = len(positive_mask)
    first_positive = positive_mask.int().argmax(dim=1)  # the index of the group's first row, which identifies the group
    if not torch.equal(positive_mask, first_positive[:, None] == first_positive):
        raise InputError("positive_mask does not consist of groups: it must be reflexive, symmetric and transitive")
    pair_weights = pair_weights.to(positive_mask.device, torch.float64)
    group_weights = positive_mask * pair_weights  # (N, N)
    return group_weights.mul_((pair_weights / group_weights.sum(1).clamp_min(1e-300) / n)[:, None])


def estimate_noise_rate(scores: Tensor, positive_mask: Tensor) -> Tensor:
    """Estimate the fraction of mismatched pairs, a scalar in [0, 1], from the ranks of the positives.

    The rank of a pair is the fraction of negatives that score higher than the pair. Ranks of mismatched pairs are
    uniform on [0, 1], and ranks of correct pairs are near 0. So about half of the mismatched pairs, and almost no
    correct pairs, have a rank above ½. The estimate is twice the fraction of pairs with a rank above ½, averaged over
    both directions.

    Source: Storey 2002, who estimates the proportion of true null hypotheses; here, the ranks are the p-values.
    Beware: the estimate is too high (near 1) before training, and too low after training has memorised mismatched
    pairs.
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
    """Return N pair weights that sum to mass · N: 1 for the highest-scoring pairs, a fraction for one pair, else 0."""
    order = pair_scores.argsort(descending=True, stable=True)
    ranks = torch.arange(len(pair_scores), device=pair_scores.device, dtype=torch.float64)
    pair_weights = torch.empty_like(ranks)
    pair_weights[order] = (mass * len(pair_scores) - ranks).clamp(0, 1)
    return pair_weights


def matching_loss(
    scores: Tensor, positive_mask: Tensor, epsilon: float, mass: float = 1.0, form: MatchingForm = "trimmed"
) -> tuple[Tensor, Plan]:
    """Return the loss of `Matching` and the transport plan for scores (N, N) and a bool positive_mask (N, N)."""
    check_scores(scores, positive_mask, square=True)
    if form not in get_args(MatchingForm):
        raise InputError(describe_unknown("form", form, get_args(MatchingForm)))
    full_weights = torch.ones(len(scores), dtype=torch.float64, device=scores.device)
    if mass == 1 or form != "kl_unnormalised":
        trimmed = form == "trimmed" and mass != 1
        weights = select_best_pairs(scores.detach().diagonal(), mass) if trimmed else mass * full_weights
        return plan_divergence(-scores, target_plan(positive_mask, weights), epsilon, mass=mass)
    target = target_plan(positive_mask, full_weights)
    loss, plan = plan_cross_entropy(-scores, target, epsilon, mass=mass)
    positive = target[target > 0]
    return loss + (positive @ positive.log() + math.log(mass)).to(loss.dtype), plan


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
    only one inner product per group: the weighted sum of the group's queries times the weighted sum of the group's
    keys.
    """
    if len(query) != len(keys):
        raise InputError(f"query has {len(query)} rows and keys has {len(keys)}; need the same number")
    optimal_value, solve_info = streamed_optimal_value(query, keys, epsilon, mass, block_size)
    n = len(query)
    pair_scores = torch.einsum("ns,ns->n", query.detach().double(), keys.detach().double())
    trimmed = form == "trimmed" and mass != 1
    weights = select_best_pairs(pair_scores, mass) if trimmed else torch.full_like(pair_scores, mass)  # (N,)
    groups, member = group.unique(return_inverse=True)  # (G,), (N,)
    group_weights = weights.new_zeros(len(groups)).index_add(0, member, weights)  # (G,)
    zeros = weights.new_zeros(len(groups), query.shape[1])
    query_sums, key_sums = (zeros.index_add(0, member, x.double() * weights[:, None]) for x in (query, keys))  # (G, S)
    target_score = ((query_sums * key_sums).sum(dim=1) / group_weights.clamp_min(1e-300)).sum() / n  # <T, scores>
    entropy = 2 * torch.xlogy(weights, weights).sum() - torch.xlogy(group_weights, n * group_weights).sum()
    loss = entropy / n - target_score / epsilon - optimal_value
    return loss.to(torch.promote_types(query.dtype, torch.float32)), solve_info


class Matching(Objective):
    """Divergence between the entropic transport plan of the batch and a target plan that matches only positives.

    P is the entropic transport plan of the batch for cost C = -scores, epsilon and uniform weights. T is the target
    plan I/N; if an item has several positives, T distributes the item's mass uniformly over the positives.
    mass = 1:  L = KL(T || P) = -(1/N) sum_i log P_ii - log N,                   dL/dC = (T - P) / epsilon.
    mass < 1:  P has total mass `mass`, and each row and column sums to at most 1/N, so P can leave items unmatched.
      trimmed T = 1/N on the mass · N positive pairs with the highest scores, 0 on all other pairs, so that pairs that
      look mismatched get no gradient. L = KL(T || P) + the cost of the weights T leaves unused (`plan_divergence`).
      target   T = mass · I/N, with the same L. Mismatched pairs get as much gradient as correct pairs.
      kl_unnormalised  L = KL(I/N || P/mass) = -(1/N) sum_i log P_ii - log(N/mass). The target has more mass than P,
               so the worst pairs get the largest gradient, which is implicit: (T - P ∘ (u ⊕ v)) / epsilon.
    The loss is 0 if P = T (for kl_unnormalised, if P = mass · T). The loss of the original code is larger by log N
    (mass = 1) or log(N/mass) (mass < 1).

    Args:
        epsilon: the entropic regularisation, in the unit of the scores.
        mass: the fraction of the pairs that are matched. "estimate": 1 minus the moving average of the noise rate
            (`estimate_noise_rate`). The moving average starts at 0, so all pairs count in the first steps.
        form: "trimmed", "target" or "kl_unnormalised", for mass < 1.
        stream_block: above 0, compute the same result in blocks, without storing the (N, N) scores.
        ema_batches: the number of batches of the moving average.

    Inputs: embeddings `a` and `b` (N, D), parts with masks and a similarity of parts, or `scores` (N, N); `group` (N,)
        is optional. `Objective.forward` describes the inputs.
    Returns: a scalar tensor.
    Requirements: float64 on the device, because plans are solved in float64.
    Also known as: m-LTM loss, inverse optimal transport. With mass = 1, it is `InfoNCE` with a softmax over rows and
        columns at once, and epsilon as the temperature.
    Example:
        >>> import torch
        >>> from triptych.losses import Matching
        >>> a, b = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
        >>> print(f"{Matching(epsilon=0.5)(a, b):.4f}")
        0.2633

    Source: Luong et al. 2024 (ICLR), "Revisiting deep audio-text retrieval through the lens of transportation";
        trimmed and target are Fenchel–Young losses (Blondel et al. 2020); trimming is taken from least trimmed squares.
    Use when: each item has one positive in a batch. If some pairs are mismatched, set mass to 1 - noise rate.
    Beware: epsilon has the unit of the scores. For cosine, 0.03 to 0.1 works well and 0.5 works badly. The form trimmed
        ranks pairs by their current scores. If mass is below the fraction of correct pairs, trimmed treats low-scoring
        correct pairs as mismatched. stream_block needs an exact similarity, does not support kl_unnormalised with mass
        < 1, and computes all scores about a hundred times.
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
            problem = f"stream_block = {stream_block} cannot be combined with mass = 'estimate'"
            raise RecipeError(f"matching: {problem}; set mass to a number")
        if form not in get_args(MatchingForm):
            raise RecipeError(f"matching: {describe_unknown('form', form, get_args(MatchingForm))}")
        check_range("matching: stream_block", stream_block, 0)
        if stream_block and form == "kl_unnormalised" and mass != 1:
            problem = f"stream_block = {stream_block} does not support the partial form 'kl_unnormalised'"
            raise RecipeError(f"matching: {problem}; use another form")
        self.epsilon, self.mass, self.stream_block, self.ema_batches = epsilon, mass, stream_block, ema_batches
        self.form: MatchingForm = form
        self.register_buffer("noise_rate", torch.zeros((), dtype=torch.float64))  # a moving average over batches
        self.noise_rate: Tensor
        self.last_solve: dict[str, float] = {}  # the iterations, error and mass of the most recent plan, for the log

    def terms(self, pair: Pair) -> dict[str, Tensor]:
        if self.stream_block:
            form = "target" if self.form == "kl_unnormalised" else self.form  # the two forms are equal for mass = 1
            options = self.epsilon, self._current_mass(), form, self.stream_block
            loss, info = streamed_matching_loss(*compute_streaming_inputs(pair), *options)
        else:
            scores = pair.scores()
            if self.mass == "estimate" and self.training:
                noise_rate = estimate_noise_rate(scores.detach(), pair.positive_mask)
                self.noise_rate.lerp_(noise_rate.to(self.noise_rate), 1 / self.ema_batches)
            loss, info = matching_loss(scores, pair.positive_mask, self.epsilon, self._current_mass(), self.form)
        self.last_solve = {"iterations": info.iterations, "error": info.error, "mass": self._current_mass()}
        return {"matching": loss}

    def _current_mass(self) -> float:
        return max(MIN_MASS, 1 - self.noise_rate.item()) if self.mass == "estimate" else float(self.mass)

    def metrics_to_log(self) -> dict[str, float]:
        return self.last_solve
