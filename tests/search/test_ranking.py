"""Queries of several parts against keys made by hand: totals and order as the formula gives them."""

import numpy as np
import pytest
import torch

from triptych.checkpoint import load
from triptych.contracts import Features
from triptych.search.gallery import Gallery
from triptych.search.ranking import LEAST, Allowed, Asked, Ranking
from triptych.search.relevance import Kind

STANDARD = Kind(np.array([[-1.0, 1.0]]))  # mean 0, deviation 1: the standardised score is the score itself
NOTHING = torch.zeros(1, 1, 32), torch.ones(1, 1, dtype=torch.bool)  # the similarity reads no parts


@pytest.fixture(scope="module")
def space(run):
    return load(run)


def query_part(axis, weight, width=32):
    """A part of a query along one axis: its similarity to a key is that coordinate of the key."""
    embedding = torch.zeros(1, width)
    embedding[0, axis] = 1
    return Asked(Features(embedding, *NOTHING), "text", weight)


def unit_keys(coordinates, width=32):
    """Keys of length 1 with the given first coordinates."""
    keys = np.zeros((len(coordinates), width), np.float32)
    keys[:, : len(coordinates[0])] = coordinates
    keys[:, -1] = np.sqrt(1 - (keys**2).sum(axis=1))
    return keys


def rank(space, keys, parts, k=10, kinds=None):
    gallery = Gallery(None, None, np.arange(len(keys)), keys)
    # The store is read only where the similarity is not exact.
    ranking = Ranking(space, None, gallery, "image", parts, kinds or [STANDARD] * len(parts))  # pyright: ignore[reportArgumentType]
    return ranking.best(k, Allowed())


# The columns: similarity to the wanted part, similarity to the unwanted part.
ITEMS = [(0.6, -0.7), (0.8, 0.1), (0.5, 0.0), (0.7, 0.6), (0.3, -0.9)]


def test_an_unwanted_part_counts_only_above_zero(space):
    """Items that are unlike the unwanted part gain nothing by it, however far they are from it."""
    ranked = rank(space, unit_keys(ITEMS), [query_part(0, 1.0), query_part(1, -0.5)])
    expected = {i: wanted - 0.5 * max(0.0, unwanted) for i, (wanted, unwanted) in enumerate(ITEMS)}
    assert min(unwanted for _, unwanted in ITEMS) < 0 < max(unwanted for _, unwanted in ITEMS)
    assert ranked.numbers.tolist() == sorted(expected, key=lambda i: -expected[i]) == [1, 0, 2, 3, 4]
    assert ranked.score == pytest.approx([expected[i] for i in ranked.numbers.tolist()], abs=1e-6)
    assert ranked.parts == pytest.approx(np.array([ITEMS[i] for i in ranked.numbers]), abs=1e-6)


def test_a_query_of_unwanted_parts_alone_ranks_by_distance(space):
    ranked = rank(space, unit_keys(ITEMS), [query_part(1, -2.0)])
    assert ranked.numbers.tolist() == [4, 0, 2, 1, 3]
    assert ranked.score == pytest.approx([0.9, 0.7, 0.0, -0.1, -0.6], abs=1e-6)


def test_each_part_is_standardised_by_its_own_background_and_only_proportions_of_weights_count(space):
    kinds = [Kind(np.array([[0.0, 0.4]])), Kind(np.array([[0.25, 0.35]]))]  # means 0.2, 0.3; deviations 0.2, 0.05
    for scale in (1.0, 7.0):
        ranked = rank(space, unit_keys(ITEMS), [query_part(0, 0.5 * scale), query_part(1, -scale)], kinds=kinds)
        for number, score in zip(ranked.numbers.tolist(), ranked.score.tolist(), strict=True):
            wanted, unwanted = ITEMS[number]
            total = 0.5 * (wanted - 0.2) / 0.2 - max(0.0, (unwanted - 0.3) / 0.05)
            assert score == pytest.approx(total, abs=1e-4)


def test_the_best_item_is_found_where_many_are_merely_unlike_the_unwanted_part(space):
    """With the clip the total is not linear: the nearest keys to the sum of the parts may leave out the best item."""
    unlike = [(0.1, -0.9)] * (LEAST + 50)
    ranked = rank(space, unit_keys([*unlike, (0.6, 0.0)]), [query_part(0, 1.0), query_part(1, -1.0)], k=1)
    assert ranked.numbers.tolist() == [len(unlike)]
