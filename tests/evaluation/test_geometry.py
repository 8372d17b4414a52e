"""The geometry of a space: every measure against loops in float64, limiting cases and invariances."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.similarities.test_similarities import random_features
from triptych.checkpoint import load
from triptych.data import manifest
from triptych.evaluation.evaluate import evaluate
from triptych.evaluation.geometry import alignment, describe_geometry, effective_rank, hubness, modality_gap, uniformity

SEEDS = st.integers(0, 999)


def random_embeddings(items, embed_dim=4, seed=0):
    return torch.randn(items, embed_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def unit(vector):
    length = math.sqrt(sum(v * v for v in vector))
    return [v / length for v in vector]


def squared_distance(x, y):
    return sum((a - b) ** 2 for a, b in zip(x, y, strict=True))


groups = st.lists(st.integers(0, 4), min_size=1, max_size=8)


@given(groups, groups, SEEDS)
def test_alignment_is_the_mean_over_positive_pairs(a_groups, b_groups, seed):
    a, b = random_embeddings(len(a_groups), seed=seed), random_embeddings(len(b_groups), seed=seed + 1)
    value = alignment(a, b, torch.tensor(a_groups), torch.tensor(b_groups))
    distances = [
        squared_distance(unit(a[i].tolist()), unit(b[j].tolist()))
        for i, j in product(range(len(a_groups)), range(len(b_groups)))
        if a_groups[i] == b_groups[j]
    ]
    assert value is None if not distances else value == pytest.approx(sum(distances) / len(distances))


@given(st.integers(2, 9), SEEDS)
def test_uniformity_is_the_log_mean_over_pairs(items, seed):
    x = random_embeddings(items, seed=seed)
    rows = [unit(row) for row in x.tolist()]
    kernels = [math.exp(-2 * squared_distance(rows[i], rows[j])) for i in range(items) for j in range(i)]
    assert uniformity(x) == pytest.approx(math.log(sum(kernels) / len(kernels)))


def test_uniformity_of_one_point_and_of_a_wide_sphere():
    assert uniformity(torch.ones(5, 3, dtype=torch.double)) == pytest.approx(0)
    assert uniformity(random_embeddings(500, 300)) == pytest.approx(-4, abs=0.05)


@given(st.integers(1, 6), st.integers(2, 6), SEEDS, st.floats(0.01, 100))
def test_gap_matches_its_definition_and_the_relative_gap_is_scale_free(n, m, seed, scale):
    a, b = random_embeddings(n, seed=seed), random_embeddings(m, seed=seed + 1) + 0.5
    raw, relative = modality_gap(a, b)
    centroids = [[sum(row[d] for row in side) / len(side) for d in range(4)] for side in (a.tolist(), b.tolist())]
    distance = math.sqrt(squared_distance(*centroids))
    spread = [
        sum(squared_distance(row, centroid) for row in side.tolist()) / len(side)
        for side, centroid in zip((a, b), centroids, strict=True)
    ]
    assert raw == pytest.approx(distance)
    assert relative == pytest.approx(distance / math.sqrt(sum(spread) / 2))
    assert modality_gap(scale * a, scale * b) == pytest.approx((scale * raw, relative))
    assert modality_gap(a, a)[1] == pytest.approx(0, abs=1e-7)


def test_relative_gap_of_two_points_is_infinite():
    assert modality_gap(torch.zeros(3, 2), torch.ones(3, 2)) == (pytest.approx(math.sqrt(2)), math.inf)


@settings(deadline=None)
@given(st.integers(1, 5), SEEDS, st.floats(0.1, 10))
def test_effective_rank_counts_equal_directions_and_is_scale_free(rank, seed, scale):
    axes = torch.linalg.qr(random_embeddings(6, 6, seed)).Q[:rank]
    x = torch.cat([axes, -axes])  # centred, every direction equally long
    assert effective_rank(scale * x) == pytest.approx(rank)
    y = random_embeddings(8, 5, seed)
    values = [math.sqrt(max(v, 0)) for v in torch.linalg.eigvalsh((y - y.mean(0)).T @ (y - y.mean(0))).tolist()]
    fractions = [v / sum(values) for v in values]
    assert effective_rank(y) == pytest.approx(math.exp(-sum(p * math.log(p) for p in fractions if p > 0)))
    assert effective_rank(torch.ones(4, 3)) == 0


@given(st.integers(1, 8), st.integers(1, 3), st.integers(4, 9), SEEDS)
def test_hubness_counts_how_often_items_are_retrieved(queries, k, items, seed):
    generator = torch.Generator().manual_seed(seed)
    nearest = torch.stack([torch.randperm(items, generator=generator)[:k] for _ in range(queries)])
    count = [sum(item in row for row in nearest.tolist()) for item in range(items)]
    mean = sum(count) / items
    spread = math.sqrt(sum((c - mean) ** 2 for c in count) / items)
    expected = sum((c - mean) ** 3 for c in count) / items / spread**3 if spread else 0
    assert hubness(nearest, items) == pytest.approx((expected, max(count) / queries, count.count(0) / items))


def test_a_single_hub_is_detected():
    nearest = torch.stack([torch.zeros(50, dtype=torch.long), torch.arange(1, 51)], dim=1)
    skewness, top_hub_rate, never_retrieved_rate = hubness(nearest, 60)
    assert skewness > 5
    assert (top_hub_rate, never_retrieved_rate) == (1, pytest.approx(9 / 60))


def test_describe_geometry_covers_every_pair_and_direction(run_dir, synthetic_manifest):
    space = load(run_dir)
    result = evaluate(space, manifest.read(synthetic_manifest).rows[:30], show_progress=False, num_resamples=0)
    geometry = describe_geometry(space, result.items)
    assert [(s.modality, s.num_items, s.embed_dim) for s in geometry.modalities] == [
        ("image", 30, 32),
        ("audio", 30, 32),
        ("text", 60, 32),
    ]
    assert all(s.mean_norm == pytest.approx(1) and 1 < s.effective_rank <= 32 for s in geometry.modalities)
    assert {(d.a, d.b) for d in geometry.pairs} == {("image", "audio"), ("image", "text"), ("audio", "text")}
    assert all(d.alignment is not None and 0 < d.alignment < 2 for d in geometry.pairs)
    assert len(geometry.hubness) == 6
    sampled = describe_geometry(space, result.items, sample_size=10)
    assert [s.num_items for s in sampled.modalities] == [10, 10, 10]
    assert sampled == describe_geometry(space, result.items, sample_size=10)


def test_hubness_uses_the_scores_of_the_space(run_dir, synthetic_manifest):
    space = load(run_dir)
    items = evaluate(space, manifest.read(synthetic_manifest).rows[:30], show_progress=False, num_resamples=0).items
    hubs = {(h.query, h.gallery): h for h in describe_geometry(space, items).hubness}
    scores = space.scores(items["text"].features, items["image"].features)
    nearest = [sorted(range(30), key=lambda j: -row[j])[:10] for row in scores.tolist()]
    assert hubs["text", "image"].top_hub_rate == max(sum(j in row for row in nearest) for j in range(30)) / 60


def test_one_item_has_no_modality_geometry(run_dir):
    from triptych.evaluation.items import EvalItem, EvalItems
    from triptych.interfaces import Source

    one = EvalItems("text", [EvalItem(Source("text", "x"), "g", "r", None)], random_features(1, 32), torch.tensor([0]))
    assert describe_geometry(load(run_dir), {"text": one}).modalities == []
