"""The forms of the matching loss against naive loops, and their behaviour on mismatched pairs."""

import math
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.similarities.test_similarities import random_features
from tests.transport.naive import naive_log_plan, naive_partial_plan, uniform_weights
from triptych.errors import InputError, RecipeError
from triptych.interfaces import Features, Pair
from triptych.objectives.matching import (
    Matching,
    MatchingForm,
    matching_loss,
    select_best_pairs,
    streamed_matching_loss,
    target_plan,
)
from triptych.similarities.cosine import Cosine

FORMS: tuple[MatchingForm, ...] = get_args(MatchingForm)


def pair_of(a, b, group=None):
    group = torch.arange(len(a.embedding)) if group is None else torch.tensor(group)
    return Pair(a, b, group, Cosine())


def matching_value(objective, pair):
    return objective.terms(pair)["matching"]


def permute(items, order):
    return Features(items.embedding[order], items.parts[order], items.mask[order])


def naive_target(group, pair_weights):
    """Spread w_i / N of row i over its group, in proportion to the weights w of its members."""
    n = len(group)
    target = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        group_weight = sum(pair_weights[k] for k in range(n) if group[k] == group[i])
        for j in range(n):
            if group[i] == group[j] and group_weight > 0:
                target[i, j] = pair_weights[i] * pair_weights[j] / group_weight / n
    return target


def naive_pair_weights(scores, mass):
    """Fill pairs in descending order of score until the mass is used up."""
    remaining, pair_weights = mass * len(scores), [0.0] * len(scores)
    for i in sorted(range(len(scores)), key=lambda i: -scores[i][i]):
        pair_weights[i] = min(1.0, max(0.0, remaining))
        remaining -= pair_weights[i]
    return pair_weights


def kl_divergence(target, plan):
    return sum(
        target[i, j].item() * math.log(target[i, j].item() / plan[i, j].item())
        for i in range(len(plan))
        for j in range(len(plan))
        if target[i, j] > 0
    )


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.floats(0.2, 1.0), st.integers(0, 99))
def test_balanced_loss_is_kl_of_converged_plan(group, epsilon, seed):
    n = len(group)
    pair = pair_of(random_features(n, seed=seed), random_features(n, seed=seed + 100), group)
    plan = naive_log_plan(-pair.scores(), epsilon, uniform_weights(n), uniform_weights(n), 400).exp()
    expected = kl_divergence(naive_target(group, [1.0] * n), plan)
    objective = Matching(epsilon=epsilon)
    assert matching_value(objective, pair).item() == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert objective.last_solve["error"] <= 1e-9


def test_one_positive_per_row_is_log_of_diagonal():
    pair = pair_of(random_features(6, seed=1), random_features(6, seed=2))
    loss, plan = matching_loss(pair.scores(), pair.positive_mask, 0.1)
    assert loss.item() == pytest.approx(-sum(math.log(plan.plan[i, i]) for i in range(6)) / 6 - math.log(6))


@pytest.mark.parametrize("group", [[0, 1, 2, 3, 4], [0, 1, 1, 2, 0]])
@pytest.mark.parametrize("mass", [0.5, 0.9])
@pytest.mark.parametrize("form", FORMS)
def test_partial_forms_match_naive_loop(form, mass, group):
    pair = pair_of(random_features(5, seed=3), random_features(5, seed=4), group)
    cost, epsilon = -pair.scores(), 0.3
    plan = naive_partial_plan(cost, epsilon, uniform_weights(5), uniform_weights(5), mass, 400)
    if form == "kl_unnormalised":
        expected = kl_divergence(naive_target(group, [1.0] * 5), plan / mass)
    else:
        pair_weights = naive_pair_weights((-cost).tolist(), mass) if form == "trimmed" else [mass] * 5
        target = naive_target(group, pair_weights)

        def energy(p):
            return (p * cost).sum().item() + epsilon * torch.special.xlogy(p, p).sum().item()

        expected = (energy(target) - energy(plan)) / epsilon
    loss = matching_value(Matching(epsilon=epsilon, mass=mass, form=form), pair)
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.floats(0.05, 1.0), st.integers(0, 99))
def test_target_plan_meets_constraints(group, mass, seed):
    labels = torch.tensor(group)
    pair_scores = torch.randn(len(group), generator=torch.Generator().manual_seed(seed))
    pair_weights = select_best_pairs(pair_scores, mass)
    target = target_plan(labels[:, None] == labels, pair_weights)
    assert pair_weights.sum().item() == pytest.approx(mass * len(group))
    assert ((pair_weights > 0) & (pair_weights < 1)).sum() <= 1
    assert pair_weights[pair_scores.argmax()] == pair_weights.max()
    assert torch.allclose(target.sum(0), pair_weights / len(group))
    assert torch.allclose(target.sum(1), pair_weights / len(group))
    assert torch.allclose(target, naive_target(group, pair_weights.tolist()))


