"""The whole batch is matched at once by optimal transport; the right pairs should carry the mass."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from triptych.errors import InputError, RecipeError, describe_unknown
from triptych.interfaces import Objective, Pair
from triptych.streaming import DEFAULT_BLOCK_SIZE, compute_streaming_inputs
from triptych.transport import Plan, SolveInfo, plan_cross_entropy, plan_divergence, streamed_optimal_value

MatchingForm = Literal["trimmed", "target", "kl_unnormalised"]
MIN_MASS = 0.1  # mass an estimate can fall to


def target_plan(positive_mask: Tensor, pair_weights: Tensor) -> Tensor:
    """The plan of right pairs in which pair i holds kept_i / N: T_ij = match_ij · kept_i · kept_j / (N · group's kept).

    Within a group the mass is spread in proportion, so that row i and column i both sum to kept_i / N.
    """
    n = len(positive_mask)
    first_positive = positive_mask.int().argmax(dim=1)  # the first right answer names the group
    if not torch.equal(positive_mask, first_positive[:, None] == first_positive):
        raise InputError("match is not made of groups: where i fits j and j fits k, i must fit k, and i itself")
    pair_weights = pair_weights.to(positive_mask.device, torch.float64)
    group_weights = positive_mask * pair_weights  # (N, N)
    return group_weights.mul_((pair_weights / group_weights.sum(1).clamp_min(1e-300) / n)[:, None])


def estimate_noise_rate(scores: Tensor, positive_mask: Tensor) -> Tensor:
    """How many of the pairs look as if drawn at random: an estimate of the share of wrong ones, () in [0, 1].

    Of a wrong pair, the share of other items that score higher is spread evenly over [0, 1]; of a right pair it is
    near 0. So nearly all that lie above one half are wrong, and as many wrong ones lie below: twice the share above.
    Both directions are averaged.

    Source: Storey 2002, the share of true null hypotheses, for p-values made from scores.
    Beware: too high while scores say little (1 before training), too low where wrong pairs have been learned by heart.
    """
    num_negatives = (~positive_mask).sum(dim=1).clamp_min(1)  # (N,)
    positive_scores = scores.diagonal()
    rates = []
    for side in (scores, scores.T):
        num_higher = ((side > positive_scores[:, None]) & ~positive_mask).sum(dim=1) + 0.5 * (
            (side == positive_scores[:, None]) & ~positive_mask
        ).sum(dim=1)
        rates.append((num_higher / num_negatives > 0.5).double().mean())
    return (2 * torch.stack(rates).mean()).clamp_max(1)


def select_best_pairs(pair_scores: Tensor, mass: float) -> Tensor:
    """1 for the best of N pairs, 0 for the rest, a fraction for the one between: they sum to mass · N."""
    order = pair_scores.argsort(descending=True, stable=True)
    pair_weights = torch.empty(len(pair_scores), dtype=torch.float64, device=pair_scores.device)
    pair_weights[order] = (
        mass * len(pair_scores) - torch.arange(len(pair_scores), device=pair_scores.device, dtype=torch.float64)
    ).clamp(0, 1)
    return pair_weights


def matching_loss(
    scores: Tensor, positive_mask: Tensor, epsilon: float, mass: float = 1.0, form: MatchingForm = "trimmed"
) -> tuple[Tensor, Plan]:
    """The loss of `Matching`, and the plan it is about; scores (N, N), match (N, N) bool."""
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or positive_mask.shape != scores.shape:
        raise InputError(
            f"scores are {tuple(scores.shape)} and match {tuple(positive_mask.shape)}; need (N, N) for both"
        )
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
    """The loss of `Matching` for scores = query @ keys.T that never exist, and how its plan was found.

    The plan of right pairs is kept_i · kept_j / (N · K) within a group of K = sum of kept, so <T, scores> is one inner
    product a group: of the sum of its kept queries with the sum of its kept keys.
    """
    if len(query) != len(keys):
        raise InputError(f"query has {len(query)} rows and keys has {len(keys)}; row i belongs with row i")
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
    entropy = (
        2 * torch.xlogy(pair_weights, pair_weights).sum() - torch.xlogy(group_weights, n * group_weights).sum()
    ) / n  # sum T log T
    return (entropy - target_score / epsilon - optimal_value).to(
        torch.promote_types(query.dtype, torch.float32)
    ), solve_info


class Matching(Objective):
    """Divergence between the plan that matches the batch and the plan that matches only right pairs.

    P = entropic transport plan of the batch: uniform weights, cost C = -scores, epsilon; T = I/N, or spread evenly
    over the right answers where items have several.
    mass = 1:  L = KL(T || P) = -(1/N) sum_i log P_ii - log N,                   dL/dC = (T - P) / epsilon, exactly.
    mass < 1:  P moves only that share (rows and columns sum to at most 1/N), so wrong pairs may stay unmatched.
      trimmed  T = 1/N on the mass · N right pairs with the highest scores, 0 on the others: pairs that look wrong
               are not pulled together. L = KL(T || P) + price of the weights T leaves unused (`plan_divergence`).
      target   T = mass · I/N, all pairs alike; the same L. Wrong pairs pull as hard as right ones.
      kl_unnormalised  L = KL(I/N || P/mass) = -(1/N) sum_i log P_ii - log(N/mass): all pairs are asked for more than P may
               hold, so the worst pull hardest. Its gradient is implicit, (T - P ∘ (u ⊕ v)) / epsilon.
    mass = "estimate": 1 less the share of pairs that look wrong (`estimate_noise_rate`), as a mean over about `ema_batches` batches
      that begins at 0. So all pairs count at first, and fewer as the scores come to tell right from wrong.
    Zero means P = T (kl_unnormalised: P = mass · T). The original code reports log N more, and log(N/mass) in its partial form.
    stream_block > 0 streams: the (N, N) scores never exist, the numbers are the same.

    Source: Luong et al. 2024 (ICLR), "Revisiting deep audio-text retrieval through the lens of transportation";
        trimmed and target: Fenchel–Young losses (Blondel et al. 2020), trimming as in least trimmed squares.
    Use when: pairs are one to one within a batch; mass < 1 where some pairs are wrong (1 - the share of wrong ones).
    Beware: epsilon is in units of the scores: 0.03 to 0.1 for cosines; 0.5 is very poor. trimmed judges pairs by
        their scores of the moment: with a mass below the share of right pairs it pushes the hardest right ones apart.
        stream_block needs an exact similarity and not the paper's partial form, and makes the scores about a hundred times.
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
            raise RecipeError(f"matching: mass = {mass!r}; need a share in (0, 1], or 'estimate'")
        if ema_batches < 1:
            raise RecipeError(f"matching: ema_batches = {ema_batches}; need at least 1 batch")
        if stream_block and mass == "estimate":
            raise RecipeError(
                f"matching: stream_block = {stream_block} does not estimate the mass; set mass to a share"
            )
        if form not in get_args(MatchingForm):
            raise RecipeError(f"matching: {describe_unknown('form', form, get_args(MatchingForm))}")
        if stream_block < 0:
            raise RecipeError(f"matching: stream_block = {stream_block}; need 0 (no streaming) or more")
        if stream_block and form == "kl_unnormalised" and mass != 1:
            raise RecipeError(
                f"matching: stream_block = {stream_block} does not stream the partial form 'kl_unnormalised'; take another form"
            )
        self.epsilon, self.mass, self.stream_block, self.ema_batches = epsilon, mass, stream_block, ema_batches
        self.form: MatchingForm = form
        self.register_buffer("noise_rate", torch.zeros((), dtype=torch.float64))  # share of wrong pairs, as estimated
        self.noise_rate: Tensor
        self.last_solve: dict[str, float] = {}  # how the last plan was solved: iterations, error

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        if self.stream_block:
            form = "target" if self.form == "kl_unnormalised" else self.form  # they differ only where mass < 1
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
