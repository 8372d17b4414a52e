"""Learning rates, weight decay and frozen parameters."""

import pytest
import torch

from tests.training.cases import with_training
from triptych.errors import RecipeError
from triptych.space import Space
from triptych.training.objective_set import ObjectiveSet
from triptych.training.optimizer import build_optimizer, compute_learning_rate, freeze_parameters, set_learning_rates


def test_the_learning_rate_warms_up_then_decays_to_zero(tiny_recipe):
    rates = [compute_learning_rate(tiny_recipe, step, 100) for step in range(100)]
    peak = max(range(100), key=rates.__getitem__)
    assert 8 <= peak <= 11
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] < 1e-3 * tiny_recipe.training.learning_rate


def test_learning_rates_weight_decay_and_freezing_apply_to_their_parameters(tiny_recipe):
    torch.manual_seed(0)
    recipe = with_training(
        tiny_recipe, encoder_lr_scale=0.1, optimizer="sgd", freeze=("encoders.image",), warmup_ratio=0.0
    )
    space = Space(recipe)
    objectives = ObjectiveSet(recipe)
    optimizer = build_optimizer(recipe, space, objectives)
    set_learning_rates(optimizer, recipe, 0, 10)
    learning_rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    weight_decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in space.named_parameters():
        if name.startswith("encoders.image"):
            assert id(parameter) not in learning_rates
        else:
            assert learning_rates[id(parameter)] == pytest.approx((0.1 if name.startswith("encoders") else 1.0) * 1e-3)
            assert (weight_decays[id(parameter)] > 0) == (parameter.dim() >= 2)
    with pytest.raises(RecipeError, match=r"no parameter name starts with 'encoders\.nose'"):
        build_optimizer(with_training(tiny_recipe, freeze=("encoders.nose",)), Space(tiny_recipe), objectives)


def test_frozen_modules_stay_in_eval_mode(tiny_recipe):
    space = Space(tiny_recipe)
    freeze_parameters(space, ("encoders.image",))
    space.train()
    assert not any(module.training for module in space.encoders["image"].modules())
    assert all(module.training for module in space.encoders["text"].modules())
