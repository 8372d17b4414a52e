"""Relevance: how rare a score is among random pairs, by counting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.contracts import Source
from triptych.search.relevance import PHRASES, RARE, RELEVANT, TAIL, Background, Kind


def test_relevance_counts_random_pairs_that_score_as_high():
    scores = np.random.default_rng(0).standard_normal(20_000)
    background = Background(scores)
    for score in (-1.0, 0.0, 1.0, 2.0):
        share = sum(other >= score for other in scores.tolist()) / len(scores)
        assert np.exp(-background.rarity(np.array([score]))[0]) == pytest.approx(share, rel=0.01)
        assert background.relevance(np.array([score]))[0] == pytest.approx(RARE / (RARE + share), rel=0.01)


def test_the_line_is_where_one_random_pair_in_a_hundred_is():
    scores = np.linspace(0, 1, 10_001)
    assert Background(scores).relevance(np.array([0.99]))[0] == pytest.approx(RELEVANT, abs=0.01)


def test_beyond_the_background_the_tail_goes_on_as_it_fell():
    scores = np.random.default_rng(1).exponential(size=200_000)
    background = Background(scores)
    for score in (7.0, 10.0, 14.0):  # of an exponential, the share above is exp(-score)
        assert background.rarity(np.array([score]))[0] == pytest.approx(score, rel=0.05)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=60), st.lists(st.floats(-9, 9), min_size=2, max_size=20))
def test_higher_scores_are_never_less_relevant(background, scores):
    ordered = np.sort(np.array(scores))
    found = Background(np.array(background))
    relevance = found.relevance(ordered)
    assert (np.diff(relevance) >= -1e-12).all()
    assert ((relevance >= 0) & (relevance <= 1)).all()
    assert (np.diff(found.rarity(ordered)) >= -1e-9).all()


def test_one_score_or_none_is_no_reason_to_fail():
    assert np.isfinite(Background(np.array([0.3])).relevance(np.array([0.3, 0.9]))).all()
    assert np.isfinite(Background(np.array([])).relevance(np.array([0.3]))).all()
    assert TAIL < RARE


def test_a_pair_of_an_item_with_itself_is_not_chance():
    scores = np.array([[np.nan, 0.1], [0.2, np.nan]])
    kind = Kind(scores)
    assert kind.centre == pytest.approx(0.15)
    assert kind.background.scores == pytest.approx([-1, 1])


def test_hits_say_how_often_random_questions_score_as_high(collection):
    """No eight texts here: the phrases stand for questions in words."""
    space = collection.space
    phrases = space.embed([Source("text", phrase) for phrase in PHRASES], "text").features
    entries, keys = collection.sample("image", 100)
    scores = (space.similarity.query(phrases).numpy() @ keys.T).ravel()
    for hit in collection.search(Source("text", "a bell"), ["image"], k=5, fold=False):
        share = (scores >= hit.score - 1e-6).mean()
        if share > 2 * TAIL:
            assert hit.relevance == pytest.approx(RARE / (RARE + share), rel=0.1)
    assert len(entries) == 5