@pytest.mark.parametrize("mass", [1.0, 0.8])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_match_finite_differences(form, mass):
    a, b = random_features(5, seed=1), random_features(5, seed=2)

    def loss(x, y):
        pair = pair_of(Features(x, a.parts, a.mask), Features(y, b.parts, b.mask), [0, 1, 1, 2, 3])
        return matching_value(Matching(epsilon=0.2, mass=mass, form=form), pair)

    inputs = (a.embedding.requires_grad_(), b.embedding.requires_grad_())
    assert torch.autograd.gradcheck(loss, inputs, eps=1e-4, atol=2e-4, rtol=1e-3, fast_mode=True)


@pytest.mark.parametrize("mass", [1.0, 0.8])
@pytest.mark.parametrize("form", FORMS)
def test_invariants_of_every_form(form, mass):
    objective = Matching(mass=mass, form=form)
    a, b, order = random_features(8, seed=1), random_features(8, seed=2), torch.randperm(8)
    loss = matching_value(objective, pair_of(a, b))
    assert loss >= 0
    assert torch.isclose(loss, matching_value(objective, pair_of(permute(a, order), permute(b, order))), rtol=1e-6)
    longer = Features(a.embedding * 100, a.parts, a.mask)  # the cosine ignores the norm
    assert torch.isclose(loss, matching_value(objective, pair_of(longer, b)), rtol=1e-6)
    shuffled = permute(a, torch.arange(8).roll(1))
    assert matching_value(objective, pair_of(a, a)) < 0.2 < matching_value(objective, pair_of(a, shuffled))
    shifted, _ = matching_loss(pair_of(a, b).scores() + 7, torch.eye(8, dtype=torch.bool), 0.05, mass, form)
    assert torch.isclose(loss, shifted, rtol=1e-6)


@pytest.mark.parametrize("mass", [1.0, 0.6])
@pytest.mark.parametrize("form", FORMS)
def test_edge_cases(form, mass):
    objective = Matching(mass=mass, form=form)
    assert abs(matching_value(objective, pair_of(random_features(1, seed=1), random_features(1, seed=2))).item()) < 1e-9
    identical = Features(torch.ones(4, 6), torch.ones(4, 3, 6), torch.ones(4, 3, dtype=torch.bool))
    assert matching_value(objective, pair_of(identical, identical)).isfinite()
    loss = matching_value(Matching(), pair_of(identical, identical, [0, 0, 0, 0]))  # every entry is a positive
    assert abs(loss.item()) < 1e-6
    for scale in (1e-6, 300.0):  # scores far below and far above epsilon
        scores = (scale * torch.randn(12, 12, generator=torch.Generator().manual_seed(0))).requires_grad_()
        loss, _ = matching_loss(scores, torch.eye(12, dtype=torch.bool), 0.05, mass, form)
        (gradient,) = torch.autograd.grad(loss, scores)
        assert loss.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("mass", [1.0, 0.8])
@pytest.mark.parametrize("form", FORMS)
def test_half_precision_scores(form, mass):
    scores = torch.randn(16, 16, generator=torch.Generator().manual_seed(1)) / 4 + torch.eye(16) / 2
    positive_mask = torch.eye(16, dtype=torch.bool)
    half = scores.bfloat16().requires_grad_()
    loss, _ = matching_loss(half, positive_mask, 0.1, mass, form)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(matching_loss(scores, positive_mask, 0.1, mass, form)[0].item(), rel=0.03)
    assert half.grad is not None
    assert half.grad.isfinite().all()


def train_on_swapped_pairs(mass, form, seed):
    """Train a linear map per side with 40% mismatched pairs; return the AUC of correct pairs, and recall@1."""
    generator = torch.Generator().manual_seed(seed)
    n, width = 160, 24
    latent = torch.randn(n, 12, generator=generator)
    x, y = (
        latent @ torch.randn(12, width, generator=generator) / 3 + 0.1 * torch.randn(n, width, generator=generator)
        for _ in range(2)
    )
    wrong = torch.randperm(n, generator=generator)[: int(0.4 * n)]
    y[wrong] = y[wrong.roll(1)]
    maps = [(0.2 * torch.randn(width, 16, generator=generator)).requires_grad_() for _ in range(2)]
    optimizer = torch.optim.Adam(maps, lr=0.02)

    def scores(rows):
        return F.normalize(x[rows] @ maps[0], dim=1) @ F.normalize(y[rows] @ maps[1], dim=1).T

    for _ in range(60):
        rows = torch.randperm(n, generator=generator)[:40]
        loss, _ = matching_loss(scores(rows), torch.eye(40, dtype=torch.bool), 0.1, mass, form)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    is_right = torch.ones(n, dtype=torch.bool)
    is_right[wrong] = False
    pair_scores = scores(torch.arange(n)).diagonal()
    separated = (pair_scores[is_right][:, None] > pair_scores[wrong]).double().mean().item()
    right_scores = scores(is_right.nonzero()[:, 0])
    return separated, (right_scores.argmax(dim=1) == torch.arange(len(right_scores))).double().mean().item()


def test_trimmed_separates_mismatched_pairs():
    balanced, recall = train_on_swapped_pairs(1.0, "trimmed", seed=0)
    trimmed, better_recall = train_on_swapped_pairs(0.6, "trimmed", seed=0)
    assert 1 - trimmed < (1 - balanced) / 2, (balanced, trimmed)
    assert better_recall > recall + 0.03, (recall, better_recall)


