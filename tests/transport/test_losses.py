"""Values and gradients of the losses against unrolled loops and finite differences."""

import math

import pytest
import torch

from tests.transport.naive import naive_log_plan, random_cost, random_weights
from triptych.errors import InputError
from triptych.transport import (
    plan_cross_entropy,
    plan_divergence,
    sinkhorn_plan,
    streamed_optimal_value,
    transport_plan,
)


def test_cross_entropy_gradient_equals_unrolled_autograd():
    cost, a, b = random_cost(5, 8).requires_grad_(), random_weights(5, 1), random_weights(8, 2)
    target = random_cost(5, 8, seed=9)
    expected = -(target * naive_log_plan(cost, 0.1, a, b, 1500)).sum()
    (expected_gradient,) = torch.autograd.grad(expected, cost)
    loss, _ = plan_cross_entropy(cost, target, 0.1, a, b)
    (gradient,) = torch.autograd.grad(loss, cost)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-8)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("mass", [0.4, 0.8, 0.97])
def test_partial_cross_entropy_gradient_matches_finite_differences(mass):
    cost, a, b, target = (
        random_cost(5, 6).requires_grad_(),
        random_weights(5, 1),
        random_weights(6, 2),
        random_cost(5, 6, seed=9),
    )

    def loss(x):
        return plan_cross_entropy(x, target, 0.1, a, b, mass)[0]

    # A step of 1e-4, because the value is accurate to 1e-9 only.
    assert torch.autograd.gradcheck(loss, (cost,), eps=1e-4, atol=2e-3, rtol=2e-3, fast_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize("mass", [1.0, 0.7])
def test_divergence_and_gradient(mass):
    cost = random_cost(6, 6).requires_grad_()
    target = mass * torch.eye(6, dtype=torch.float64) / 6
    loss, plan = plan_divergence(cost, target, 0.1, mass=mass)
    (gradient,) = torch.autograd.grad(loss, cost)
    assert torch.allclose(gradient, (target - plan.plan) / 0.1, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: plan_divergence(x, target, 0.1, mass=mass)[0], (cost,), atol=1e-4)
    divergence = sum(target[i, i] * (target[i, i] / plan.plan[i, i]).log() for i in range(6))
    unused = (target.sum(1) - 1 / 6) @ plan.row + (target.sum(0) - 1 / 6) @ plan.column
    assert loss.item() == pytest.approx((divergence + unused / 0.1).item(), rel=1e-7)
    assert loss >= divergence - 1e-9
    zero, _ = plan_divergence(cost, plan.plan, 0.1, mass=mass)
    assert abs(zero.item()) < 1e-8


def test_balanced_divergence_is_cross_entropy_minus_target_entropy():
    cost, target = random_cost(5, 5).requires_grad_(), torch.eye(5, dtype=torch.float64) / 5
    divergence, cross_entropy = plan_divergence(cost, target, 0.1)[0], plan_cross_entropy(cost, target, 0.1)[0]
    assert divergence.item() == pytest.approx(cross_entropy.item() - math.log(5), rel=1e-7)
    divergence_gradient, cross_entropy_gradient = (
        torch.autograd.grad(loss, cost)[0] for loss in (divergence, cross_entropy)
    )
    assert torch.allclose(divergence_gradient, cross_entropy_gradient, atol=1e-12)


@pytest.mark.parametrize("mass", [1.0, 0.7])
def test_half_precision_input_gives_float32_result(mass):
    cost = random_cost(16, 16).bfloat16().requires_grad_()
    loss, plan = plan_divergence(cost, mass * torch.eye(16) / 16, 0.1, mass=mass)
    loss.backward()
    assert plan.plan.dtype == loss.dtype == torch.float32
    assert cost.grad is not None
    assert cost.grad.dtype == torch.bfloat16
    assert loss.item() == pytest.approx(
        plan_divergence(cost.double(), mass * torch.eye(16) / 16, 0.1, mass=mass)[0].item()
    )


def test_invalid_targets_raise():
    cost = torch.zeros(3, 3)
    for target, message in (
        (torch.eye(2), r"target is \(2, 2\)"),
        (-torch.eye(3), "negative"),
        (torch.eye(3) * math.nan, "NaN"),
    ):
        for loss in (plan_cross_entropy, plan_divergence):
            with pytest.raises(InputError, match=message):
                loss(cost, target, 0.1)
    with pytest.raises(InputError, match=r"target has mass 3, .* need mass 1 "):
        plan_divergence(cost, torch.eye(3), 0.1)
    with pytest.raises(InputError, match="sum to at most a and b"):
        plan_divergence(cost, torch.full((3, 3), 0.5) * torch.tensor([1.0, 0.0, 0.0]) / 1.5, 0.1, mass=0.5)
    with pytest.raises(InputError, match="count = 0"):
        sinkhorn_plan(cost, 0.1, count=0)


@pytest.mark.parametrize("mass", [1.0, 0.7])
@pytest.mark.parametrize("block_size", [2, 64])
def test_streamed_optimal_value_equals_energy_of_the_plan(mass, block_size):
    query, keys, epsilon = random_cost(6, 3, seed=1).requires_grad_(), random_cost(5, 3, seed=2).requires_grad_(), 0.2
    value, info = streamed_optimal_value(query, keys, epsilon, mass, block_size)
    plan = transport_plan(-(query @ keys.T), epsilon, mass=mass).plan
    energy = -(plan * (query @ keys.T)).sum() + epsilon * torch.xlogy(plan, plan).sum()
    assert value.item() == pytest.approx((energy / epsilon).item())
    assert info.error <= 1e-9
    query_gradient, keys_gradient = torch.autograd.grad(value, (query, keys))
    assert torch.allclose(query_gradient, -plan @ keys / epsilon, atol=1e-7)
    assert torch.allclose(keys_gradient, -plan.T @ query / epsilon, atol=1e-7)


def test_a_target_with_wrong_column_sums_raises():
    target = torch.zeros(3, 3, dtype=torch.float64)
    target[:, 0] = 1 / 3
    with pytest.raises(InputError, match="its sums differ from the weights"):
        plan_divergence(random_cost(3, 3), target, 0.1)
    with pytest.raises(InputError, match="its sums differ from the weights"):
        plan_divergence(random_cost(3, 3), target.T.contiguous(), 0.1)
