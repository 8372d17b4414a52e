"""Naive loops and random problems for the tests of transport plans."""

import pytest
import torch


def random_cost(*shape, seed=0, scale=1.0):
    return scale * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_weights(count, seed):
    values = 0.2 + random_cost(count, seed=seed)
    return values / values.sum()


def uniform_weights(count):
    return torch.full((count,), 1 / count, dtype=torch.float64)


def aligned_cost(items, dim, noise, rank=0, seed=0):
    """1 - cosine of a batch of aligned pairs: the plan is close to the identity, and Sinkhorn converges slowly."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(items, rank or dim, generator=generator, dtype=torch.float64)
    x = x @ torch.randn(rank, dim, generator=generator, dtype=torch.float64) if rank else x
    y = x + noise * x.std() * torch.randn(items, dim, generator=generator, dtype=torch.float64)
    return 1 - torch.nn.functional.normalize(x, dim=1) @ torch.nn.functional.normalize(y, dim=1).T


def naive_log_plan(cost, epsilon, a, b, count):
    """Unrolled Sinkhorn iterations, differentiable by autograd."""
    u, v = torch.zeros_like(a), torch.zeros_like(b)
    for _ in range(count):
        u = a.log() - torch.logsumexp(v - cost / epsilon, dim=1)
        v = b.log() - torch.logsumexp(u[:, None] - cost / epsilon, dim=0)
    return u[:, None] + v - cost / epsilon


def naive_partial_plan(cost, epsilon, a, b, mass, count):
    """Bregman projections onto {rows <= a}, {columns <= b}, {total = mass} in turn, with Dykstra's corrections."""
    plan = torch.exp(-cost / epsilon)
    plan = plan * mass / plan.sum()
    corrections = [torch.ones_like(plan) for _ in range(3)]
    for k in range(3 * count):
        start = plan * corrections[k % 3]
        if k % 3 == 0:
            plan = start * (a / start.sum(1)).clamp_max(1)[:, None]
        elif k % 3 == 1:
            plan = start * (b / start.sum(0)).clamp_max(1)
        else:
            plan = start * mass / start.sum()
        corrections[k % 3] = start / plan
    return plan


def assert_feasible(result, mass):
    assert result.converged
    assert torch.isfinite(result.plan).all()
    assert result.plan.sum().item() == pytest.approx(mass, rel=1e-6)
    for sums in (result.plan.double().sum(0), result.plan.double().sum(1)):
        violation = (sums - 1 / len(sums)).abs() if mass == 1 else (sums - 1 / len(sums)).clamp_min(0)
        assert violation.sum() < 1e-5
