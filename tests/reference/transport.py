"""Optimal transport: learned metrics, balanced and partial plans, losses on plans."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.reference.case import Case, is_different, make_features, make_pair, max_relative_error
from triptych.objectives.matching import matching_loss
from triptych.pooling import apply_geometry
from triptych.similarities.mahalanobis import Mahalanobis, project_to_psd
from triptych.transport import plan_cross_entropy, sinkhorn_plan, transport_plan

UNROLLED_RTOL = 3e-4  # tolerance for gradients unrolled through iterations that may not have converged
MAX_ITERATION = 999  # the original stops at this iteration, converged or not


def check_diagonal_metric(case: Case) -> None:
    """Balanced transport with the diagonal of M, the only part of M that the original reads."""
    # If the original stopped at its limit, its plan equals triptych's plan at that iteration.
    hit_limit = case.array("out__sinkhorn_iterations").item() >= MAX_ITERATION
    rtol = UNROLLED_RTOL if hit_limit else case.tolerance
    loss, cost = _check_matching(case, "diagonal", normalise=True, mass=1.0, rtol=rtol, gradient_rtol=UNROLLED_RTOL)
    case.check_value("kl", loss - math.log(len(cost)), rtol)
    if hit_limit:
        original = sinkhorn_plan(cost, case.constant("eps"), count=MAX_ITERATION + 1)
        case.check_close("the original's plan, again", original, case.array("out__plan"), case.tolerance)
    case.skip("out__sinkhorn_iterations")
    _check_only_diagonal_is_read(case, cost)


def check_partial_diagonal_metric(case: Case) -> None:
    """Partial transport with the diagonal of M."""
    _, cost = _check_matching(
        case, "diagonal", normalise=True, mass=case.constant("m"), rtol=case.tolerance, gradient_rtol=1e-4
    )
    _check_only_diagonal_is_read(case, cost)


def check_full_metric(case: Case) -> None:
    """Balanced transport with the full matrix M, as in the paper."""
    normalise = bool(case.config["max_normalise"])
    rtol = case.tolerance
    loss, cost = _check_matching(case, "full", normalise=normalise, mass=1.0, rtol=rtol, gradient_rtol=100 * rtol)
    case.check_value("kl", loss - math.log(len(cost)))


def _check_matching(
    case: Case, metric: str, normalise: bool, mass: float, rtol: float, gradient_rtol: float
) -> tuple[Tensor, Tensor]:
    audio, text = case.input_with_grad("audio_raw"), case.input_with_grad("text_raw")
    similarity = make_metric(case.input_tensor("M"), metric, normalise)
    pair = make_pair(
        make_features(apply_geometry("sphere", text)),
        make_features(apply_geometry("sphere", audio)),
        similarity=similarity,
    )
    scores, n = pair.scores(), len(text)  # rows text, columns audio
    # The original computes the cross-entropy: the divergence plus a constant.
    divergence, plan = matching_loss(scores, pair.positive_mask, case.constant("eps"), mass, "kl_unnormalised")
    loss, cost = divergence + math.log(n / mass), -scores
    case.check_value("loss", loss, rtol)
    case.check_value("cost", cost)
    case.check_value("plan", plan.plan, rtol)
    if case.has_array("out__grad_cost_envelope"):
        (by_score,) = torch.autograd.grad(loss, scores, retain_graph=True)
        case.check_value("grad_cost_envelope", -by_score, gradient_rtol)
    case.check_gradients(loss, {"audio_raw": audio, "text_raw": text}, gradient_rtol)
    (parameter,) = similarity.parameters()
    (by_metric,) = torch.autograd.grad(loss, parameter)
    case.check_gradient("M", torch.diag(by_metric) if metric == "diagonal" else by_metric, gradient_rtol)
    return loss, cost.detach()


def make_metric(matrix: Tensor, metric: str, normalise: bool) -> Mahalanobis:
    """Return a similarity with this matrix M, or its diagonal."""
    similarity = Mahalanobis(len(matrix), metric, normalise=normalise).double()  # pyright: ignore[reportArgumentType]
    (parameter,) = similarity.parameters()
    parameter.data.copy_(matrix.diagonal() if metric == "diagonal" else matrix)
    return similarity


def _check_only_diagonal_is_read(case: Case, cost: Tensor) -> None:
    """Reproduce the cost of the original, and check that the full metric differs if M is not diagonal."""
    matrix = case.input_tensor("M")
    text, audio = (
        apply_geometry("sphere", case.input_tensor("text_raw")),
        apply_geometry("sphere", case.input_tensor("audio_raw")),
    )
    difference = text[:, None] - audio
    original = torch.einsum("ijk,ijk,kk->ij", difference, difference, matrix).sqrt()
    original = original / original.max()
    case.check_close("the original's cost, again", original, case.array("out__cost"), case.tolerance)
    case.check_close("ours with the diagonal", cost, original, case.tolerance)
    full = -make_metric(project_to_psd(matrix), "full", normalise=True)(
        make_features(text), make_features(audio)
    ).detach()
    case.check_condition(
        "the whole metric gives another cost just where M is not diagonal",
        is_different(full, original, 1e-6) == bool((matrix - matrix.diagonal().diag()).any()),
    )


def check_projection(case: Case) -> None:
    """The original clips singular values, which has no effect; triptych clips eigenvalues."""
    matrix = case.input_tensor("M")
    ours = project_to_psd(matrix)
    case.check_value("psd", ours)
    left, values, right = torch.linalg.svd(matrix)
    original = left @ values.clamp(min=0).diag() @ right
    case.check_value("code", original)
    case.check_close("the original's projection is the matrix itself", original, matrix, case.tolerance)
    indefinite = bool(torch.linalg.eigvalsh((matrix + matrix.T) / 2).min() < 0)
    case.check_condition("ours differs just where M is indefinite", is_different(ours, original, 1e-9) == indefinite)


def check_balanced_plan(case: Case) -> None:
    """A plan between given marginals, converged and after ten iterations, and a loss against any target."""
    cost, a, b, epsilon = (
        case.input_with_grad("cost"),
        case.input_tensor("a"),
        case.input_tensor("b"),
        case.constant("eps"),
    )
    plan = transport_plan(cost, epsilon, a, b).plan
    case.check_value("plan", plan)
    case.check_value("transport_cost", (plan * cost).sum())
    case.check_value("plan_10_iterations", sinkhorn_plan(cost, epsilon, a, b, count=10))
    loss, _ = plan_cross_entropy(cost, case.input_tensor("target"), epsilon, a, b)
    case.check_value("loss", loss)
    case.check_gradients(loss, {"cost": cost})
    case.skip("out__iterations")


def check_partial_plan(case: Case) -> None:
    """A converged partial plan; the original's plan may not have converged after 1,000 iterations."""
    cost, a, b = case.input_tensor("cost"), case.input_tensor("a"), case.input_tensor("b")
    plan = transport_plan(cost, case.constant("eps"), a, b, mass=case.constant("m")).plan
    case.check_value("plan", plan)
    case.check_value("transport_cost", (plan * cost).sum())
    for name in ("plan_logscale", "plan_1000"):  # tolerance: how much the original's variants differ, bounded
        original_error = max_relative_error(case.array(f"out__{name}"), case.array("out__plan"))
        case.check_value(name, plan, case.tolerance + min(original_error, UNROLLED_RTOL))


FAMILIES = {
    "mltm_ot": check_diagonal_metric,
    "mltm_pot": check_partial_diagonal_metric,
    "mltm_fullmahalanobis": check_full_metric,
    "mltm_projection": check_projection,
    "pot_sinkhorn": check_balanced_plan,
    "pot_partial": check_partial_plan,
}
