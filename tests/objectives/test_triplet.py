"""Triplets: every choice of negatives, shape and direction against loops, and where anchors have nothing to learn."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objectives.test_objectives import pair_of, permuted, total
from tests.similarities.test_similarities import features
from triptych.contracts import Features, Pair, Similarity
from triptych.errors import InputError, RecipeError
from triptych.objectives.triplet import Triplet, draw, mine, triplet

CHOSEN = ("semi_hard", "hardest", "all")
EVERY = [*itertools.product(CHOSEN, ("hinge", "polynomial"), ("mean", "sum"))]
quick = settings(deadline=None, max_examples=40)


class Inexact(Similarity):
    """The same scores as cosine, without the promise that they are dot products."""

    exact = False

    def forward(self, a, b):
        return self.query(a) @ self.keys(b).T

    def query(self, a):
        return torch.nn.functional.normalize(a.embedding, dim=1)

    def keys(self, b):
        return self.query(b)


def shaped(p, n, margin, shape):
    if shape == "hinge":
        return max(0.0, margin + n - p)
    if n + margin <= p or p >= 1 - 1e-5:
        return 0.0
    return max(0.0, 0.2 * p * p - 0.7 * p + 0.5) + max(0.0, 0.9 * n * n - 0.4 * n + 0.03)


def naive(scores, match, margin, negatives, shape, reduction):
    losses = []
    for i in range(len(scores)):
        p = scores[i][i]
        wrong = [scores[i][j] for j in range(len(scores)) if not match[i][j]]
        if negatives == "semi_hard":
            wrong = [n for n in wrong if n < p]
        if negatives != "all":
            wrong = sorted(wrong)[-1:]
        losses.append(sum(shaped(p, n, margin, shape) for n in wrong))
    return sum(losses) / (len(losses) if reduction == "mean" else 1)


def random_scores(n, seed, dtype=torch.float64):
    return torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 2 - 1


def by_group(group):
    group = torch.as_tensor(group)
    return group[:, None] == group


@pytest.mark.parametrize(("negatives", "shape", "reduction"), EVERY)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=7), st.floats(0, 2), st.booleans(), st.integers(0, 99))
@quick
def test_it_follows_its_formula(negatives, shape, reduction, group, margin, coarse, seed):
    scores, match = random_scores(len(group), seed), by_group(group)
    if coarse:  # many ties
        scores = (scores * 2).round() / 2
    found = triplet(scores, match, margin, negatives, shape, reduction)
    assert found.item() == pytest.approx(naive(scores.tolist(), match.tolist(), margin, negatives, shape, reduction))


@pytest.mark.parametrize("directions", ["both", "a", "b"])
@pytest.mark.parametrize(("negatives", "shape", "reduction"), EVERY)
def test_the_objective_is_the_function_on_rows_and_columns(negatives, shape, reduction, directions):
    a, b, group = features(9, seed=1), features(9, seed=2), torch.tensor([0, 1, 1, 2, 3, 3, 3, 4, 5])
    exact = pair_of(a, b, group)
    terms = Triplet(0.3, negatives, directions, reduction, shape)(exact)
    scores, match = exact.scores(), exact.match
    expected = {
        "a_to_b": naive(scores.tolist(), match.tolist(), 0.3, negatives, shape, reduction),
        "b_to_a": naive(scores.T.tolist(), match.T.tolist(), 0.3, negatives, shape, reduction),
    }
    wanted = {"both": ["a_to_b", "b_to_a"], "a": ["a_to_b"], "b": ["b_to_a"]}[directions]
    assert {name: term.item() for name, term in terms.items()} == pytest.approx({n: expected[n] for n in wanted})


@pytest.mark.parametrize("negatives", ["semi_hard", "hardest"])
def test_the_short_way_gives_the_gradients_of_the_long_way(negatives):
    n = 300  # more than one block of rows
    group = torch.arange(n) // 2
    results = []
    for similarity in (None, Inexact()):
        a, b = features(n, seed=1), features(n, seed=2)
        embeddings = a.embedding.requires_grad_(), b.embedding.requires_grad_()
        pair = pair_of(a, b, group)
        pair = pair if similarity is None else Pair(a, b, pair.group, similarity)
        loss = total(Triplet(negatives=negatives), pair)
        results.append((loss, *torch.autograd.grad(loss, embeddings)))
    for short, long in zip(*results, strict=True):
        assert torch.allclose(short, long, atol=1e-13)
        assert long.abs().max() > 0


@pytest.mark.parametrize("shape", ["hinge", "polynomial"])
@pytest.mark.parametrize("negatives", CHOSEN)
def test_gradients_are_right(negatives, shape):
    scores, match = random_scores(6, 3).requires_grad_(), by_group([0, 1, 1, 2, 3, 4])
    assert torch.autograd.gradcheck(lambda s: triplet(s, match, 0.3, negatives, shape), (scores,))


def test_other_right_answers_are_never_negatives_and_have_no_gradient():
    match = by_group([0, 0, 1, 1])
    scores = torch.tensor([[0.5, 9, 0.4, 0.1], [9, 0.5, 0, 0], [0, 0, 0.5, 9], [0, 0.2, 9, 0.5]], requires_grad=True)
    for negatives in CHOSEN:
        (gradient,) = torch.autograd.grad(triplet(scores, match, 0.2, negatives), scores)
        others = match & ~torch.eye(4, dtype=torch.bool)
        assert (gradient[others] == 0).all()
    assert triplet(scores, match, 0.2, "hardest").item() == pytest.approx(0.1 / 4)


@pytest.mark.parametrize("negatives", [*CHOSEN, "random"])
@pytest.mark.parametrize("group", [[0], [1, 1, 1]])
def test_anchors_without_negatives_count_nothing(negatives, group):
    a, b = features(len(group), seed=1), features(len(group), seed=2)
    a.embedding.requires_grad_()
    for pair in (pair_of(a, b, torch.tensor(group)), Pair(a, b, torch.tensor(group), Inexact())):
        loss = total(Triplet(negatives=negatives), pair)
        (gradient,) = torch.autograd.grad(loss, a.embedding)
        assert loss.item() == 0
        assert (gradient == 0).all()


def test_semi_hard_leaves_alone_an_anchor_whose_partner_is_worst():
    scores = torch.tensor([[-0.9, 0.1, 0.5], [0.1, 0.6, 0.5], [-0.8, -0.9, -0.5]])
    match = torch.eye(3, dtype=torch.bool)
    assert mine(scores, match, semi_hard=True).tolist() == [-1, 2, 0]
    assert mine(scores, match, semi_hard=False).tolist() == [2, 2, 0]
    assert triplet(scores, match, 1.0, "semi_hard", reduction="sum").item() == pytest.approx(0.9 + 0.7)


@pytest.mark.parametrize(("negatives", "each"), [("semi_hard", 0.0), ("hardest", 0.2), ("all", 0.6)])
@pytest.mark.parametrize("level", [0.0, 1.0, -1e30, 1e30, 1e-30])
def test_all_equal_scores(negatives, each, level):
    scores = torch.full((4, 4), level, dtype=torch.float64)
    at_scale = 0.0 if abs(level) > 1 else each  # a margin of 0.2 is lost in the digits of 1e30
    assert triplet(scores, torch.eye(4, dtype=torch.bool), 0.2, negatives).item() == pytest.approx(at_scale)


@pytest.mark.parametrize("negatives", CHOSEN)
@given(st.integers(0, 99))
@quick
def test_order_changes_nothing_and_a_shift_of_all_scores_neither(negatives, seed):
    group = torch.tensor([0, 1, 1, 2, 3, 4, 4])
    a, b, order = features(7, seed=seed), features(7, seed=seed + 1), torch.randperm(7)
    objective = Triplet(negatives=negatives)
    moved = pair_of(permuted(a, order), permuted(b, order), group[order])
    assert total(objective, pair_of(a, b, group)).item() == pytest.approx(total(objective, moved).item())
    scores, match = random_scores(7, seed), by_group(group)
    assert triplet(scores, match, 0.2, negatives).item() == pytest.approx(
        triplet(scores + 5, match, 0.2, negatives).item()
    )


@pytest.mark.parametrize("negatives", [*CHOSEN, "random"])
def test_truth_costs_less_than_shuffled(negatives):
    torch.manual_seed(0)
    a = features(32, width=16)
    objective = Triplet(negatives=negatives)
    shuffled = pair_of(a, permuted(a, torch.arange(32).roll(1)))
    assert total(objective, pair_of(a, a)) < 0.5 * total(objective, shuffled)


def test_random_impostors_are_wrong_answers_drawn_evenly():
    torch.manual_seed(0)
    match = by_group([0, 0, 0, 0, 1, 2])
    counts = torch.zeros(6, 6)
    for _ in range(2000):
        counts[torch.arange(6), draw(match)] += 1
    assert (counts[match] == 0).all()
    share = counts / 2000 * (~match).sum(dim=1, keepdim=True)
    assert share[~match] == pytest.approx(torch.ones(int((~match).sum())).numpy(), abs=0.15)
    assert draw(torch.ones(3, 3, dtype=torch.bool)).tolist() == [-1, -1, -1]


def test_random_is_the_function_with_the_impostors_that_were_drawn():
    a, b = features(12, seed=1), features(12, seed=2)
    pair = pair_of(a, b, torch.arange(12) // 2)
    torch.manual_seed(7)
    terms = Triplet(negatives="random")(pair)
    torch.manual_seed(7)
    rows, columns = draw(pair.match), draw(pair.match.T)
    scores = pair.scores()
    naive_rows = sum(max(0.0, 0.2 + float(scores[i, j] - scores[i, i])) for i, j in enumerate(rows.tolist())) / 12
    assert terms["a_to_b"].item() == pytest.approx(naive_rows)
    assert terms["a_to_b"].item() == pytest.approx(triplet(scores, pair.match, impostors=rows).item())
    assert terms["b_to_a"].item() == pytest.approx(triplet(scores.T, pair.match.T, impostors=columns).item())


@pytest.mark.parametrize("negatives", CHOSEN)
def test_half_precision_is_close(negatives):
    a, b = features(40, width=32, seed=1, dtype=torch.float32), features(40, width=32, seed=2, dtype=torch.float32)
    near = Features(a.embedding + 0.3 * b.embedding, a.parts, a.mask)
    objective = Triplet(negatives=negatives)
    full = total(objective, pair_of(a, near))

    def half(f):
        return Features(f.embedding.bfloat16(), f.parts, f.mask)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        automatic = total(objective, pair_of(a, near))
    for found in (automatic, total(objective, pair_of(half(a), half(near)))):
        assert found.dtype == torch.float32
        assert found.item() == pytest.approx(full.item(), rel=0.05, abs=0.02)


def test_wrong_settings_are_named():
    for wrong in ({"margin": -1.0}, {"margin": float("nan")}, {"negatives": "hard"}, {"directions": "c"}):
        (key,) = wrong
        with pytest.raises(RecipeError, match=key):
            Triplet(**wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RecipeError, match="known: mean, sum"):
        Triplet(reduction="none")  # pyright: ignore[reportArgumentType]
    with pytest.raises(RecipeError, match="hinge, polynomial"):
        Triplet(shape="cubic")  # pyright: ignore[reportArgumentType]


def test_wrong_tensors_are_named():
    match = torch.eye(3, dtype=torch.bool)
    scores = torch.zeros(3, 3)
    with pytest.raises(InputError, match=r"scores is \(3, 4\)"):
        triplet(torch.zeros(3, 4), match)
    with pytest.raises(InputError, match="True on the diagonal"):
        triplet(scores, ~match)
    with pytest.raises(InputError, match=r"match is \(2, 2\)"):
        triplet(scores, match[:2, :2])
    for bad in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(InputError, match="finite"):
            triplet(scores.index_fill(1, torch.tensor([1]), bad), match)
    with pytest.raises(InputError, match=r"\[-1, 1\]"):
        triplet(scores + 2, match, shape="polynomial")
    with pytest.raises(InputError, match="row 1 has 1, which is a right answer"):
        triplet(scores, match, impostors=torch.tensor([1, 1, 0]))
    with pytest.raises(InputError, match="from -1 to 2"):
        triplet(scores, match, impostors=torch.tensor([1, 3, 0]))
