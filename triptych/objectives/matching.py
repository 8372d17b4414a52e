"""The whole batch is matched at once by optimal transport; the right pairs should carry the mass."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from triptych.contracts import Objective, Pair
from triptych.errors import InputError, RecipeError, unknown
from triptych.transport import Plan, plan_cross_entropy, plan_divergence

Form = Literal["trimmed", "target", "paper"]


def right_plan(match: Tensor, kept: Tensor) -> Tensor:
    """The plan of right pairs in which pair i holds kept_i / N: T_ij = match_ij · kept_i · kept_j / (N · group's kept).

    Within a group the mass is spread in proportion, so that row i and column i both sum to kept_i / N.
    """
    n = len(match)
    first = match.int().argmax(dim=1)  # the first right answer names the group
    if not torch.equal(match, first[:, None] == first):
        raise InputError("match is not made of groups: where i fits j and j fits k, i must fit k, and i itself")
    kept = kept.to(match.device, torch.float64)
    spread = match * kept  # (N, N)
    return spread.mul_((kept / spread.sum(1).clamp_min(1e-300) / n)[:, None])


def best_fitting(fit: Tensor, mass: float) -> Tensor:
    """1 for the best of N pairs, 0 for the rest, a fraction for the one between: they sum to mass · N."""
    order = fit.argsort(descending=True, stable=True)
    kept = torch.empty(len(fit), dtype=torch.float64, device=fit.device)
    kept[order] = (mass * len(fit) - torch.arange(len(fit), device=fit.device, dtype=torch.float64)).clamp(0, 1)
    return kept


def matching(
    scores: Tensor, match: Tensor, epsilon: float, mass: float = 1.0, form: Form = "trimmed"
) -> tuple[Tensor, Plan]:
    """The loss of `Matching`, and the plan it is about; scores (N, N), match (N, N) bool."""
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or match.shape != scores.shape:
        raise InputError(f"scores are {tuple(scores.shape)} and match {tuple(match.shape)}; need (N, N) for both")
    if form not in get_args(Form):
        raise InputError(unknown("form", form, get_args(Form)))
    everything = torch.ones(len(scores), dtype=torch.float64, device=scores.device)
    if mass == 1 or form != "paper":
        partial = best_fitting(scores.detach().diagonal(), mass) if form == "trimmed" else mass * everything
        return plan_divergence(-scores, right_plan(match, everything if mass == 1 else partial), epsilon, mass=mass)
    target = right_plan(match, everything)
    loss, plan = plan_cross_entropy(-scores, target, epsilon, mass=mass)
    held = target[target > 0]
    return loss + (held @ held.log() + math.log(mass)).to(loss.dtype), plan


class Matching(Objective):
    """Divergence between the plan that matches the batch and the plan that matches only right pairs.

    P = entropic transport plan of the batch: uniform weights, cost C = -scores, epsilon; T = I/N, or spread evenly
    over the right answers where items have several.
    mass = 1:  L = KL(T || P) = -(1/N) sum_i log P_ii - log N,                   dL/dC = (T - P) / epsilon, exactly.
    mass < 1:  P moves only that share (rows and columns sum to at most 1/N), so wrong pairs may stay unmatched.
      trimmed  T = 1/N on the mass · N right pairs with the highest scores, 0 on the others: pairs that look wrong
               are not pulled together. L = KL(T || P) + price of the weights T leaves unused (`plan_divergence`).
      target   T = mass · I/N, all pairs alike; the same L. Wrong pairs pull as hard as right ones.
      paper    L = KL(I/N || P/mass) = -(1/N) sum_i log P_ii - log(N/mass): all pairs are asked for more than P may
               hold, so the worst pull hardest. Its gradient is implicit, (T - P ∘ (u ⊕ v)) / epsilon.
    Zero means P = T (paper: P = mass · T). The original code reports log N more, and log(N/mass) in its partial form.

    Source: Luong et al. 2024 (ICLR), "Revisiting deep audio-text retrieval through the lens of transportation";
        trimmed and target: Fenchel–Young losses (Blondel et al. 2020), trimming as in least trimmed squares.
    Use when: pairs are one to one within a batch; mass < 1 where some pairs are wrong (1 - the share of wrong ones).
    Beware: epsilon is in units of the scores: 0.03 to 0.1 for cosines; 0.5 is very poor. trimmed judges pairs by
        their scores of the moment: with a mass below the share of right pairs it pushes the hardest right ones apart.
    """

    def __init__(self, epsilon: float = 0.05, mass: float = 1.0, form: Form = "trimmed") -> None:
        super().__init__()
        if not 0 < epsilon < math.inf:
            raise RecipeError(f"matching: epsilon = {epsilon}; need a finite number above 0")
        if not 0 < mass <= 1:
            raise RecipeError(f"matching: mass = {mass}; need a share in (0, 1]")
        if form not in get_args(Form):
            raise RecipeError(f"matching: {unknown('form', form, get_args(Form))}")
        self.epsilon, self.mass = epsilon, mass
        self.form: Form = form
        self.last: dict[str, float] = {}  # how the last plan was solved: iterations, error

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        loss, plan = matching(pair.scores(), pair.match, self.epsilon, self.mass, self.form)
        self.last = {"iterations": plan.iterations, "error": plan.error}
        return {"matching": loss}
