"""Matching: its three forms against loops, and what they do with wrong pairs."""

import math
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.similarities.test_similarities import features
from tests.test_transport import naive_log_plan, naive_partial_plan, uniform
from triptych.contracts import Features, Pair
from triptych.errors import InputError, RecipeError
from triptych.objectives.matching import (
    Form,
    Matching,
    best_fitting,
    matching,
    right_plan,
    streamed_matching,
    wrong_share,
)
from triptych.similarities.cosine import Cosine
from triptych.space import alone

FORMS: tuple[Form, ...] = get_args(Form)


def pair_of(a, b, group=None):
    group = torch.arange(len(a.embedding)) if group is None else torch.tensor(group)
    return Pair(a, b, group, Cosine())


def value(objective, pair):
    return objective(pair)["matching"]


def permuted(given, order):
    return Features(given.embedding[order], given.parts[order], given.mask[order])


def naive_target(group, kept):
    """Row i spreads kept_i / N over its group, in proportion to what each member is kept."""
    n = len(group)
    target = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        together = sum(kept[k] for k in range(n) if group[k] == group[i])
        for j in range(n):
            if group[i] == group[j] and together > 0:
                target[i, j] = kept[i] * kept[j] / together / n
    return target


def naive_kept(scores, mass):
    """One pair after the other, the best first, until the mass is spent."""
    left, kept = mass * len(scores), [0.0] * len(scores)
    for i in sorted(range(len(scores)), key=lambda i: -scores[i][i]):
        kept[i] = min(1.0, max(0.0, left))
        left -= kept[i]
    return kept


def divergence(target, plan):
    return sum(
        target[i, j].item() * math.log(target[i, j].item() / plan[i, j].item())
        for i in range(len(plan))
        for j in range(len(plan))
        if target[i, j] > 0
    )


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.floats(0.2, 1.0), st.integers(0, 99))
def test_balanced_is_the_divergence_of_the_converged_plan(group, epsilon, seed):
    n = len(group)
    pair = pair_of(features(n, seed=seed), features(n, seed=seed + 100), group)
    plan = naive_log_plan(-pair.scores(), epsilon, uniform(n), uniform(n), 400).exp()
    expected = divergence(naive_target(group, [1.0] * n), plan)
    objective = Matching(epsilon=epsilon)
    assert value(objective, pair).item() == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert objective.last["error"] <= 1e-9


def test_one_right_answer_each_is_the_log_of_the_diagonal():
    pair = pair_of(features(6, seed=1), features(6, seed=2))
    loss, found = matching(pair.scores(), pair.match, 0.1)
    assert loss.item() == pytest.approx(-sum(math.log(found.plan[i, i]) for i in range(6)) / 6 - math.log(6))


@pytest.mark.parametrize("group", [[0, 1, 2, 3, 4], [0, 1, 1, 2, 0]])
@pytest.mark.parametrize("mass", [0.5, 0.9])
@pytest.mark.parametrize("form", FORMS)
def test_partial_follows_its_formula(form, mass, group):
    pair = pair_of(features(5, seed=3), features(5, seed=4), group)
    cost, epsilon = -pair.scores(), 0.3
    plan = naive_partial_plan(cost, epsilon, uniform(5), uniform(5), mass, 400)
    if form == "paper":
        expected = divergence(naive_target(group, [1.0] * 5), plan / mass)
    else:
        kept = naive_kept((-cost).tolist(), mass) if form == "trimmed" else [mass] * 5
        target = naive_target(group, kept)

        def energy(p):
            return (p * cost).sum().item() + epsilon * torch.special.xlogy(p, p).sum().item()

        expected = (energy(target) - energy(plan)) / epsilon
    found = value(Matching(epsilon=epsilon, mass=mass, form=form), pair)
    assert found.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.floats(0.05, 1.0), st.integers(0, 99))
def test_the_right_plan_meets_the_constraints(group, mass, seed):
    labels = torch.tensor(group)
    fit = torch.randn(len(group), generator=torch.Generator().manual_seed(seed))
    kept = best_fitting(fit, mass)
    target = right_plan(labels[:, None] == labels, kept)
    assert kept.sum().item() == pytest.approx(mass * len(group))
    assert ((kept > 0) & (kept < 1)).sum() <= 1
    assert kept[fit.argmax()] == kept.max()
    assert torch.allclose(target.sum(0), kept / len(group))
    assert torch.allclose(target.sum(1), kept / len(group))
    assert torch.allclose(target, naive_target(group, kept.tolist()))


