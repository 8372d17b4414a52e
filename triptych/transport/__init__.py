"""Entropic optimal transport, balanced and partial: plans that are converged, and gradients in closed form."""

from triptych.transport.losses import plan_cross_entropy, plan_divergence, streamed_value
from triptych.transport.plan import Plan, Solved, sinkhorn_iterations, transport_plan

__all__ = [
    "Plan",
    "Solved",
    "plan_cross_entropy",
    "plan_divergence",
    "sinkhorn_iterations",
    "streamed_value",
    "transport_plan",
]
