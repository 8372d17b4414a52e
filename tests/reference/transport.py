"""Transport: learned metrics, balanced and partial plans, losses over plans."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.reference.case import Case, differ, pair_of, relative_difference, whole
from triptych.objectives.matching import matching
from triptych.similarities.mahalanobis import Mahalanobis, nearest_metric
from triptych.space import onto
from triptych.transport import plan_cross_entropy, sinkhorn_iterations, transport_plan

UNROLLED = 3e-4  # allowed against gradients unrolled through iterations that may not have converged
GIVES_UP = 999  # the number of the iteration at which the original stops, converged or not


def diagonal_metric(case: Case) -> None:
    """Balanced transport under the diagonal of M, the only part of M that the original reads."""
    # The original gives up after 1,000 iterations: then its plan is what ours was at that point, and not the plan.
    stopped = case.array("out__sinkhorn_iterations").item() >= GIVES_UP
    rtol = UNROLLED if stopped else case.tolerance
    loss, cost = _matched(case, "diagonal", normalise=True, mass=1.0, rtol=rtol, gradient_rtol=UNROLLED)
    case.value("kl", loss - math.log(len(cost)), rtol)
    if stopped:
        theirs = sinkhorn_iterations(cost, case.number("eps"), count=GIVES_UP + 1)
        case.agree("the original's plan, again", theirs, case.array("out__plan"), case.tolerance)
    case.skip("out__sinkhorn_iterations")
    _only_the_diagonal(case, cost)


def partial_diagonal_metric(case: Case) -> None:
    """Partial transport under the diagonal of M."""
    _, cost = _matched(case, "diagonal", normalise=True, mass=case.number("m"), rtol=case.tolerance, gradient_rtol=1e-4)
    _only_the_diagonal(case, cost)


def full_metric(case: Case) -> None:
    """Balanced transport under the whole of M, as the paper writes it."""
    normalise = bool(case.config["max_normalise"])
    rtol = case.tolerance
    loss, cost = _matched(case, "full", normalise=normalise, mass=1.0, rtol=rtol, gradient_rtol=100 * rtol)
    case.value("kl", loss - math.log(len(cost)))


def _matched(
    case: Case, metric: str, normalise: bool, mass: float, rtol: float, gradient_rtol: float
) -> tuple[Tensor, Tensor]:
    audio, text = case.learned("audio_raw"), case.learned("text_raw")
    similarity = metric_of(case.given("M"), metric, normalise)
    pair = pair_of(whole(onto("sphere", text)), whole(onto("sphere", audio)), similarity=similarity)
    scores, n = pair.scores(), len(text)  # rows text, columns audio
    # Ours is the divergence, the original its cross-entropy: a constant more.
    divergence, plan = matching(scores, pair.match, case.number("eps"), mass, "paper")
    loss, cost = divergence + math.log(n / mass), -scores
    case.value("loss", loss, rtol)
    case.value("cost", cost)
    case.value("plan", plan.plan, rtol)
    if case.has("out__grad_cost_envelope"):
        (by_score,) = torch.autograd.grad(loss, scores, retain_graph=True)
        case.value("grad_cost_envelope", -by_score, gradient_rtol)
    case.gradients(loss, {"audio_raw": audio, "text_raw": text}, gradient_rtol)
    (parameter,) = similarity.parameters()
    (by_metric,) = torch.autograd.grad(loss, parameter)
    case.gradient("M", torch.diag(by_metric) if metric == "diagonal" else by_metric, gradient_rtol)
    return loss, cost.detach()


def metric_of(matrix: Tensor, metric: str, normalise: bool) -> Mahalanobis:
    """A similarity that holds this M, or its diagonal."""
    similarity = Mahalanobis(len(matrix), metric, normalise=normalise).double()  # pyright: ignore[reportArgumentType]
    (parameter,) = similarity.parameters()
    parameter.data.copy_(matrix.diagonal() if metric == "diagonal" else matrix)
    return similarity


def _only_the_diagonal(case: Case, cost: Tensor) -> None:
    """The original's cost again, and that the whole metric gives another one as soon as M is not diagonal."""
    matrix = case.given("M")
    text, audio = onto("sphere", case.given("text_raw")), onto("sphere", case.given("audio_raw"))
    gap = text[:, None] - audio
    theirs = torch.einsum("ijk,ijk,kk->ij", gap, gap, matrix).sqrt()
    theirs = theirs / theirs.max()
    case.agree("the original's cost, again", theirs, case.array("out__cost"), case.tolerance)
    case.agree("ours with the diagonal", cost, theirs, case.tolerance)
    full = -metric_of(nearest_metric(matrix), "full", normalise=True)(whole(text), whole(audio)).detach()
    case.expect(
        "the whole metric gives another cost just where M is not diagonal",
        differ(full, theirs, 1e-6) == bool((matrix - matrix.diagonal().diag()).any()),
    )


def projection(case: Case) -> None:
    """The original clips singular values, which are never negative: it changes nothing. Ours clips eigenvalues."""
    matrix = case.given("M")
    ours = nearest_metric(matrix)
    case.value("psd", ours)
    left, values, right = torch.linalg.svd(matrix)
    theirs = left @ values.clamp(min=0).diag() @ right
    case.value("code", theirs)
    case.agree("the original's projection is the matrix itself", theirs, matrix, case.tolerance)
    indefinite = bool(torch.linalg.eigvalsh((matrix + matrix.T) / 2).min() < 0)
    case.expect("ours differs just where M is indefinite", differ(ours, theirs, 1e-9) == indefinite)


def balanced_plan(case: Case) -> None:
    """A plan between given weights, after convergence and after ten iterations, and a loss against any target."""
    cost, a, b, epsilon = case.learned("cost"), case.given("a"), case.given("b"), case.number("eps")
    plan = transport_plan(cost, epsilon, a, b).plan
    case.value("plan", plan)
    case.value("transport_cost", (plan * cost).sum())
    case.value("plan_10_iterations", sinkhorn_iterations(cost, epsilon, a, b, count=10))
    loss, _ = plan_cross_entropy(cost, case.given("target"), epsilon, a, b)
    case.value("loss", loss)
    case.gradients(loss, {"cost": cost})
    case.skip("out__iterations")


def partial_plan(case: Case) -> None:
    """A plan that moves a share of the mass, converged; the original's after 1,000 iterations may not be."""
    cost, a, b = case.given("cost"), case.given("a"), case.given("b")
    plan = transport_plan(cost, case.number("eps"), a, b, mass=case.number("m")).plan
    case.value("plan", plan)
    case.value("transport_cost", (plan * cost).sum())
    for name in ("plan_logscale", "plan_1000"):  # as near to ours as the original is to itself, within reason
        theirs = relative_difference(case.array(f"out__{name}"), case.array("out__plan"))
        case.value(name, plan, case.tolerance + min(theirs, UNROLLED))


FAMILIES = {
    "mltm_ot": diagonal_metric,
    "mltm_pot": partial_diagonal_metric,
    "mltm_fullmahalanobis": full_metric,
    "mltm_projection": projection,
    "pot_sinkhorn": balanced_plan,
    "pot_partial": partial_plan,
}
