"""Entropic optimal transport, balanced and partial: plans that are solved to convergence, and losses of plans."""

from triptych.transport.losses import plan_cross_entropy, plan_divergence, streamed_optimal_value
from triptych.transport.plan import Plan, SolveInfo, sinkhorn_plan, transport_plan

__all__ = [
    "Plan",
    "SolveInfo",
    "plan_cross_entropy",
    "plan_divergence",
    "sinkhorn_plan",
    "streamed_optimal_value",
    "transport_plan",
]
