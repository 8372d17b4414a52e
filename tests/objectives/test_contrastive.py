"""The contrastive loss with sampled negatives against naive loops and against the theory of its minimisers."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import triptych.objectives.contrastive as module
from tests.objectives.test_objectives import pair_of, permute, total_loss
from tests.similarities.test_similarities import random_features
from triptych.errors import InputError, RecipeError
from triptych.interfaces import Features, Pair, Similarity
from triptych.objectives.contrastive import Contrastive, contrastive_loss, sample_negatives


def random_tensor(*shape, seed=0, scale=2.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def project_to_sphere(x):
    return x / x.norm(dim=-1, keepdim=True)


def project_to_ball(x):
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1)


def free(x):
    return x


def loss_of(x, y, negatives, temperature=0.5):
    """x (N, D) with its positive y (N, D) and its negatives (N, M, D)."""
    return contrastive_loss((x * y).sum(1) / temperature, torch.einsum("nd,nmd->nm", x, negatives) / temperature)


def naive_loss(positive, negative):
    losses = []
    for p, others in zip(positive, negative, strict=True):
        losses.append(-math.log(math.exp(p) / (math.exp(p) + sum(math.exp(x) for x in others))))
    return sum(losses) / len(losses)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(0, 6), st.integers(0, 99))
def test_loss_matches_naive_loop(n, m, seed):
    positive, negative = random_tensor(n, seed=seed), random_tensor(n, m, seed=seed + 100)
    expected = naive_loss(positive.tolist(), negative.tolist())
    assert contrastive_loss(positive, negative).item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_gradients_match_finite_differences():
    assert torch.autograd.gradcheck(
        contrastive_loss, (random_tensor(4).requires_grad_(), random_tensor(4, 3, seed=1).requires_grad_())
    )


@pytest.mark.parametrize("num_negatives", [1, 3, 50])
def test_sampled_negatives_are_distinct_and_not_positives(num_negatives):
    group = torch.tensor([0, 1, 1, 2, 0, 3, 3, 3])
    columns, is_real = sample_negatives(group[:, None] != group, num_negatives)
    for i in range(8):
        sampled = columns[i][is_real[i]].tolist()
        negatives = {j for j in range(8) if group[j] != group[i]}
        assert len(sampled) == len(set(sampled)) == min(num_negatives, len(negatives))
        assert set(sampled) <= negatives


def test_random_number_zero_selects_a_negative():
    """torch.rand returns exactly 0 once in 2^24 numbers; such an item is still a negative."""
    negative_mask = torch.ones(1, 1024, dtype=torch.bool)
    torch.manual_seed(11993)
    assert (torch.rand(negative_mask.shape) == 0).any()
    torch.manual_seed(11993)
    columns, is_real = sample_negatives(negative_mask, 1024)
    assert columns[is_real].sort().values.tolist() == list(range(1024))


def test_negatives_are_sampled_uniformly():
    negative_mask = ~torch.eye(5, dtype=torch.bool).repeat(2000, 1)
    columns, _ = sample_negatives(negative_mask, 2)
    counts = torch.bincount(columns[::5].flatten(), minlength=5)
    assert counts[0] == 0
    assert counts[1:].tolist() == pytest.approx([1000] * 4, rel=0.12)


@pytest.mark.parametrize("anchor", ["a", "b"])
@pytest.mark.parametrize("stream_block", [0, 2, 100])
def test_objective_with_all_negatives_matches_naive_loop(anchor, stream_block):
    group = torch.tensor([0, 1, 1, 2, 0])
    pair = pair_of(random_features(5, seed=1), random_features(5, seed=2), group)
    logits = pair.scores() / 0.3 if anchor == "a" else pair.scores().T / 0.3
    negative = [[logits[i, j].item() for j in range(5) if group[i] != group[j]] for i in range(5)]
    terms = Contrastive(num_negatives=9, temperature=0.3, anchor=anchor, stream_block=stream_block).double().terms(pair)
    assert list(terms) == ["a_to_b" if anchor == "a" else "b_to_a"]
    assert terms.popitem()[1].item() == pytest.approx(naive_loss(logits.diagonal().tolist(), negative), rel=1e-6)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9),
    st.integers(1, 5),
    st.integers(1, 11),
    st.sampled_from(["a", "b"]),
    st.integers(0, 99),
)
def test_result_depends_on_seed_and_not_on_block(group, negatives, block, anchor, seed):
    n = len(group)
    a, b = random_features(n, seed=seed), random_features(n, seed=seed + 100)
    x, y = a.embedding.requires_grad_(), b.embedding.requires_grad_()
    pair = pair_of(Features(x, a.parts, a.mask), Features(y, b.parts, b.mask), torch.tensor(group))
    results = []
    for size in (0, block):
        objective = Contrastive(negatives, learn_temperature=True, anchor=anchor, stream_block=size).double()
        torch.manual_seed(seed)
        value = total_loss(objective, pair)
        results.append([value, *torch.autograd.grad(value, (x, y, objective.log_scale))])
    for dense, streamed in zip(*results, strict=True):
        assert dense.isfinite().all()
        assert torch.allclose(dense, streamed, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("stream_block", [0, 3])
def test_mean_over_seeds_equals_mean_over_all_negatives(stream_block):
    """With one negative, the mean over samples is the mean over all negatives."""
    pair = pair_of(random_features(6, seed=1), random_features(6, seed=2))
    logits = pair.scores() / 0.5
    each = [
        contrastive_loss(logits[i, i][None], logits[i, j][None, None]) for i in range(6) for j in range(6) if i != j
    ]
    objective = Contrastive(num_negatives=1, temperature=0.5, stream_block=stream_block).double()
    torch.manual_seed(0)
    losses = torch.stack([total_loss(objective, pair) for _ in range(400)])
    assert losses.std() > 0.01
    assert losses.mean().item() == pytest.approx(torch.stack(each).mean().item(), rel=0.03)


@pytest.mark.parametrize("max_numbers", [1, 6, 13, 40, 1000])
def test_random_numbers_in_memory_are_bounded(max_numbers, monkeypatch):
    """Every row is sampled once, in as few blocks as the limit allows; one row may exceed the limit."""
    sampled, sample = [], module.sample_negatives
    monkeypatch.setattr(module, "MAX_RANDOM_NUMBERS", max_numbers)
    monkeypatch.setattr(module, "sample_negatives", lambda mask, m: sampled.append(len(mask)) or sample(mask, m))
    total_loss(Contrastive(num_negatives=2).double(), pair_of(random_features(6, seed=1), random_features(6, seed=2)))
    rows_per_block = max_numbers // 6 if max_numbers >= 6 else 1
    assert sum(sampled) == 6
    assert len(sampled) == math.ceil(6 / rows_per_block)
    assert max(sampled) <= rows_per_block


def test_temperature_is_learned_only_on_request():
    pair = pair_of(random_features(6, seed=1), random_features(6, seed=2))
    for objective in (Contrastive(), Contrastive(learn_temperature=False)):
        assert [p for p in objective.parameters() if p.requires_grad] == []
    learned = Contrastive(learn_temperature=True).double()
    (gradient,) = torch.autograd.grad(total_loss(learned, pair), list(learned.parameters()))
    assert gradient != 0


def test_learned_temperature_stays_in_its_range():
    objective = Contrastive(learn_temperature=True)
    for log_scale, temperature in ((100.0, 0.01), (-100.0, 1.0)):
        objective.log_scale.data.fill_(log_scale)
        objective.after_step()
        assert math.exp(-objective.log_scale.item()) == pytest.approx(temperature)


def test_invariant_to_order_and_true_pairs_cost_less():
    objective = Contrastive().double()
    a, b, order = random_features(8, seed=1), random_features(8, seed=2), torch.randperm(8)
    permuted_loss = total_loss(objective, pair_of(permute(a, order), permute(b, order)))
    assert permuted_loss.item() == pytest.approx(total_loss(objective, pair_of(a, b)).item(), rel=1e-10)
    assert total_loss(objective, pair_of(a, a)) < total_loss(objective, pair_of(a, permute(a, torch.arange(8).roll(1))))


@pytest.mark.parametrize("stream_block", [0, 2])
def test_half_precision_is_close_to_float32(stream_block):
    a, b = random_features(10, 32, seed=1, dtype=torch.float32), random_features(10, 32, seed=2, dtype=torch.float32)
    objective = Contrastive(stream_block=stream_block)
    exact = total_loss(objective, pair_of(a, b))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = total_loss(objective, pair_of(a, b))
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=3e-2)


def test_a_single_pair_and_extreme_scores():
    single = random_features(1)
    assert total_loss(Contrastive().double(), pair_of(single, single)).item() == 0
    assert contrastive_loss(torch.tensor([1e4]), torch.tensor([[-1e4]])).item() == 0
    assert contrastive_loss(torch.tensor([-1e4]), torch.tensor([[1e4]])).item() == 2e4
    assert contrastive_loss(torch.zeros(3), torch.zeros(3, 7)).item() == pytest.approx(math.log(8))


def separating_loss(space, scale, temperature=0.5, n=6, m=4):
    """The loss of a separating encoder (x = y, orthogonal negatives), scaled by a factor."""
    basis = torch.eye(n, dtype=torch.float64) * 2 * scale
    others = torch.stack([basis[(torch.arange(1, m + 1) + i) % n] for i in range(n)])
    return loss_of(space(basis), space(basis), space(others), temperature).item()


def test_loss_has_no_minimum_without_normalisation():
    """Scaling a separating encoder always lowers the loss: there is no minimiser."""
    costs = [separating_loss(free, scale) for scale in (1, 2, 3, 4)]
    assert all(later < sooner / 100 for sooner, later in pairwise(costs))
    assert separating_loss(free, 9) < 1e-30


@pytest.mark.parametrize("space", [project_to_sphere, project_to_ball])
@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_loss_is_bounded_below_on_sphere_and_ball(space, temperature):
    """Scores are within ±1, so the loss is at least log(1 + M e^(-2/τ))."""
    m = 4
    bound = math.log1p(m * math.exp(-2 / temperature))
    costs = [separating_loss(space, scale, temperature, m=m) for scale in (1, 10, 1000)]
    assert min(costs) >= bound
    assert costs == pytest.approx([costs[0]] * 3, rel=1e-12)  # scaling changes nothing
    x = F.normalize(random_tensor(6, 3), dim=1)
    best = loss_of(space(50 * x), space(50 * x), space(-50 * x[:, None].expand(6, m, 3)), temperature)
    assert best.item() == pytest.approx(bound, rel=1e-6)


def test_without_negatives_collapse_is_optimal():
    """Without negatives, collapse to a point is optimal."""
    x, y = project_to_sphere(random_tensor(40, 3, seed=1)), project_to_sphere(random_tensor(40, 3, seed=2))
    point = project_to_sphere(torch.ones(40, 3, dtype=torch.float64))

    def attraction(x, y):
        return -(x * y).sum(1).mean() / 0.5

    assert attraction(point, point).item() == pytest.approx(-2.0)
    assert attraction(point, point) < attraction(x, y)
    parameter = x.clone().requires_grad_()
    assert (
        torch.autograd.grad(attraction(project_to_sphere(parameter), point), parameter)[0].norm() > 0
    )  # collapses to the point
    others = torch.stack([x.roll(-i, 0) for i in range(1, 17)], dim=1)
    collapsed = loss_of(point, point, point[:, None].expand(40, 16, 3))
    assert collapsed.item() == pytest.approx(math.log(17))
    assert loss_of(x, x, others) < collapsed


def test_training_spreads_collapsed_points():
    """Starting near collapse, the loss spreads the embeddings."""
    x = (torch.ones(12, 3) + 0.05 * torch.randn(12, 3, generator=torch.Generator().manual_seed(0))).requires_grad_()
    objective, optimizer = Contrastive(num_negatives=11, temperature=0.5), torch.optim.Adam([x], lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        points = Features(x, x[:, None].detach(), torch.ones(12, 1, dtype=torch.bool))
        total_loss(objective, pair_of(points, points)).backward()
        optimizer.step()
    cosine = F.normalize(x.detach(), dim=1) @ F.normalize(x.detach(), dim=1).T
    assert cosine.mean() < 0.1


class InexactSimilarity(Similarity):
    """A similarity whose scores are not dot products."""

    is_exact = False

    def forward(self, a, b):
        return -torch.cdist(a.embedding, b.embedding)

    def query(self, a):
        return a.embedding

    def keys(self, b):
        return b.embedding


def test_invalid_inputs_raise():
    invalid_settings: list[dict[str, Any]] = [
        {"temperature": -1.0},
        {"num_negatives": 0},
        {"anchor": "c"},
        {"stream_block": -1},
    ]
    for invalid in invalid_settings:
        with pytest.raises(RecipeError, match=next(iter(invalid))):
            Contrastive(**invalid)
    with pytest.raises(InputError, match=r"positive \(3,\), negative \(2, 4\)"):
        contrastive_loss(torch.zeros(3), torch.zeros(2, 4))
    a = random_features(4)
    pair = Pair(a, a, torch.arange(4), InexactSimilarity())
    assert total_loss(Contrastive().double(), pair).isfinite()
    with pytest.raises(InputError, match="InexactSimilarity is not exact"):
        Contrastive(stream_block=2).double().terms(pair)
