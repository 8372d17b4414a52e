"""Which parameters learn, how fast, and the schedule of their learning rate."""

from __future__ import annotations

import math

import torch
from torch import nn

from triptych.errors import RecipeError
from triptych.recipe import Recipe
from triptych.space import Space


def optimizer_of(recipe: Recipe, space: Space, terms: nn.Module) -> torch.optim.Optimizer:
    """AdamW or SGD over what learns; only what has two dimensions or more decays, not biases, norms or temperatures.

    Each group keeps its `rate`: how many times the recipe's learning rate it learns with.
    """
    training = recipe.training
    freeze(space, training.freeze)
    named = [*space.named_parameters(), *((f"objectives.{n}", p) for n, p in terms.named_parameters())]
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named:
        if parameter.requires_grad:
            rate = {"encoders": training.encoder_rate, "similarity": training.metric_rate}.get(name.split(".")[0], 1.0)
            decay = training.weight_decay if parameter.dim() >= 2 else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
    if not groups:
        raise RecipeError("nothing is left to train: every parameter is frozen; see training.freeze and space.head")
    sets = [{"params": some, "rate": rate, "weight_decay": decay} for (rate, decay), some in groups.items()]
    if training.optimizer == "sgd":
        return torch.optim.SGD(sets, lr=training.learning_rate, momentum=training.momentum)
    return torch.optim.AdamW(sets, lr=training.learning_rate)


def freeze(space: Space, beginnings: tuple[str, ...]) -> None:
    """Hold the parameters whose names begin so; a beginning that no name has is an error."""
    names = [name for name, _ in space.named_parameters()]
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in names):
            raise RecipeError(f"training.freeze: no parameter begins with {beginning!r}; the first is {names[0]!r}")
    for name, parameter in space.named_parameters():
        if name.startswith(beginnings):
            parameter.requires_grad_(False)


def set_rates(optimizer: torch.optim.Optimizer, recipe: Recipe, step: int, steps: int) -> None:
    """The learning rates of this step."""
    now = learning_rate(recipe, step, steps)
    for group in optimizer.param_groups:
        group["lr"] = now * group["rate"]


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Linear warm-up over a share of the steps, then half a cosine down to zero."""
    warm = recipe.training.warmup * steps
    if step < warm:
        return recipe.training.learning_rate * (step + 1) / (warm + 1)
    return recipe.training.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1.0, steps - warm)))
