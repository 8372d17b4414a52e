"""Retrieval between modality pairs that were not trained."""

import numpy as np
import pytest

from triptych.evaluation.retrieval import PerQuery, RetrievalResult
from triptych.evaluation.transitivity import find_trained_pairs, measure_transitivity
from triptych.recipe import Recipe

EMPTY = np.zeros(0, np.int64)
NO_QUERIES = PerQuery(EMPTY, EMPTY, EMPTY, EMPTY, {})
TRAINED = {frozenset(("image", "text")), frozenset(("image", "audio"))}


def make_direction(query, gallery, recall, chance_level=0.1):
    return RetrievalResult(query, gallery, 10, 100, {"R@10": recall}, {"R@10": chance_level}, NO_QUERIES)


def make_directions(text_audio):
    return [
        make_direction("text", "image", 0.9),
        make_direction("image", "text", 0.8),
        make_direction("image", "audio", 0.5),
        make_direction("audio", "image", 0.6),
        make_direction("text", "audio", text_audio),
        make_direction("audio", "text", 0.1),
    ]


def test_an_untrained_direction_is_reported_with_its_two_legs():
    forward, backward = measure_transitivity(make_directions(0.3), TRAINED)
    assert (forward.query, forward.gallery, forward.bridge) == ("text", "audio", "image")
    assert (forward.to_bridge.metrics["R@10"], forward.from_bridge.metrics["R@10"]) == (0.9, 0.5)
    assert forward.retention == pytest.approx((0.3 - 0.1) / (0.5 - 0.1))
    assert (backward.query, backward.gallery, backward.retention) == ("audio", "text", 0)


def test_a_leg_at_chance_gives_zero_retention():
    flat = [make_direction(d.query, d.gallery, 0.1) for d in make_directions(0.3)]
    assert [t.retention for t in measure_transitivity(flat, TRAINED)] == [0, 0]


def test_no_results_without_a_bridge_or_an_untrained_pair():
    assert measure_transitivity(make_directions(0.3), {frozenset(("image", "text"))}) == []
    assert measure_transitivity(make_directions(0.3), TRAINED | {frozenset(("audio", "text"))}) == []


def test_logged_terms_override_the_recipe():
    recipe = Recipe.load("trimodal")
    assert len(find_trained_pairs(recipe)) == 3
    logged_terms = ["epoch", "loss", "infonce(image,text).a_to_b", "triplet(image,audio)#2.hinge"]
    assert find_trained_pairs(recipe, logged_terms) == TRAINED
