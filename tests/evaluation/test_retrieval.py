"""Ranks and metrics against loops and other libraries, with ties; chance levels against simulations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych.evaluation.chance import compute_chance_recall
from triptych.evaluation.retrieval import (
    MAX_POSITIVES,
    PositiveRanks,
    average_precision,
    compute_chance_levels,
    compute_retrieval_metrics,
    ndcg,
    rank_positives,
)

groups = st.lists(st.integers(0, 4), min_size=1, max_size=9)
many_groups = st.lists(st.integers(0, 2), min_size=1, max_size=70)  # more positives than MAX_POSITIVES


def lookup(scores):
    return lambda rows, columns: scores[rows][:, columns]


def tied_scores(queries, items, seed, levels=6):
    """Scores with many ties."""
    return torch.randint(0, levels, (queries, items), generator=torch.Generator().manual_seed(seed)).double()


def random_task(queries=40, items=60, classes=12, seed=0):
    rng = torch.Generator().manual_seed(seed)
    # Above 0: some libraries treat a negative score as "not retrieved".
    scores = torch.rand(queries, items, generator=rng, dtype=torch.double)
    gallery_group = torch.randint(0, classes, (items,), generator=rng)
    return scores, gallery_group[torch.randint(0, items, (queries,), generator=rng)], gallery_group


def measure_scores(scores, query_group, gallery_group, **more):
    ranks = rank_positives(lookup(scores), query_group, gallery_group)
    return compute_retrieval_metrics("a", "b", ranks, query_group, scores.shape[1], **more)


@given(groups, many_groups, st.integers(1, 4), st.integers(1, 9), st.integers(0, 999))
def test_positive_ranks_match_their_definition_for_any_block_size(
    query_group, gallery_group, query_block, gallery_block, seed
):
    scores = tied_scores(len(query_group), len(gallery_group), seed)
    positives = rank_positives(
        lookup(scores), torch.tensor(query_group), torch.tensor(gallery_group), query_block, gallery_block
    )
    for i, group in enumerate(query_group):
        ranking = sorted(
            (-float(scores[i, j]), g == group) for j, g in enumerate(gallery_group)
        )  # ties: negatives first
        hits = [rank for rank, (_, is_positive) in enumerate(ranking, start=1) if is_positive]
        assert positives.num_positives[i] == len(hits)
        ranks = positives.rank[i].tolist()
        assert ranks == (hits[:MAX_POSITIVES] + [0] * len(ranks))[: len(ranks)]
        assert len(ranks) >= min(MAX_POSITIVES, len(hits))


@given(groups, many_groups, st.integers(1, 16), st.integers(0, 999))
def test_average_precision_and_ndcg_match_their_definitions(query_group, gallery_group, cutoff, seed):
    scores = tied_scores(len(query_group), len(gallery_group), seed)
    ranks = rank_positives(lookup(scores), torch.tensor(query_group), torch.tensor(gallery_group))
    precision, ndcg_values = average_precision(ranks, cutoff), ndcg(ranks, cutoff)
    for i, group in enumerate(query_group):
        ranking = sorted((-float(scores[i, j]), g == group) for j, g in enumerate(gallery_group))
        hits = [rank for rank, (_, is_positive) in enumerate(ranking, start=1) if is_positive]
        expected = sum(k / rank for k, rank in enumerate(hits, start=1) if rank <= cutoff) / max(len(hits), 1)
        assert precision[i].item() == pytest.approx(expected)
        ideal = sum(1 / math.log2(1 + k) for k in range(1, min(len(hits), cutoff) + 1))
        expected = sum(1 / math.log2(1 + rank) for rank in hits if rank <= cutoff) / (ideal or 1)
        assert ndcg_values[i].item() == pytest.approx(expected)


def test_ndcg_matches_scikit_learn():
    from sklearn.metrics import ndcg_score

    scores, query_group, gallery_group = random_task()
    relevant = (query_group[:, None] == gallery_group).double()
    expected = ndcg_score(relevant.numpy(), scores.numpy(), k=10)
    assert measure_scores(scores, query_group, gallery_group).metrics["nDCG@10"] == pytest.approx(expected)


@pytest.mark.slow
def test_average_precision_matches_scikit_learn_and_torchmetrics():
    from sklearn.metrics import average_precision_score
    from torchmetrics.functional.retrieval import retrieval_average_precision

    scores, query_group, gallery_group = random_task()
    ranks = rank_positives(lookup(scores), query_group, gallery_group)
    assert ranks.num_positives.max() <= MAX_POSITIVES
    ours = average_precision(ranks, scores.shape[1])
    for i, row in enumerate(scores):
        relevant = gallery_group == query_group[i]
        assert ours[i].item() == pytest.approx(average_precision_score(relevant.numpy(), row.numpy()))
        assert ours[i].item() == pytest.approx(retrieval_average_precision(row, relevant).item())


def test_recall_and_rank_match_torchmetrics():
    from torchmetrics.functional.retrieval import retrieval_hit_rate, retrieval_reciprocal_rank

    scores, query_group, gallery_group = random_task()
    per_query = measure_scores(scores, query_group, gallery_group).per_query
    for i, row in enumerate(scores):
        relevant = gallery_group == query_group[i]
        assert 1 / per_query.best_rank[i] == pytest.approx(retrieval_reciprocal_rank(row, relevant).item())
        for k in (1, 5, 10):
            assert per_query.values[f"R@{k}"][i] == retrieval_hit_rate(row, relevant, top_k=k).item()


@pytest.mark.parametrize("num_positives", [1, 5])
def test_a_collapsed_space_scores_zero(num_positives):
    groups = torch.arange(50)
    result = measure_scores(torch.zeros(50, 50 * num_positives), groups, groups.repeat_interleave(num_positives))
    assert result.recall == {1: 0, 5: 0, 10: 0}
    assert result.metrics["mAP@16"] == result.metrics["nDCG@10"] == 0
    assert result.metrics["mean rank"] == result.median_rank == 49 * num_positives + 1


def test_a_perfect_space_scores_one():
    groups = torch.arange(50)
    result = measure_scores(torch.eye(50), groups, groups)
    assert result.recall == {1: 1, 5: 1, 10: 1}
    assert {result.metrics[name] for name in ("mAP@10", "mAP@16", "nDCG@10", "mean rank", "median rank")} == {1}
    assert result.chance_recall == pytest.approx({1: 0.02, 5: 0.1, 10: 0.2})
    row = result.to_row()
    assert (row["query"], row["gallery"], row["R@10"], row["R@10 high"]) == ("a", "b", 1, 1)
    assert row["R@10 chance"] == pytest.approx(0.2)
    assert row["R@10 low"] == result.intervals["R@10"].low


def test_nan_scores_never_improve_a_rank():
    scores = torch.eye(3)
    scores[0, 1] = scores[1, 1] = torch.nan
    groups = torch.arange(3)
    assert rank_positives(lookup(scores), groups, groups).rank[:, 0].tolist() == [2, 3, 1]


def test_queries_without_positives_are_excluded():
    scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    result = measure_scores(scores, torch.tensor([7, 9, 8]), torch.tensor([8, 7, 7]))
    assert result.num_queries == 2
    assert result.per_query.item_index.tolist() == [0, 2]
    assert result.per_query.group.tolist() == [7, 8]
    assert result.per_query.num_positives.tolist() == [2, 1]
    assert result.per_query.best_rank.tolist() == [2, 1]
    for name, column in result.per_query.values.items():
        assert result.metrics[name] == column.mean()
        assert result.intervals[name].contains(result.metrics[name])


@pytest.mark.parametrize(("num_items", "num_positives", "k"), [(20, 1, 5), (20, 5, 3), (8, 3, 6), (5, 5, 1), (4, 0, 2)])
def test_chance_recall_matches_simulation(num_items, num_positives, k):
    rng = np.random.default_rng(0)
    hits = [(rng.permutation(num_items)[:k] < num_positives).any() for _ in range(4000)]
    assert compute_chance_recall(num_items, num_positives, k) == pytest.approx(np.mean(hits), abs=0.03)


@pytest.mark.parametrize(("num_items", "num_positives"), [(30, 1), (30, 5), (12, 12), (60, 20)])
def test_chance_levels_match_random_scores(num_items, num_positives):
    queries = 6000
    scores = torch.rand(queries, num_items, generator=torch.Generator().manual_seed(1))
    result = measure_scores(
        scores, torch.zeros(queries), (torch.arange(num_items) >= num_positives).double(), num_resamples=0
    )
    expected = compute_chance_levels(num_items, np.full(queries, num_positives))
    assert expected.keys() == result.chance_levels.keys()
    for name, value in expected.items():
        assert result.metrics[name] == pytest.approx(value, rel=0.06), name
        assert result.chance_levels[name] == pytest.approx(value)


def test_chance_recall_in_a_gallery_of_a_million():
    assert compute_chance_recall(1_000_000, 1, 10) == pytest.approx(1e-5, rel=1e-9)


def test_a_direction_without_positives_has_empty_ranks():
    ranks = rank_positives(lookup(torch.zeros(2, 3)), torch.tensor([1, 2]), torch.tensor([3, 3, 3]))
    assert isinstance(ranks, PositiveRanks)
    assert ranks.rank.shape == (2, 0)
    assert ranks.num_positives.tolist() == [0, 0]
