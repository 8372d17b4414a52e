"""Ranks and recalls: against loops, with ties, with several right answers, and chance by simulation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.similarities.test_similarities import features
from triptych.contracts import Features
from triptych.evaluation.retrieval import average_precision, chance, measure, ranks
from triptych.similarities import SIMILARITIES

COSINE = SIMILARITIES["cosine"]()


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=9),
    st.lists(st.integers(0, 5), min_size=1, max_size=9),
    st.integers(0, 999),
)
def test_ranks_follow_their_definition_whatever_the_block(query_group, gallery_group, seed):
    rng = torch.Generator().manual_seed(seed)

    def coarse(n):  # few directions, so that ties are common
        embedding = torch.randint(-1, 2, (n, 2), generator=rng).double() + 0.1
        return Features(embedding, embedding[:, None], torch.ones(n, 1, dtype=torch.bool))

    a, b = coarse(len(query_group)), coarse(len(gallery_group))
    groups = torch.tensor(query_group), torch.tensor(gallery_group)
    found, right = ranks(COSINE, a, b, *groups, block=2)
    scores = COSINE(a, b)
    for i, mine in enumerate(query_group):
        best = max((float(scores[i, j]) for j, g in enumerate(gallery_group) if g == mine), default=-np.inf)
        worse = sum(float(scores[i, j]) >= best for j, g in enumerate(gallery_group) if g != mine)
        assert found[i] == 1 + worse
        assert right[i] == gallery_group.count(mine)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(0, 999),
)
def test_average_precision_follows_its_definition_whatever_the_block(query_group, gallery_group, cut, seed):
    scores = torch.randint(0, 6, (len(query_group), len(gallery_group)), generator=torch.Generator().manual_seed(seed))
    a, b = features(len(query_group)), features(len(gallery_group))
    rows = {tuple(row): i for i, row in enumerate(a.embedding.tolist())}

    def score(some, gallery):
        return torch.stack([scores[rows[tuple(row)]].double() for row in some.embedding.tolist()])

    found = average_precision(score, a, b, torch.tensor(query_group), torch.tensor(gallery_group), cut, block=2)
    for i, mine in enumerate(query_group):
        answers = sorted((-int(scores[i, j]), g == mine) for j, g in enumerate(gallery_group))  # ties: wrong ones first
        hits = [rank for rank, (_, right) in enumerate(answers, start=1) if right]
        expected = sum(k / rank for k, rank in enumerate(hits, start=1) if rank <= cut) / max(len(hits), 1)
        assert found[i].item() == pytest.approx(expected)


def test_a_collapsed_space_never_scores():
    a = features(50)
    same = Features(torch.ones_like(a.embedding), a.parts, a.mask)
    found, right = ranks(COSINE, same, same, torch.arange(50), torch.arange(50))
    assert measure("a", "b", found, right, 50).recall == {1: 0, 5: 0, 10: 0}


def test_a_perfect_space_scores_everything():
    a = features(50)
    found, right = ranks(COSINE, a, a, torch.arange(50), torch.arange(50))
    result = measure("a", "b", found, right, 50)
    assert result.recall == {1: 1, 5: 1, 10: 1}
    assert result.median_rank == 1
    assert result.chance == pytest.approx({1: 0.02, 5: 0.1, 10: 0.2})


@pytest.mark.parametrize(("items", "right", "k"), [(20, 1, 5), (20, 5, 3), (8, 3, 6), (5, 5, 1), (4, 0, 2)])
def test_chance_is_what_guessing_gives(items, right, k):
    rng = np.random.default_rng(0)
    hits = [(rng.permutation(items)[:k] < right).any() for _ in range(4000)]
    assert chance(items, right, k) == pytest.approx(np.mean(hits), abs=0.03)
