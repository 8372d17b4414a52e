"""The ranking of queries with several parts against the formula, on hand-made keys."""

import numpy as np
import pytest
import torch

from triptych.checkpoint import load
from triptych.interfaces import Features
from triptych.search.index import Gallery
from triptych.search.ranking import MIN_RERANK, RERANK_FACTOR, EmbeddedPart, Ranker, ScoreDistribution

STANDARD = ScoreDistribution(np.array([[-1.0, 1.0]]))  # mean 0, standard deviation 1: standardising changes nothing
NO_PARTS = torch.zeros(1, 1, 32), torch.ones(1, 1, dtype=torch.bool)  # the similarity reads no parts


@pytest.fixture(scope="module")
def space(run_dir):
    return load(run_dir)


def query_part(axis, weight, dim=32):
    """Return a query part along one axis: its similarity to a key is that coordinate of the key."""
    embedding = torch.zeros(1, dim)
    embedding[0, axis] = 1
    return EmbeddedPart(Features(embedding, *NO_PARTS, "text"), weight)


def unit_keys(coordinates, dim=32):
    """Return unit keys with the given first coordinates."""
    keys = np.zeros((len(coordinates), dim), np.float32)
    keys[:, : len(coordinates[0])] = coordinates
    keys[:, -1] = np.sqrt(1 - (keys**2).sum(axis=1))
    return keys


def rank(space, keys, parts, k=10, distributions=None):
    gallery = Gallery(None, None, np.arange(len(keys)), keys)
    # The store is read only if the similarity is not exact.
    ranker = Ranker(space, None, gallery, "image", parts, distributions or [STANDARD] * len(parts))  # pyright: ignore[reportArgumentType]
    return ranker.rank(k)


# The similarity of each item to the positive and to the negative part.
ITEMS = [(0.6, -0.7), (0.8, 0.1), (0.5, 0.0), (0.7, 0.6), (0.3, -0.9)]


def test_a_negative_part_counts_only_above_zero(space):
    """Items that are dissimilar to the negative part do not gain by it."""
    ranked = rank(space, unit_keys(ITEMS), [query_part(0, 1.0), query_part(1, -0.5)])
    expected = {i: positive - 0.5 * max(0.0, negative) for i, (positive, negative) in enumerate(ITEMS)}
    assert min(negative for _, negative in ITEMS) < 0 < max(negative for _, negative in ITEMS)
    assert ranked.row_ids.tolist() == sorted(expected, key=lambda i: -expected[i]) == [1, 0, 2, 3, 4]
    assert ranked.scores == pytest.approx([expected[i] for i in ranked.row_ids.tolist()], abs=1e-6)
    assert ranked.part_scores == pytest.approx(np.array([ITEMS[i] for i in ranked.row_ids]), abs=1e-6)


def test_a_query_of_negative_parts_only_ranks_by_distance(space):
    ranked = rank(space, unit_keys(ITEMS), [query_part(1, -2.0)])
    assert ranked.row_ids.tolist() == [4, 0, 2, 1, 3]
    assert ranked.scores == pytest.approx([0.9, 0.7, 0.0, -0.1, -0.6], abs=1e-6)


def test_each_part_is_standardised_by_its_own_background_and_only_proportions_of_weights_count(space):
    distributions = [
        ScoreDistribution(np.array([[0.0, 0.4]])),
        ScoreDistribution(np.array([[0.25, 0.35]])),
    ]  # means 0.2, 0.3; standard deviations 0.2, 0.05
    for scale in (1.0, 7.0):
        ranked = rank(
            space, unit_keys(ITEMS), [query_part(0, 0.5 * scale), query_part(1, -scale)], distributions=distributions
        )
        for row_id, score in zip(ranked.row_ids.tolist(), ranked.scores.tolist(), strict=True):
            positive, negative = ITEMS[row_id]
            total = 0.5 * (positive - 0.2) / 0.2 - max(0.0, (negative - 0.3) / 0.05)
            assert score == pytest.approx(total, abs=1e-4)


def test_the_best_item_is_shortlisted_among_many_that_are_dissimilar_to_the_negative_part(space):
    """Clipping makes the total nonlinear: the nearest keys to the sum of the parts may not contain the best item."""
    dissimilar = [(0.1, -0.9)] * (MIN_RERANK + 50)
    ranked = rank(space, unit_keys([*dissimilar, (0.6, 0.0)]), [query_part(0, 1.0), query_part(1, -1.0)], k=1)
    assert ranked.row_ids.tolist() == [len(dissimilar)]


def test_the_shortlist_grows_with_the_number_of_requested_items(space):
    """Each search finds 250 other items first: the most similar to the positive part, or the least to the negative."""
    k = 30
    others = [(0.65, 0.64)] * (RERANK_FACTOR * k - 50) + [(0.1, -0.9)] * (RERANK_FACTOR * k - 50)
    ranked = rank(space, unit_keys([*others, *[(0.6, 0.0)] * k]), [query_part(0, 1.0), query_part(1, -1.0)], k=k)
    assert sorted(ranked.row_ids.tolist()) == list(range(len(others), len(others) + k))


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 0.4), (1.0, -1.0), (0.3, -1.0)])
@pytest.mark.parametrize("seed", range(5))
def test_the_best_items_are_those_of_a_loop_over_all_items(space, weights, seed):
    coordinates = np.random.default_rng(seed).uniform(-0.7, 0.7, (MIN_RERANK // 2, len(weights)))
    ranked = rank(space, unit_keys(coordinates), [query_part(axis, w) for axis, w in enumerate(weights)], k=3)
    totals = [
        sum(w * (z if w > 0 else max(0.0, z)) for w, z in zip(weights, item, strict=True))
        for item in coordinates.tolist()
    ]
    assert ranked.row_ids.tolist() == sorted(range(len(totals)), key=lambda i: -totals[i])[:3]
    assert ranked.scores == pytest.approx(sorted(totals, reverse=True)[:3], abs=1e-5)