@pytest.mark.parametrize("mass", [1.0, 0.8])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_right(form, mass):
    a, b = features(5, seed=1), features(5, seed=2)

    def loss(x, y):
        pair = pair_of(Features(x, a.parts, a.mask), Features(y, b.parts, b.mask), [0, 1, 1, 2, 3])
        return value(Matching(epsilon=0.2, mass=mass, form=form), pair)

    inputs = (a.embedding.requires_grad_(), b.embedding.requires_grad_())
    assert torch.autograd.gradcheck(loss, inputs, eps=1e-4, atol=2e-4, rtol=1e-3, fast_mode=True)


@pytest.mark.parametrize("mass", [1.0, 0.8])
@pytest.mark.parametrize("form", FORMS)
def test_what_every_form_promises(form, mass):
    objective = Matching(mass=mass, form=form)
    a, b, order = features(8, seed=1), features(8, seed=2), torch.randperm(8)
    loss = value(objective, pair_of(a, b))
    assert loss >= 0
    assert torch.isclose(loss, value(objective, pair_of(permuted(a, order), permuted(b, order))), rtol=1e-6)
    longer = Features(a.embedding * 100, a.parts, a.mask)  # cosine: length is nothing
    assert torch.isclose(loss, value(objective, pair_of(longer, b)), rtol=1e-6)
    shuffled = permuted(a, torch.arange(8).roll(1))
    assert value(objective, pair_of(a, a)) < 0.2 < value(objective, pair_of(a, shuffled))
    shifted, _ = matching(pair_of(a, b).scores() + 7, torch.eye(8, dtype=torch.bool), 0.05, mass, form)
    assert torch.isclose(loss, shifted, rtol=1e-6)


@pytest.mark.parametrize("mass", [1.0, 0.6])
@pytest.mark.parametrize("form", FORMS)
def test_edges(form, mass):
    objective = Matching(mass=mass, form=form)
    assert abs(value(objective, pair_of(features(1, seed=1), features(1, seed=2))).item()) < 1e-9
    same = Features(torch.ones(4, 6), torch.ones(4, 3, 6), torch.ones(4, 3, dtype=torch.bool))
    assert value(objective, pair_of(same, same)).isfinite()
    assert (
        abs(value(Matching(), pair_of(same, same, [0, 0, 0, 0])).item()) < 1e-6
    )  # all right answers: nothing to learn
    for scale in (1e-6, 300.0):  # scores far below and far above epsilon
        scores = (scale * torch.randn(12, 12, generator=torch.Generator().manual_seed(0))).requires_grad_()
        loss, _ = matching(scores, torch.eye(12, dtype=torch.bool), 0.05, mass, form)
        (gradient,) = torch.autograd.grad(loss, scores)
        assert loss.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("mass", [1.0, 0.8])
@pytest.mark.parametrize("form", FORMS)
def test_half_precision_scores(form, mass):
    scores = torch.randn(16, 16, generator=torch.Generator().manual_seed(1)) / 4 + torch.eye(16) / 2
    match = torch.eye(16, dtype=torch.bool)
    half = scores.bfloat16().requires_grad_()
    loss, _ = matching(half, match, 0.1, mass, form)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(matching(scores, match, 0.1, mass, form)[0].item(), rel=0.03)
    assert half.grad is not None
    assert half.grad.isfinite().all()


def trained_on_swapped_pairs(mass, form, seed):
    """A linear map a side, 40 % of the pairs swapped; how often a right pair scores above a wrong one, and recall@1."""
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
        loss, _ = matching(scores(rows), torch.eye(40, dtype=torch.bool), 0.1, mass, form)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = torch.ones(n, dtype=torch.bool)
    right[wrong] = False
    fits = scores(torch.arange(n)).diagonal()
    separated = (fits[right][:, None] > fits[wrong]).double().mean().item()
    among = scores(right.nonzero()[:, 0])
    return separated, (among.argmax(dim=1) == torch.arange(len(among))).double().mean().item()


def test_trimmed_tells_wrong_pairs_from_right_ones():
    balanced, recall = trained_on_swapped_pairs(1.0, "trimmed", seed=0)
    trimmed, better_recall = trained_on_swapped_pairs(0.6, "trimmed", seed=0)
    assert 1 - trimmed < (1 - balanced) / 2, (balanced, trimmed)
    assert better_recall > recall + 0.03, (recall, better_recall)


