"""Each item must pick its partner out of the batch, both ways."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.contracts import Objective, Pair
from triptych.errors import RecipeError


class InfoNCE(Objective):
    """Cross-entropy of finding the partner among all items of the batch, averaged over both directions.

    L = ½ · mean_i [ -log softmax_j(s_ij / τ)_i ] + ½ · mean_j [ -log softmax_i(s_ij / τ)_j ]
    where other right answers of i (match_ij, i ≠ j) are left out of the sums: they are not wrong.

    Source: van den Oord et al. 2018; symmetric, with a learned τ: Radford et al. 2021, Elizalde et al. 2022.
    Use when: pairs are mostly right and batches are large (hundreds).
    Beware: every other item of the batch counts as wrong unless it shares the group; wrong pairs are learned too.
    """

    def __init__(
        self, temperature: float = 0.07, learn_temperature: bool = True, smallest_temperature: float = 0.01
    ) -> None:
        super().__init__()
        if not 0 < smallest_temperature <= temperature:
            raise RecipeError(
                f"infonce: temperature = {temperature} and smallest_temperature = {smallest_temperature}; "
                "need 0 < smallest_temperature <= temperature"
            )
        self.temperature, self.learn_temperature = temperature, learn_temperature
        self.smallest_temperature = smallest_temperature
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)), requires_grad=learn_temperature)

    def forward(self, pair: Pair) -> dict[str, Tensor]:
        logits = pair.scores() * self.log_scale.exp()  # (N, N)
        truth = torch.arange(len(logits), device=logits.device)
        others = pair.match & (truth[:, None] != truth)
        logits = logits.masked_fill(others, -torch.inf)
        return {"a_to_b": F.cross_entropy(logits, truth) / 2, "b_to_a": F.cross_entropy(logits.T, truth) / 2}

    def after_step(self) -> None:
        hottest = max(1.0, self.temperature)
        self.log_scale.data.clamp_(-math.log(hottest), -math.log(self.smallest_temperature))
