"""What two modalities find of each other that never met in training."""

import numpy as np
import pytest

from triptych.evaluation.retrieval import Queries, Retrieval
from triptych.evaluation.transitivity import trained_pairs, transits
from triptych.recipe import Recipe

NONE = np.zeros(0, np.int64)
NOBODY = Queries(NONE, NONE, NONE, NONE, {})
TRAINED = {frozenset(("image", "text")), frozenset(("image", "audio"))}


def direction(query, gallery, recall, chance=0.1):
    return Retrieval(query, gallery, 10, 100, {"R@10": recall}, {"R@10": chance}, NOBODY)


def world(text_audio):
    return [
        direction("text", "image", 0.9),
        direction("image", "text", 0.8),
        direction("image", "audio", 0.5),
        direction("audio", "image", 0.6),
        direction("text", "audio", text_audio),
        direction("audio", "text", 0.1),
    ]


def test_an_untrained_direction_stands_beside_the_legs_that_lead_there():
    there, back = transits(world(0.3), TRAINED)
    assert (there.query, there.gallery, there.bridge) == ("text", "audio", "image")
    assert (there.there.metrics["R@10"], there.onward.metrics["R@10"]) == (0.9, 0.5)
    assert there.kept == pytest.approx((0.3 - 0.1) / (0.5 - 0.1))
    assert (back.query, back.gallery, back.kept) == ("audio", "text", 0)


def test_a_leg_at_chance_keeps_nothing():
    flat = [direction(d.query, d.gallery, 0.1) for d in world(0.3)]
    assert [t.kept for t in transits(flat, TRAINED)] == [0, 0]


def test_without_a_bridge_or_with_every_pair_trained_there_is_nothing_to_say():
    assert transits(world(0.3), {frozenset(("image", "text"))}) == []
    assert transits(world(0.3), TRAINED | {frozenset(("audio", "text"))}) == []


def test_what_was_logged_knows_better_than_the_recipe():
    recipe = Recipe.load("trimodal")
    assert len(trained_pairs(recipe)) == 3
    logged = ["epoch", "loss", "infonce(image,text).a_to_b", "triplet(image,audio)#2.hinge"]
    assert trained_pairs(recipe, logged) == TRAINED
