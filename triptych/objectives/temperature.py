"""The temperature by which objectives divide scores, as a parameter that can be learned."""

from __future__ import annotations

import math

import torch
from torch import nn

from triptych.errors import RecipeError


def make_log_scale(objective: str, temperature: float, min_temperature: float, learn_temperature: bool) -> nn.Parameter:
    """Return log(1 / temperature) as a parameter; raise RecipeError if a temperature is invalid."""
    if not 0 < min_temperature <= temperature < math.inf:
        actual = f"temperature = {temperature} and min_temperature = {min_temperature}"
        raise RecipeError(f"{objective}: {actual}; need 0 < min_temperature <= temperature")
    return nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learn_temperature)


def clamp_log_scale_(log_scale: nn.Parameter, temperature: float, min_temperature: float) -> None:
    """Clamp the temperature to [min_temperature, max(1, initial temperature)], in place, after an optimizer step."""
    log_scale.data.clamp_(-math.log(max(1.0, temperature)), -math.log(min_temperature))


def temperature_of(log_scale: nn.Parameter) -> float:
    """Return the current temperature."""
    return math.exp(-log_scale.item())
