"""The contrastive loss with drawn negatives, against loops; and what the theory says of its minimisers."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objectives.test_objectives import pair_of, permuted, total
from tests.similarities.test_similarities import features
from triptych.contracts import Features, Pair, Similarity
from triptych.errors import InputError, RecipeError
from triptych.objectives.contrastive import Contrastive, contrastive, draw_negatives


def made(*shape, seed=0, scale=2.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def sphere(x):
    return x / x.norm(dim=-1, keepdim=True)


def ball(x):
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1)


def free(x):
    return x


def loss_of(x, y, negatives, temperature=0.5):
    """x (N, D) against its partner y (N, D) and its negatives (N, M, D)."""
    return contrastive((x * y).sum(1) / temperature, torch.einsum("nd,nmd->nm", x, negatives) / temperature)


def naive(positive, negative):
    losses = []
    for p, others in zip(positive, negative, strict=True):
        losses.append(-math.log(math.exp(p) / (math.exp(p) + sum(math.exp(x) for x in others))))
    return sum(losses) / len(losses)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(0, 6), st.integers(0, 99))
def test_contrastive_follows_its_formula(n, m, seed):
    positive, negative = made(n, seed=seed), made(n, m, seed=seed + 100)
    expected = naive(positive.tolist(), negative.tolist())
    assert contrastive(positive, negative).item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_gradients_are_right():
    assert torch.autograd.gradcheck(contrastive, (made(4).requires_grad_(), made(4, 3, seed=1).requires_grad_()))


@pytest.mark.parametrize("number", [1, 3, 50])
def test_negatives_are_wrong_and_never_the_same_twice(number):
    group = torch.tensor([0, 1, 1, 2, 0, 3, 3, 3])
    columns, real = draw_negatives(group[:, None] != group, number)
    for i in range(8):
        drawn = columns[i][real[i]].tolist()
        wrong = {j for j in range(8) if group[j] != group[i]}
        assert len(drawn) == len(set(drawn)) == min(number, len(wrong))
        assert set(drawn) <= wrong


def test_every_wrong_item_is_drawn_equally_often():
    wrong = ~torch.eye(5, dtype=torch.bool).repeat(2000, 1)
    columns, _ = draw_negatives(wrong, 2)
    seen = torch.bincount(columns[::5].flatten(), minlength=5)
    assert seen[0] == 0
    assert seen[1:].tolist() == pytest.approx([1000] * 4, rel=0.12)


@pytest.mark.parametrize("anchor", ["a", "b"])
@pytest.mark.parametrize("block", [0, 2, 100])
def test_with_all_negatives_the_objective_is_the_formula(anchor, block):
    group = torch.tensor([0, 1, 1, 2, 0])
    pair = pair_of(features(5, seed=1), features(5, seed=2), group)
    logits = pair.scores() / 0.3 if anchor == "a" else pair.scores().T / 0.3
    negative = [[logits[i, j].item() for j in range(5) if group[i] != group[j]] for i in range(5)]
    terms = Contrastive(negatives=9, temperature=0.3, anchor=anchor, block=block).double()(pair)
    assert list(terms) == ["a_to_b" if anchor == "a" else "b_to_a"]
    assert terms.popitem()[1].item() == pytest.approx(naive(logits.diagonal().tolist(), negative), rel=1e-6)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9),
    st.integers(1, 5),
    st.integers(1, 11),
    st.sampled_from(["a", "b"]),
    st.integers(0, 99),
)
def test_the_seed_decides_and_the_block_does_not(group, negatives, block, anchor, seed):
    n = len(group)
    a, b = features(n, seed=seed), features(n, seed=seed + 100)
    x, y = a.embedding.requires_grad_(), b.embedding.requires_grad_()
    pair = pair_of(Features(x, a.parts, a.mask), Features(y, b.parts, b.mask), torch.tensor(group))
    found = []
    for size in (0, block):
        objective = Contrastive(negatives, learn_temperature=True, anchor=anchor, block=size).double()
        torch.manual_seed(seed)
        value = total(objective, pair)
        found.append([value, *torch.autograd.grad(value, (x, y, objective.log_scale))])
    for one, two in zip(*found, strict=True):
        assert one.isfinite().all()
        assert torch.allclose(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("block", [0, 3])
def test_other_seeds_draw_others_and_their_mean_is_what_is_meant(block):
    """With one negative each, the mean over draws is the mean over all wrong items."""
    pair = pair_of(features(6, seed=1), features(6, seed=2))
    logits = pair.scores() / 0.5
    each = [contrastive(logits[i, i][None], logits[i, j][None, None]) for i in range(6) for j in range(6) if i != j]
    objective = Contrastive(negatives=1, temperature=0.5, block=block).double()
    torch.manual_seed(0)
    drawn = torch.stack([total(objective, pair) for _ in range(400)])
    assert drawn.std() > 0.01
    assert drawn.mean().item() == pytest.approx(torch.stack(each).mean().item(), rel=0.03)


def test_order_changes_nothing_and_truth_beats_shuffled():
    objective = Contrastive().double()
    a, b, order = features(8, seed=1), features(8, seed=2), torch.randperm(8)
    turned = total(objective, pair_of(permuted(a, order), permuted(b, order)))
    assert turned.item() == pytest.approx(total(objective, pair_of(a, b)).item(), rel=1e-10)
    assert total(objective, pair_of(a, a)) < total(objective, pair_of(a, permuted(a, torch.arange(8).roll(1))))


@pytest.mark.parametrize("block", [0, 2])
def test_half_precision_is_close_to_float32(block):
    a, b = features(10, 32, seed=1, dtype=torch.float32), features(10, 32, seed=2, dtype=torch.float32)
    objective = Contrastive(block=block)
    exact = total(objective, pair_of(a, b))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = total(objective, pair_of(a, b))
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=3e-2)


def test_a_single_pair_and_extreme_scores():
    one = features(1)
    assert total(Contrastive().double(), pair_of(one, one)).item() == 0
    assert contrastive(torch.tensor([1e4]), torch.tensor([[-1e4]])).item() == 0
    assert contrastive(torch.tensor([-1e4]), torch.tensor([[1e4]])).item() == 2e4
    assert contrastive(torch.zeros(3), torch.zeros(3, 7)).item() == pytest.approx(math.log(8))


def cost_of_separating(space, scale, temperature=0.5, n=6, m=4):
    """The loss of an encoder that tells all pairs apart (x = y, every negative at a right angle), made longer."""
    basis = torch.eye(n, dtype=torch.float64) * 2 * scale
    others = torch.stack([basis[(torch.arange(1, m + 1) + i) % n] for i in range(n)])
    return loss_of(space(basis), space(basis), space(others), temperature).item()


def test_in_free_space_longer_vectors_always_cost_less():
    """A separating encoder, made longer and longer, has no lowest loss: there is no minimiser."""
    costs = [cost_of_separating(free, scale) for scale in (1, 2, 3, 4)]
    assert all(later < sooner / 100 for sooner, later in pairwise(costs))
    assert cost_of_separating(free, 9) < 1e-30


@pytest.mark.parametrize("space", [sphere, ball])
@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_on_sphere_and_ball_the_loss_is_bounded_below(space, temperature):
    """Scores are within ±1 there: no encoder does better than log(1 + M e^(-2/τ))."""
    m = 4
    bound = math.log1p(m * math.exp(-2 / temperature))
    costs = [cost_of_separating(space, scale, temperature, m=m) for scale in (1, 10, 1000)]
    assert min(costs) >= bound
    assert costs == pytest.approx([costs[0]] * 3, rel=1e-12)  # longer changes nothing any more
    x = F.normalize(made(6, 3), dim=1)
    best = loss_of(space(50 * x), space(50 * x), space(-50 * x[:, None].expand(6, m, 3)), temperature)
    assert best.item() == pytest.approx(bound, rel=1e-6)


def test_without_negatives_a_collapsed_space_is_best():
    """Only e^(x·y/τ) counts then, and all in one point has the most of it; the negatives are what forbids that."""
    x, y = sphere(made(40, 3, seed=1)), sphere(made(40, 3, seed=2))
    point = sphere(torch.ones(40, 3, dtype=torch.float64))

    def attraction(x, y):
        return -(x * y).sum(1).mean() / 0.5

    assert attraction(point, point).item() == pytest.approx(-2.0)
    assert attraction(point, point) < attraction(x, y)
    parameter = x.clone().requires_grad_()
    assert torch.autograd.grad(attraction(sphere(parameter), point), parameter)[0].norm() > 0  # pulled to the point
    others = torch.stack([x.roll(-i, 0) for i in range(1, 17)], dim=1)
    collapsed = loss_of(point, point, point[:, None].expand(40, 16, 3))
    assert collapsed.item() == pytest.approx(math.log(17))
    assert loss_of(x, x, others) < collapsed


def test_training_spreads_points_that_negatives_push():
    """From nearly one point, the loss alone opens the space; without negatives nothing would."""
    x = (torch.ones(12, 3) + 0.05 * torch.randn(12, 3, generator=torch.Generator().manual_seed(0))).requires_grad_()
    objective, step = Contrastive(negatives=11, temperature=0.5), torch.optim.Adam([x], lr=0.05)
    for _ in range(150):
        step.zero_grad()
        whole = Features(x, x[:, None].detach(), torch.ones(12, 1, dtype=torch.bool))
        total(objective, pair_of(whole, whole)).backward()
        step.step()
    cosine = F.normalize(x.detach(), dim=1) @ F.normalize(x.detach(), dim=1).T
    assert cosine.mean() < 0.1


class Inexact(Similarity):
    """Scores that are no product of vectors."""

    exact = False

    def forward(self, a, b):
        return -torch.cdist(a.embedding, b.embedding)

    def query(self, a):
        return a.embedding

    def keys(self, b):
        return b.embedding


def test_what_makes_no_sense_is_named():
    wrongs: list[dict[str, Any]] = [{"temperature": -1.0}, {"negatives": 0}, {"anchor": "c"}, {"block": -1}]
    for wrong in wrongs:
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            Contrastive(**wrong)
    with pytest.raises(InputError, match=r"positive \(3,\), negative \(2, 4\)"):
        contrastive(torch.zeros(3), torch.zeros(2, 4))
    a = features(4)
    pair = Pair(a, a, torch.arange(4), Inexact())
    assert total(Contrastive().double(), pair).isfinite()
    with pytest.raises(InputError, match="Inexact is not exact"):
        Contrastive(block=2).double()(pair)