def test_trimmed_pair_has_no_gradient():
    scores = torch.full((4, 4), -1.0, dtype=torch.float64).fill_diagonal_(1.0)
    scores[3, 3] = -1.0  # the mismatched pair
    scores.requires_grad_()
    gradients = {}
    for form in FORMS:
        loss, _ = matching_loss(scores, torch.eye(4, dtype=torch.bool), 0.2, 0.75, form)
        gradients[form] = -torch.autograd.grad(loss, scores)[0][3, 3].item()  # up to 1/N/epsilon = 1.25
    assert gradients["trimmed"] < 0.01 < gradients["target"] < gradients["kl_unnormalised"]


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({"epsilon": 0.0}, "matching: epsilon = 0.0"),
        ({"epsilon": math.nan}, "matching: epsilon = nan"),
        ({"mass": 1.5}, "matching: mass = 1.5"),
        ({"mass": 0.0}, "matching: mass = 0.0"),
        ({"form": "trimed"}, "matching: form 'trimed' is unknown; .* did you mean 'trimmed'"),
    ],
)
def test_invalid_settings_raise(invalid, message):
    with pytest.raises(RecipeError, match=message):
        Matching(**invalid)


def test_invalid_tensors_raise():
    with pytest.raises(InputError, match=r"scores \(2, 3\)"):
        matching_loss(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), 0.1)
    chain = torch.tensor([[True, True, False], [True, True, True], [False, True, True]])
    with pytest.raises(InputError, match="positive_mask does not consist of groups"):
        matching_loss(torch.zeros(3, 3), chain, 0.1)
    with pytest.raises(InputError, match="NaN"):
        matching_loss(torch.full((2, 2), math.nan), torch.eye(2, dtype=torch.bool), 0.1)
    with pytest.raises(InputError, match="form 'x' is unknown"):
        matching_loss(torch.zeros(2, 2), torch.eye(2, dtype=torch.bool), 0.1, 0.5, "x")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("form", ["trimmed", "target"])
@pytest.mark.parametrize("mass", [1.0, 0.7])
@pytest.mark.parametrize("block", [3, 64])
def test_streamed_equals_dense(block, mass, form):
    a, b = random_features(11, seed=1), random_features(11, seed=2)
    group = [0, 1, 2, 2, 3, 4, 4, 4, 5, 6, 7]
    results = []
    for size in (0, block):
        x, y = (side.embedding.clone().requires_grad_() for side in (a, b))
        pair = pair_of(Features(x, a.parts, a.mask), Features(y, b.parts, b.mask), group)
        objective = Matching(epsilon=0.05, mass=mass, form=form, stream_block=size)
        loss = matching_value(objective, pair)
        results.append((loss.item(), *torch.autograd.grad(3 * loss, (x, y))))
        assert objective.last_solve["error"] <= 1e-9
        assert ("positive_mask" in vars(pair)) == (size == 0)
    (dense, *dense_gradients), (streamed, *streamed_gradients) = results
    assert streamed == pytest.approx(dense, rel=1e-7)
    for dense_gradient, streamed_gradient in zip(dense_gradients, streamed_gradients, strict=True):
        assert torch.allclose(dense_gradient, streamed_gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_streamed_on_a_well_aligned_batch_in_float32():
    torch.manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(600, 16), dim=1)
    y = torch.nn.functional.normalize(x + 0.1 * torch.randn(600, 16), dim=1)
    positive_mask, results = torch.eye(600, dtype=torch.bool), []
    for is_streamed in (False, True):
        q, k = x.clone().requires_grad_(), y.clone().requires_grad_()
        if is_streamed:
            loss, solve_info = streamed_matching_loss(q, k, torch.arange(600), 0.03, block_size=256)
        else:
            loss, solve_info = matching_loss(q @ k.T, positive_mask, 0.03)
        assert solve_info.error <= 1e-9
        results.append((loss.item(), torch.autograd.grad(loss, (q, k))))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-5)
    for dense_gradient, streamed_gradient in zip(results[0][1], results[1][1], strict=True):
        assert (dense_gradient - streamed_gradient).abs().max() <= 1e-5 * dense_gradient.abs().max()


def test_unsupported_streaming_raises():
    with pytest.raises(RecipeError, match="stream_block = 8 does not support the partial form 'kl_unnormalised'"):
        Matching(mass=0.5, form="kl_unnormalised", stream_block=8)
    with pytest.raises(RecipeError, match="stream_block = -1"):
        Matching(stream_block=-1)
    good = torch.ones(3, 2)
    for query, keys, block, message in [
        (torch.ones(3, 4), good, 2, r"query \(3, 4\), keys \(3, 2\)"),
        (good, torch.full((3, 2), math.nan), 2, "keys contains NaN"),
        (good, torch.ones(4, 2), 2, "query has 3 rows and keys has 4"),
        (good, good, 0, "block_size = 0"),
    ]:
        with pytest.raises(InputError, match=message):
            streamed_matching_loss(query, keys, torch.arange(3), 0.1, block_size=block)