def test_a_pair_that_was_trimmed_does_not_pull():
    scores = torch.full((4, 4), -1.0, dtype=torch.float64).fill_diagonal_(1.0)
    scores[3, 3] = -1.0  # the wrong pair
    scores.requires_grad_()
    pulls = {}
    for form in FORMS:
        loss, _ = matching(scores, torch.eye(4, dtype=torch.bool), 0.2, 0.75, form)
        pulls[form] = -torch.autograd.grad(loss, scores)[0][3, 3].item()  # up to 1/N/epsilon = 1.25
    assert pulls["trimmed"] < 0.01 < pulls["target"] < pulls["paper"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": 0.0}, "matching: epsilon = 0.0"),
        ({"epsilon": math.nan}, "matching: epsilon = nan"),
        ({"mass": 1.5}, "matching: mass = 1.5"),
        ({"mass": 0.0}, "matching: mass = 0.0"),
        ({"form": "trimed"}, "matching: form 'trimed' is unknown; .* did you mean 'trimmed'"),
    ],
)
def test_a_wrong_recipe_is_named(wrong, message):
    with pytest.raises(RecipeError, match=message):
        Matching(**wrong)


def test_wrong_tensors_are_named():
    with pytest.raises(InputError, match=r"scores are \(2, 3\)"):
        matching(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), 0.1)
    chain = torch.tensor([[True, True, False], [True, True, True], [False, True, True]])
    with pytest.raises(InputError, match="match is not made of groups"):
        matching(torch.zeros(3, 3), chain, 0.1)
    with pytest.raises(InputError, match="NaN"):
        matching(torch.full((2, 2), math.nan), torch.eye(2, dtype=torch.bool), 0.1)
    with pytest.raises(InputError, match="form 'x' is unknown"):
        matching(torch.zeros(2, 2), torch.eye(2, dtype=torch.bool), 0.1, 0.5, "x")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("form", ["trimmed", "target"])
@pytest.mark.parametrize("mass", [1.0, 0.7])
@pytest.mark.parametrize("block", [3, 64])
def test_streamed_is_the_same_loss_with_the_same_gradients(block, mass, form):
    a, b = features(11, seed=1), features(11, seed=2)
    group = [0, 1, 2, 2, 3, 4, 4, 4, 5, 6, 7]
    found = []
    for size in (0, block):
        x, y = (side.embedding.clone().requires_grad_() for side in (a, b))
        pair = pair_of(Features(x, a.parts, a.mask), Features(y, b.parts, b.mask), group)
        objective = Matching(epsilon=0.05, mass=mass, form=form, block=size)
        loss = value(objective, pair)
        found.append((loss.item(), *torch.autograd.grad(3 * loss, (x, y))))
        assert objective.last["error"] <= 1e-9
        assert ("match" in vars(pair)) == (size == 0)
    (dense, *dense_gradients), (streamed, *streamed_gradients) = found
    assert streamed == pytest.approx(dense, rel=1e-7)
    for one, other in zip(dense_gradients, streamed_gradients, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_streamed_on_a_well_aligned_batch_in_float32():
    torch.manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(600, 16), dim=1)
    y = torch.nn.functional.normalize(x + 0.1 * torch.randn(600, 16), dim=1)
    own, found = torch.eye(600, dtype=torch.bool), []
    for streamed in (False, True):
        q, k = x.clone().requires_grad_(), y.clone().requires_grad_()
        if streamed:
            loss, solved = streamed_matching(q, k, torch.arange(600), 0.03, block=256)
        else:
            loss, solved = matching(q @ k.T, own, 0.03)
        assert solved.error <= 1e-9
        found.append((loss.item(), torch.autograd.grad(loss, (q, k))))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-5)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert (one - other).abs().max() <= 1e-5 * one.abs().max()


def test_what_cannot_be_streamed_says_why():
    with pytest.raises(RecipeError, match="block = 8 does not stream the partial form 'paper'"):
        Matching(mass=0.5, form="paper", block=8)
    with pytest.raises(RecipeError, match="block = -1"):
        Matching(block=-1)
    good = torch.ones(3, 2)
    for query, keys, block, message in [
        (torch.ones(3, 4), good, 2, r"query \(3, 4\), keys \(3, 2\)"),
        (good, torch.full((3, 2), math.nan), 2, "keys holds NaN"),
        (good, torch.ones(4, 2), 2, "query has 3 rows and keys has 4"),
        (good, good, 0, "block = 0"),
    ]:
        with pytest.raises(InputError, match=message):
            streamed_matching(query, keys, torch.arange(3), 0.1, block=block)


