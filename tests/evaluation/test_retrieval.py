"""Ranks and what is made of them: against loops, against other libraries, with ties, and chance by simulation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych.evaluation.retrieval import KEPT, Places, average_precision, chance, gain, guessed, measure, places

groups = st.lists(st.integers(0, 4), min_size=1, max_size=9)
many = st.lists(st.integers(0, 2), min_size=1, max_size=70)  # more right answers than are kept


def lookup(scores):
    return lambda rows, columns: scores[rows][:, columns]


def coarse(queries, items, seed, levels=6):
    """Scores of which many are the same."""
    return torch.randint(0, levels, (queries, items), generator=torch.Generator().manual_seed(seed)).double()


def random_set(queries=40, items=60, classes=12, seed=0):
    rng = torch.Generator().manual_seed(seed)
    # Above 0: some libraries take a score below it for "not found".
    scores = torch.rand(queries, items, generator=rng, dtype=torch.double)
    of_items = torch.randint(0, classes, (items,), generator=rng)
    return scores, of_items[torch.randint(0, items, (queries,), generator=rng)], of_items


def measured(scores, query_group, gallery_group, **more):
    found = places(lookup(scores), query_group, gallery_group)
    return measure("a", "b", found, query_group, scores.shape[1], **more)


@given(groups, many, st.integers(1, 4), st.integers(1, 9), st.integers(0, 999))
def test_places_follow_their_definition_whatever_the_blocks(query_group, gallery_group, queries, items, seed):
    scores = coarse(len(query_group), len(gallery_group), seed)
    found = places(lookup(scores), torch.tensor(query_group), torch.tensor(gallery_group), queries, items)
    for i, mine in enumerate(query_group):
        answers = sorted((-float(scores[i, j]), g == mine) for j, g in enumerate(gallery_group))  # ties: wrong first
        # Of right answers that tie with wrong ones, each counts all of them as being before it.
        hits = [rank for rank, (_, right) in enumerate(answers, start=1) if right]
        assert found.right[i] == len(hits)
        ranks = found.rank[i].tolist()
        assert ranks == (hits[:KEPT] + [0] * len(ranks))[: len(ranks)]
        assert len(ranks) >= min(KEPT, len(hits))


@given(groups, many, st.integers(1, 16), st.integers(0, 999))
def test_average_precision_and_gain_follow_their_definitions(query_group, gallery_group, cut, seed):
    scores = coarse(len(query_group), len(gallery_group), seed)
    found = places(lookup(scores), torch.tensor(query_group), torch.tensor(gallery_group))
    precision, discounted = average_precision(found, cut), gain(found, cut)
    for i, mine in enumerate(query_group):
        answers = sorted((-float(scores[i, j]), g == mine) for j, g in enumerate(gallery_group))
        hits = [rank for rank, (_, right) in enumerate(answers, start=1) if right]
        expected = sum(k / rank for k, rank in enumerate(hits, start=1) if rank <= cut) / max(len(hits), 1)
        assert precision[i].item() == pytest.approx(expected)
        ideal = sum(1 / math.log2(1 + k) for k in range(1, min(len(hits), cut) + 1))
        expected = sum(1 / math.log2(1 + rank) for rank in hits if rank <= cut) / (ideal or 1)
        assert discounted[i].item() == pytest.approx(expected)


def test_ndcg_is_that_of_scikit_learn():
    from sklearn.metrics import ndcg_score

    scores, query_group, gallery_group = random_set()
    relevant = (query_group[:, None] == gallery_group).double()
    theirs = ndcg_score(relevant.numpy(), scores.numpy(), k=10)
    assert measured(scores, query_group, gallery_group).metrics["nDCG@10"] == pytest.approx(theirs)


@pytest.mark.slow
def test_average_precision_over_all_ranks_is_that_of_scikit_learn_and_torchmetrics():
    from sklearn.metrics import average_precision_score
    from torchmetrics.functional.retrieval import retrieval_average_precision

    scores, query_group, gallery_group = random_set()
    found = places(lookup(scores), query_group, gallery_group)
    assert found.right.max() <= KEPT
    ours = average_precision(found, scores.shape[1])
    for i, row in enumerate(scores):
        relevant = gallery_group == query_group[i]
        assert ours[i].item() == pytest.approx(average_precision_score(relevant.numpy(), row.numpy()))
        assert ours[i].item() == pytest.approx(retrieval_average_precision(row, relevant).item())


def test_recall_and_rank_are_those_of_torchmetrics():
    from torchmetrics.functional.retrieval import retrieval_hit_rate, retrieval_reciprocal_rank

    scores, query_group, gallery_group = random_set()
    each = measured(scores, query_group, gallery_group).each
    for i, row in enumerate(scores):
        relevant = gallery_group == query_group[i]
        assert 1 / each.rank[i] == pytest.approx(retrieval_reciprocal_rank(row, relevant).item())
        for k in (1, 5, 10):
            assert each.values[f"R@{k}"][i] == retrieval_hit_rate(row, relevant, top_k=k).item()


@pytest.mark.parametrize("share", [1, 5])
def test_a_collapsed_space_never_scores(share):
    own = torch.arange(50)
    result = measured(torch.zeros(50, 50 * share), own, own.repeat_interleave(share))
    assert result.recall == {1: 0, 5: 0, 10: 0}
    assert result.metrics["mAP@16"] == result.metrics["nDCG@10"] == 0
    assert result.metrics["mean rank"] == result.median_rank == 49 * share + 1


def test_a_perfect_space_scores_everything():
    own = torch.arange(50)
    result = measured(torch.eye(50), own, own)
    assert result.recall == {1: 1, 5: 1, 10: 1}
    assert {result.metrics[name] for name in ("mAP@10", "mAP@16", "nDCG@10", "mean rank", "median rank")} == {1}
    assert result.chance == pytest.approx({1: 0.02, 5: 0.1, 10: 0.2})


def test_a_score_that_is_no_number_never_helps():
    scores = torch.eye(3)
    scores[0, 1] = scores[1, 1] = torch.nan
    own = torch.arange(3)
    assert places(lookup(scores), own, own).rank[:, 0].tolist() == [2, 3, 1]


def test_each_query_is_kept_and_a_query_without_an_answer_left_out():
    scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    result = measured(scores, torch.tensor([7, 9, 8]), torch.tensor([8, 7, 7]))
    assert result.queries == 2
    assert result.each.item.tolist() == [0, 2]
    assert result.each.group.tolist() == [7, 8]
    assert result.each.right.tolist() == [2, 1]
    assert result.each.rank.tolist() == [2, 1]
    for name, column in result.each.values.items():
        assert result.metrics[name] == column.mean()
        assert result.interval[name].covers(result.metrics[name])


@pytest.mark.parametrize(("items", "right", "k"), [(20, 1, 5), (20, 5, 3), (8, 3, 6), (5, 5, 1), (4, 0, 2)])
def test_chance_is_what_guessing_gives(items, right, k):
    rng = np.random.default_rng(0)
    hits = [(rng.permutation(items)[:k] < right).any() for _ in range(4000)]
    assert chance(items, right, k) == pytest.approx(np.mean(hits), abs=0.03)


@pytest.mark.parametrize(("items", "right"), [(30, 1), (30, 5), (12, 12), (60, 20)])
def test_what_is_said_of_guessing_is_what_guessing_gives(items, right):
    queries = 6000
    scores = torch.rand(queries, items, generator=torch.Generator().manual_seed(1))
    result = measured(scores, torch.zeros(queries), (torch.arange(items) >= right).double(), draws=0)
    expected = guessed(items, np.full(queries, right))
    assert expected.keys() == result.guessed.keys()
    for name, value in expected.items():
        assert result.metrics[name] == pytest.approx(value, rel=0.06), name
        assert result.guessed[name] == pytest.approx(value)


def test_chance_is_right_in_a_gallery_of_a_million():
    assert chance(1_000_000, 1, 10) == pytest.approx(1e-5, rel=1e-9)


def test_a_direction_without_queries_has_no_places():
    found = places(lookup(torch.zeros(2, 3)), torch.tensor([1, 2]), torch.tensor([3, 3, 3]))
    assert isinstance(found, Places)
    assert found.rank.shape == (2, 0)
    assert found.right.tolist() == [0, 0]
