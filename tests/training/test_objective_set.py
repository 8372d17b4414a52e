"""Weights of objectives, and several objectives of one pair."""

from dataclasses import replace

import pytest

from tests.training.cases import load_batch
from triptych.checkpoint import load
from triptych.training.objective_set import ObjectiveSet
from triptych.training.step import backward


def _compute_losses(recipe, space):
    return backward(space, ObjectiveSet(recipe), load_batch(recipe, space))


def test_objective_weights_scale_losses_and_objectives_of_one_pair_add_up(tiny_recipe, run_dir):
    space = load(run_dir)
    (config,) = tiny_recipe.objectives
    single_losses = _compute_losses(tiny_recipe, space)
    two_objectives = replace(tiny_recipe, objectives=(replace(config, weight=2.0), replace(config, weight=0.5)))
    double_losses = _compute_losses(two_objectives, space)
    assert len(double_losses) == 2 * len(single_losses)
    for name, value in single_losses.items():
        pair, term = name.rsplit(".", 1)
        assert double_losses[name].item() == pytest.approx(2 * value.item())
        assert double_losses[f"{pair}#2.{term}"].item() == pytest.approx(0.5 * value.item())
