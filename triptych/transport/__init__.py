"""Entropic optimal transport, balanced and partial: plans that are converged, and gradients in closed form."""

from triptych.transport.losses import plan_cross_entropy, plan_divergence
from triptych.transport.plan import Plan, sinkhorn_iterations, transport_plan

__all__ = ["Plan", "plan_cross_entropy", "plan_divergence", "sinkhorn_iterations", "transport_plan"]
