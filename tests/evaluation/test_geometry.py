"""The shape of a space: every number against loops in float64, its limits, and what must not change it."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.similarities.test_similarities import features
from triptych.checkpoint import load
from triptych.data import manifest
from triptych.evaluation.evaluate import evaluate
from triptych.evaluation.geometry import alignment, describe, effective_rank, gap, hubness, uniformity

SEEDS = st.integers(0, 999)


def cloud(items, width=4, seed=0):
    return torch.randn(items, width, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def unit(vector):
    length = math.sqrt(sum(v * v for v in vector))
    return [v / length for v in vector]


def squared(x, y):
    return sum((a - b) ** 2 for a, b in zip(x, y, strict=True))


groups = st.lists(st.integers(0, 4), min_size=1, max_size=8)


@given(groups, groups, SEEDS)
def test_alignment_is_the_mean_over_right_pairs(ours, theirs, seed):
    a, b = cloud(len(ours), seed=seed), cloud(len(theirs), seed=seed + 1)
    found = alignment(a, b, torch.tensor(ours), torch.tensor(theirs))
    each = [
        squared(unit(a[i].tolist()), unit(b[j].tolist()))
        for i, j in product(range(len(ours)), range(len(theirs)))
        if ours[i] == theirs[j]
    ]
    assert found is None if not each else found == pytest.approx(sum(each) / len(each))


@given(st.integers(2, 9), SEEDS)
def test_uniformity_is_the_log_mean_over_pairs(items, seed):
    x = cloud(items, seed=seed)
    rows = [unit(row) for row in x.tolist()]
    each = [math.exp(-2 * squared(rows[i], rows[j])) for i in range(items) for j in range(i)]
    assert uniformity(x) == pytest.approx(math.log(sum(each) / len(each)))


def test_uniformity_of_one_point_and_of_a_wide_sphere():
    assert uniformity(torch.ones(5, 3, dtype=torch.double)) == pytest.approx(0)
    assert uniformity(cloud(500, 300)) == pytest.approx(-4, abs=0.05)


@given(st.integers(1, 6), st.integers(2, 6), SEEDS, st.floats(0.01, 100))
def test_the_gap_follows_its_definition_and_the_relative_one_has_no_scale(n, m, seed, scale):
    a, b = cloud(n, seed=seed), cloud(m, seed=seed + 1) + 0.5
    raw, relative = gap(a, b)
    middles = [[sum(row[d] for row in side) / len(side) for d in range(4)] for side in (a.tolist(), b.tolist())]
    distance = math.sqrt(squared(*middles))
    spread = [
        sum(squared(row, middle) for row in side.tolist()) / len(side)
        for side, middle in zip((a, b), middles, strict=True)
    ]
    assert raw == pytest.approx(distance)
    assert relative == pytest.approx(distance / math.sqrt(sum(spread) / 2))
    assert gap(scale * a, scale * b) == pytest.approx((scale * raw, relative))
    assert gap(a, a)[1] == pytest.approx(0, abs=1e-7)


def test_two_points_apart_have_an_endless_relative_gap():
    assert gap(torch.zeros(3, 2), torch.ones(3, 2)) == (pytest.approx(math.sqrt(2)), math.inf)


@settings(deadline=None)
@given(st.integers(1, 5), SEEDS, st.floats(0.1, 10))
def test_effective_rank_counts_equal_directions_and_has_no_scale(rank, seed, scale):
    axes = torch.linalg.qr(cloud(6, 6, seed)).Q[:rank]
    x = torch.cat([axes, -axes])  # centred, every direction equally long
    assert effective_rank(scale * x) == pytest.approx(rank)
    y = cloud(8, 5, seed)
    values = [math.sqrt(max(v, 0)) for v in torch.linalg.eigvalsh((y - y.mean(0)).T @ (y - y.mean(0))).tolist()]
    shares = [v / sum(values) for v in values]
    assert effective_rank(y) == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares if p > 0)))
    assert effective_rank(torch.ones(4, 3)) == 0


@given(st.integers(1, 8), st.integers(1, 3), st.integers(4, 9), SEEDS)
def test_hubness_counts_how_often_items_are_found(queries, k, items, seed):
    generator = torch.Generator().manual_seed(seed)
    nearest = torch.stack([torch.randperm(items, generator=generator)[:k] for _ in range(queries)])
    count = [sum(item in row for row in nearest.tolist()) for item in range(items)]
    mean = sum(count) / items
    spread = math.sqrt(sum((c - mean) ** 2 for c in count) / items)
    expected = sum((c - mean) ** 3 for c in count) / items / spread**3 if spread else 0
    assert hubness(nearest, items) == pytest.approx((expected, max(count) / queries, count.count(0) / items))


def test_one_hub_is_seen():
    everyone_finds_item_0 = torch.stack([torch.zeros(50, dtype=torch.long), torch.arange(1, 51)], dim=1)
    skewness, most, never = hubness(everyone_finds_item_0, 60)
    assert skewness > 5
    assert (most, never) == (1, pytest.approx(9 / 60))


def test_a_space_is_described_with_every_pair_and_direction(run, world):
    space = load(run)
    result = evaluate(space, manifest.read(world).rows[:30], show=False, draws=0)
    shape = describe(space, result.items)
    assert [(s.modality, s.items, s.width) for s in shape.shapes] == [
        ("image", 30, 32),
        ("audio", 30, 32),
        ("text", 60, 32),
    ]
    assert all(s.length == pytest.approx(1) and 1 < s.effective_rank <= 32 for s in shape.shapes)
    assert {(d.a, d.b) for d in shape.distances} == {("image", "audio"), ("image", "text"), ("audio", "text")}
    assert all(d.alignment is not None and 0 < d.alignment < 2 for d in shape.distances)
    assert len(shape.hubs) == 6
    few = describe(space, result.items, sample=10)
    assert [s.items for s in few.shapes] == [10, 10, 10]
    assert few == describe(space, result.items, sample=10)


def test_hubs_are_those_of_the_spaces_own_scores(run, world):
    space = load(run)
    items = evaluate(space, manifest.read(world).rows[:30], show=False, draws=0).items
    hubs = {(h.query, h.gallery): h for h in describe(space, items).hubs}
    scores = space.scores(items["text"].features, "text", items["image"].features, "image")
    nearest = [sorted(range(30), key=lambda j: -row[j])[:10] for row in scores.tolist()]
    assert hubs["text", "image"].most == max(sum(j in row for row in nearest) for j in range(30)) / 60


def test_features_of_one_item_have_no_shape_but_no_error_either(run):
    from triptych.contracts import Source
    from triptych.evaluation.items import Item, Items

    one = Items("text", [Item(Source("text", "x"), "g", "r", None)], features(1, 32), torch.tensor([0]))
    assert describe(load(run), {"text": one}).shapes == []
