"""Relevance against counts of random pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.interfaces import Source
from triptych.search.ranking import (
    BACKGROUND_PHRASES,
    P_AT_THRESHOLD,
    RELEVANCE_THRESHOLD,
    TAIL_FRACTION,
    NullDistribution,
    ScoreDistribution,
)


def test_relevance_is_based_on_the_p_value_among_random_pairs():
    scores = np.random.default_rng(0).standard_normal(20_000)
    distribution = NullDistribution(scores)
    for score in (-1.0, 0.0, 1.0, 2.0):
        p_value = sum(other >= score for other in scores.tolist()) / len(scores)
        assert np.exp(-distribution.neg_log_p(np.array([score]))[0]) == pytest.approx(p_value, rel=0.01)
        assert distribution.relevance(np.array([score]))[0] == pytest.approx(
            P_AT_THRESHOLD / (P_AT_THRESHOLD + p_value), rel=0.01
        )


def test_the_threshold_is_at_one_random_pair_in_a_hundred():
    scores = np.linspace(0, 1, 10_001)
    assert NullDistribution(scores).relevance(np.array([0.99]))[0] == pytest.approx(RELEVANCE_THRESHOLD, abs=0.01)


def test_the_tail_is_extrapolated_exponentially():
    scores = np.random.default_rng(1).exponential(size=200_000)
    distribution = NullDistribution(scores)
    for score in (7.0, 10.0, 14.0):  # for an exponential, P(score or higher) = exp(-score)
        assert distribution.neg_log_p(np.array([score]))[0] == pytest.approx(score, rel=0.05)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=60), st.lists(st.floats(-9, 9), min_size=2, max_size=20))
def test_relevance_is_monotone_in_the_score(random_scores, scores):
    ordered = np.sort(np.array(scores))
    distribution = NullDistribution(np.array(random_scores))
    relevance = distribution.relevance(ordered)
    assert (np.diff(relevance) >= -1e-12).all()
    assert ((relevance >= 0) & (relevance <= 1)).all()
    assert (np.diff(distribution.neg_log_p(ordered)) >= -1e-9).all()


def test_a_score_that_every_random_pair_reaches_is_not_relevant():
    distribution = NullDistribution(np.full(50, 0.3))
    assert distribution.neg_log_p(np.array([0.3]))[0] == pytest.approx(0, abs=0.02)
    assert distribution.relevance(np.array([0.3]))[0] == pytest.approx(P_AT_THRESHOLD, rel=0.02)


def test_distributions_of_one_or_no_score_are_finite():
    assert np.isfinite(NullDistribution(np.array([0.3])).relevance(np.array([0.3, 0.9]))).all()
    assert np.isfinite(NullDistribution(np.array([])).relevance(np.array([0.3]))).all()
    assert TAIL_FRACTION < P_AT_THRESHOLD


def test_pairs_of_an_item_with_itself_are_ignored():
    scores = np.array([[np.nan, 0.1], [0.2, np.nan]])
    distribution = ScoreDistribution(scores)
    assert distribution.mean == pytest.approx(0.15)
    assert distribution.null_distribution.scores == pytest.approx([-1, 1])


def test_hits_have_the_relevance_of_their_p_value(collection):
    """The collection has fewer than eight texts, so the common phrases are the background queries."""
    space = collection.space
    phrases = space.embed([Source("text", phrase) for phrase in BACKGROUND_PHRASES], "text").features
    entries, keys = collection.sample("image", 100)
    scores = (space.similarity.query(phrases).numpy() @ keys.T).ravel()
    for hit in collection.search(Source("text", "a bell"), ["image"], k=5, fold_duplicates=False):
        p_value = (scores >= hit.score - 1e-6).mean()
        if p_value > 2 * TAIL_FRACTION:
            assert hit.relevance == pytest.approx(P_AT_THRESHOLD / (P_AT_THRESHOLD + p_value), rel=0.1)
    assert len(entries) == 5
