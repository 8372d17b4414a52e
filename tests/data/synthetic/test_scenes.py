"""Sampled scenes: held-out combinations, splits and objects."""

from collections import Counter

import numpy as np
import pytest

from tests.data.synthetic.conftest import CONFIGS
from triptych.data.synthetic import FACTORS
from triptych.data.synthetic.scenes import choose_held_out


def test_held_out_combinations_occur_in_the_novel_split_only(easy):
    _, scenes = easy
    assert Counter(scene.split for scene in scenes) == {"train": 280, "valid": 20, "test": 60, "novel": 40}
    held_out = CONFIGS["easy"].held_out_combinations
    assert len(held_out.colours) == 5
    assert len(held_out.heights) == 2
    for scene in scenes:
        is_held_out = [
            (each.attributes.category, each.attributes.colour) in held_out.colours
            or (each.attributes.category, each.attributes.height) in held_out.heights
            for each in scene.objects
        ]
        assert any(is_held_out) == (scene.split == "novel")
    train_objects = [each.attributes for scene in scenes if scene.split == "train" for each in scene.objects]
    for name in ("category", "colour", "height", "side", "tempo", "timing"):
        assert {getattr(each, name) for each in train_objects} == set(FACTORS[name].values)


@pytest.mark.parametrize("num_categories", range(2, 9))
def test_holding_out_half_leaves_every_category_and_value(num_categories):
    names = FACTORS["category"].values[:num_categories]
    for seed in range(20):
        held_out = choose_held_out(names, 0.5, np.random.default_rng(seed))
        for values, pairs in (
            (FACTORS["colour"].values, held_out.colours),
            (FACTORS["height"].values, held_out.heights),
        ):
            remaining = {(name, value) for name in names for value in values} - set(pairs)
            assert len(pairs) == round(0.5 * num_categories * len(values))
            assert {name for name, _ in remaining} == set(names)
            assert {value for _, value in remaining} == set(values)


def test_objects_of_a_scene_differ_in_category_side_and_timing(hard):
    _, scenes = hard
    assert {len(scene.objects) for scene in scenes} == {1, 2, 3}
    for scene in scenes:
        attributes = [each.attributes for each in scene.objects]
        for name in ("category", "side", "timing"):
            assert len({getattr(each, name) for each in attributes}) == len(attributes)
        assert [each.time_span for each in scene.objects] == sorted(each.time_span for each in scene.objects)
