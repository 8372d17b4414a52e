"""The optimizer: trainable parameters, their learning rates and the schedule."""

from __future__ import annotations

import math

import torch
from torch import nn

from triptych.errors import RecipeError
from triptych.recipe import Recipe
from triptych.space import Space


def build_optimizer(recipe: Recipe, space: Space, objectives: nn.Module) -> torch.optim.Optimizer:
    """Build AdamW or SGD over the trainable parameters. Biases, norm layers and temperatures have no weight decay.

    Each parameter group has an `lr_scale`, which multiplies the recipe's learning rate.
    """
    training = recipe.training
    freeze_parameters(space, training.freeze)
    named_parameters = [*space.named_parameters(), *((f"objectives.{n}", p) for n, p in objectives.named_parameters())]
    lr_scales = {"encoders": training.encoder_lr_scale, "similarity": training.metric_lr_scale}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            lr_scale = lr_scales.get(name.split(".")[0], 1.0)
            is_held = name.endswith(".correction")  # of a residual head; its penalty replaces weight decay
            weight_decay = training.weight_decay if parameter.dim() >= 2 and not is_held else 0.0
            groups.setdefault((lr_scale, weight_decay), []).append(parameter)
    if not groups:
        raise RecipeError("no trainable parameters: all parameters are frozen; change training.freeze or space.head")
    param_groups = [{"params": p, "lr_scale": scale, "weight_decay": wd} for (scale, wd), p in groups.items()]
    if training.optimizer == "sgd":
        return torch.optim.SGD(param_groups, lr=training.learning_rate, momentum=training.momentum)
    return torch.optim.AdamW(param_groups, lr=training.learning_rate)


def freeze_parameters(space: Space, prefixes: tuple[str, ...]) -> None:
    """Freeze the parameters whose names start with one of the prefixes. Each prefix must match a parameter."""
    names = [name for name, _ in space.named_parameters()]
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            raise RecipeError(f"training.freeze: no parameter name starts with {prefix!r}; the first is {names[0]!r}")
    for name, parameter in space.named_parameters():
        if name.startswith(prefixes):
            parameter.requires_grad_(False)


def set_learning_rates(optimizer: torch.optim.Optimizer, recipe: Recipe, step: int, total_steps: int) -> None:
    """Set the learning rate of each parameter group for a step."""
    base_lr = compute_learning_rate(recipe, step, total_steps)
    for group in optimizer.param_groups:
        group["lr"] = base_lr * group["lr_scale"]


def compute_learning_rate(recipe: Recipe, step: int, total_steps: int) -> float:
    """Return the learning rate of a step: linear warm-up, then cosine decay to zero."""
    peak_lr, warmup_steps = recipe.training.learning_rate, recipe.training.warmup_ratio * total_steps
    if step < warmup_steps:
        return peak_lr * (step + 1) / (warmup_steps + 1)
    return peak_lr * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1.0, total_steps - warmup_steps)))