def naive_wrong_share(scores, group):
    """Twice the share of pairs that more than half of the others beat, over both directions."""
    n, above = len(scores), 0
    for side in (scores, scores.T.contiguous()):
        for i in range(n):
            others = [j for j in range(n) if group[j] != group[i]]
            beaten = sum(1.0 if side[i, j] > side[i, i] else 0.5 if side[i, j] == side[i, i] else 0.0 for j in others)
            above += beaten / max(1, len(others)) > 0.5
    return min(1.0, 2 * above / (2 * n))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(0, 99), st.booleans())
def test_the_share_of_wrong_pairs_by_a_loop(group, seed, ties):
    scores = torch.randn(len(group), len(group), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scores = scores.round() if ties else scores
    labels = torch.tensor(group)
    found = wrong_share(scores, labels[:, None] == labels)
    assert found.item() == pytest.approx(naive_wrong_share(scores, group), abs=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.6])
def test_planted_wrong_pairs_are_counted(share):
    generator = torch.Generator().manual_seed(3)
    n, found = 400, []
    for _ in range(8):
        a = torch.nn.functional.normalize(torch.randn(n, 32, generator=generator), dim=1)
        b = a + 0.15 * torch.randn(n, 32, generator=generator)
        wrong = torch.randperm(n, generator=generator)[: round(share * n)]
        b[wrong] = b[wrong.roll(1)]
        found.append(wrong_share(a @ b.T, torch.eye(n, dtype=torch.bool)).item())
    assert sum(found) / 8 == pytest.approx(share, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.4, 0.6])
def test_the_share_is_estimated_while_it_is_learned_what_right_pairs_look_like(share):
    """The scores say nothing at first, and wrong pairs could be learned by heart: ten looks at 1,500 pairs."""
    generator = torch.Generator().manual_seed(5)
    n, width, batch = 1500, 24, 250
    things = torch.randn(n, width, generator=generator)
    a = things @ torch.randn(width, 64, generator=generator)
    b = (things + 0.3 * torch.randn(n, width, generator=generator)) @ torch.randn(width, 64, generator=generator)
    wrong = torch.randperm(n, generator=generator)[: round(share * n)]
    b[wrong] = b[wrong.roll(1)]
    torch.manual_seed(0)
    left, right = torch.nn.Linear(64, 32, bias=False), torch.nn.Linear(64, 32, bias=False)
    objective = Matching(epsilon=0.1, mass="estimate", memory=10)
    optimizer = torch.optim.AdamW([*left.parameters(), *right.parameters()], lr=1e-2)
    for _ in range(10):
        for rows in torch.randperm(n, generator=generator).split(batch):
            sides = (F.normalize(side, dim=1) for side in (left(a[rows]), right(b[rows])))
            optimizer.zero_grad()
            value(objective, pair_of(*map(alone, sides))).backward()
            optimizer.step()
    assert 1 - objective.state()["mass"] == pytest.approx(share, abs=0.05)


def test_the_mass_is_estimated_over_batches_and_saved_with_the_objective():
    objective = Matching(epsilon=0.1, mass="estimate", memory=10)
    a, b = features(40, seed=1), features(40, seed=1)
    pair = pair_of(a, b)
    value(objective, pair)
    assert objective.state()["mass"] == 1.0, "every pair is right, and it begins at 1"
    shuffled = pair_of(a, permuted(b, torch.arange(40).roll(1)))
    expected = 0.0
    for _ in range(5):
        value(objective, shuffled)
        expected += (wrong_share(shuffled.scores(), shuffled.match).item() - expected) / 10
    assert objective.state()["mass"] == pytest.approx(1 - expected)
    assert expected > 0.3
    again = Matching(epsilon=0.1, mass="estimate", memory=10)
    again.load_state_dict(objective.state_dict())
    again.eval()
    value(again, pair)
    assert again.state()["mass"] == pytest.approx(1 - expected), "measuring must not change it"
    with pytest.raises(RecipeError, match="block = 4 does not estimate the mass"):
        Matching(mass="estimate", block=4)
    with pytest.raises(RecipeError, match="memory = 0"):
        Matching(mass="estimate", memory=0)
