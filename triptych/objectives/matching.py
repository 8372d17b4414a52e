"""The whole batch is matched at once by optimal transport; the right pairs should carry the mass."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from triptych.contracts import Objective, Pair
from triptych.errors import InputError, RecipeError, unknown
from triptych.streaming import BLOCK, streamable
from triptych.transport import Plan, Solved, plan_cross_entropy, plan_divergence, streamed_value

Form = Literal["trimmed", "target", "paper"]
LEAST = 0.1  # mass an estimate can fall to


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


def wrong_share(scores: Tensor, match: Tensor) -> Tensor:
    """How many of the pairs look as if drawn at random: an estimate of the share of wrong ones, () in [0, 1].

    Of a wrong pair, the share of other items that score higher is spread evenly over [0, 1]; of a right pair it is
    near 0. So nearly all that lie above one half are wrong, and as many wrong ones lie below: twice the share above.
    Both directions are averaged.

    Source: Storey 2002, the share of true null hypotheses, for p-values made from scores.
    Beware: too high while scores say little (1 before training), too low where wrong pairs have been learned by heart.
    """
    others = (~match).sum(dim=1).clamp_min(1)  # (N,)
    own = scores.diagonal()
    found = []
    for side in (scores, scores.T):
        higher = ((side > own[:, None]) & ~match).sum(dim=1) + 0.5 * ((side == own[:, None]) & ~match).sum(dim=1)
        found.append((higher / others > 0.5).double().mean())
    return (2 * torch.stack(found).mean()).clamp_max(1)


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


def streamed_matching(
    query: Tensor,  # (N, S)
    keys: Tensor,  # (N, S)
    group: Tensor,  # (N,)
    epsilon: float,
    mass: float = 1.0,
    form: Literal["trimmed", "target"] = "trimmed",
    block: int = BLOCK,
) -> tuple[Tensor, Solved]:
    """The loss of `Matching` for scores = query @ keys.T that never exist, and how its plan was found.

    The plan of right pairs is kept_i · kept_j / (N · K) within a group of K = sum of kept, so <T, scores> is one inner
    product a group: of the sum of its kept queries with the sum of its kept keys.
    """
    if len(query) != len(keys):
        raise InputError(f"query has {len(query)} rows and keys has {len(keys)}; row i belongs with row i")
    best, found = streamed_value(query, keys, epsilon, mass, block)
    n = len(query)
    own = torch.einsum("ns,ns->n", query.detach().double(), keys.detach().double())
    kept = torch.full_like(own, mass) if form == "target" or mass == 1 else best_fitting(own, mass)
    names, member = group.unique(return_inverse=True)  # (G,), (N,)
    sums = kept.new_zeros(len(names)).index_add(0, member, kept)  # (G,)
    totals = (query.new_zeros(len(names), query.shape[1], dtype=torch.float64) for _ in range(2))
    left, right = (
        total.index_add(0, member, side.double() * kept[:, None])
        for total, side in zip(totals, (query, keys), strict=True)
    )
    fit = ((left * right).sum(dim=1) / sums.clamp_min(1e-300)).sum() / n  # <T, scores>
    entropy = (2 * torch.xlogy(kept, kept).sum() - torch.xlogy(sums, n * sums).sum()) / n  # sum T log T
    return (entropy - fit / epsilon - best).to(torch.promote_types(query.dtype, torch.float32)), found


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
    mass = "estimate": 1 less the share of pairs that look wrong (`wrong_share`), as a mean over about `memory` batches
      that begins at 0. So all pairs count at first, and fewer as the scores come to tell right from wrong.
    Zero means P = T (paper: P = mass · T). The original code reports log N more, and log(N/mass) in its partial form.
    block > 0 streams: the (N, N) scores never exist, the numbers are the same.

    Source: Luong et al. 2024 (ICLR), "Revisiting deep audio-text retrieval through the lens of transportation";
        trimmed and target: Fenchel–Young losses (Blondel et al. 2020), trimming as in least trimmed squares.
    Use when: pairs are one to one within a batch; mass < 1 where some pairs are wrong (1 - the share of wrong ones).
    Beware: epsilon is in units of the scores: 0.03 to 0.1 for cosines; 0.5 is very poor. trimmed judges pairs by
        their scores of the moment: with a mass below the share of right pairs it pushes the hardest right ones apart.
        block needs an exact similarity and not the paper's partial form, and makes the scores about a hundred times.
    """

    def __init__(
        self,
        epsilon: float = 0.05,
        mass: float | Literal["estimate"] = 1.0,
        form: Form = "trimmed",
        block: int = 0,
        memory: int = 20,
    ) -> None:
        super().__init__()
        if not 0 < epsilon < math.inf:
            raise RecipeError(f"matching: epsilon = {epsilon}; need a finite number above 0")
        if mass != "estimate" and not (isinstance(mass, int | float) and 0 < mass <= 1):
            raise RecipeError(f"matching: mass = {mass!r}; need a share in (0, 1], or 'estimate'")
        if memory < 1:
            raise RecipeError(f"matching: memory = {memory}; need at least 1 batch")
        if block and mass == "estimate":
            raise RecipeError(f"matching: block = {block} does not estimate the mass; set mass to a share")
        if form not in get_args(Form):
            raise RecipeError(f"matching: {unknown('form', form, get_args(Form))}")
        if block < 0:
            raise RecipeError(f"matching: block = {block}; need 0 (no streaming) or more")
        if block and form == "paper" and mass != 1:
            raise RecipeError(f"matching: block = {block} does not stream the partial form 'paper'; take another form")
        self.epsilon, self.mass, self.block, self.memory = epsilon, mass, block, memory
        self.form: Form = form
        self.register_buffer("wrong", torch.zeros((), dtype=torch.float64))  # share of wrong pairs, as estimated
        self.wrong: Tensor
        self.last: dict[str, float] = {}  # how the last plan was solved: iterations, error

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        if self.block:
            form = "target" if self.form == "paper" else self.form  # they differ only where mass < 1
            loss, found = streamed_matching(*streamable(pair), self.epsilon, self._mass(), form, self.block)
        else:
            scores = pair.scores()
            if self.mass == "estimate" and self.training:
                self.wrong.lerp_(wrong_share(scores.detach(), pair.match).to(self.wrong), 1 / self.memory)
            loss, found = matching(scores, pair.match, self.epsilon, self._mass(), self.form)
        self.last = {"iterations": found.iterations, "error": found.error, "mass": self._mass()}
        return {"matching": loss}

    def _mass(self) -> float:
        return max(LEAST, 1 - self.wrong.item()) if self.mass == "estimate" else float(self.mass)

    def state(self) -> dict[str, float]:
        return self.last
