"""Triplet losses for all settings against naive loops, and anchors without negatives."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objectives.test_objectives import pair_of, permute, total_loss
from tests.similarities.test_similarities import random_features
from triptych.errors import InputError, RecipeError
from triptych.interfaces import Features, Pair, Similarity
from triptych.objectives.triplet import Triplet, mine_negatives, sample_negatives, triplet_loss

MINING = ("semi_hard", "hardest", "all")
COMBINATIONS = [*itertools.product(MINING, ("hinge", "polynomial"), ("mean", "sum"))]
quick = settings(deadline=None, max_examples=40)


class InexactSimilarity(Similarity):
    """Cosine scores, marked as not being dot products."""

    is_exact = False

    def forward(self, a, b):
        return self.query(a) @ self.keys(b).T

    def query(self, a):
        return torch.nn.functional.normalize(a.embedding, dim=1)

    def keys(self, b):
        return self.query(b)


def naive_triplet(p, n, margin, loss):
    if loss == "hinge":
        return max(0.0, margin + n - p)
    if n + margin <= p or p >= 1 - 1e-5:
        return 0.0
    return max(0.0, 0.2 * p * p - 0.7 * p + 0.5) + max(0.0, 0.9 * n * n - 0.4 * n + 0.03)


def naive_loss(scores, positive_mask, margin, negatives, loss, reduction):
    losses = []
    for i in range(len(scores)):
        p = scores[i][i]
        negative_scores = [scores[i][j] for j in range(len(scores)) if not positive_mask[i][j]]
        if negatives == "semi_hard":
            negative_scores = [n for n in negative_scores if n < p]
        if negatives != "all":
            negative_scores = sorted(negative_scores)[-1:]
        losses.append(sum(naive_triplet(p, n, margin, loss) for n in negative_scores))
    return sum(losses) / (len(losses) if reduction == "mean" else 1)


def random_scores(n, seed, dtype=torch.float64):
    return torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 2 - 1


def group_mask(group):
    group = torch.as_tensor(group)
    return group[:, None] == group


@pytest.mark.parametrize(("negatives", "loss", "reduction"), COMBINATIONS)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=7), st.floats(0, 2), st.booleans(), st.integers(0, 99))
@quick
def test_loss_matches_naive_loop(negatives, loss, reduction, group, margin, has_ties, seed):
    scores, positive_mask = random_scores(len(group), seed), group_mask(group)
    if has_ties:  # many ties
        scores = (scores * 2).round() / 2
    value = triplet_loss(scores, positive_mask, margin, negatives, loss, reduction)
    assert value.item() == pytest.approx(
        naive_loss(scores.tolist(), positive_mask.tolist(), margin, negatives, loss, reduction)
    )


@pytest.mark.parametrize("directions", ["both", "a", "b"])
@pytest.mark.parametrize(("negatives", "loss", "reduction"), COMBINATIONS)
def test_objective_matches_naive_loop_in_both_directions(negatives, loss, reduction, directions):
    a, b, group = random_features(9, seed=1), random_features(9, seed=2), torch.tensor([0, 1, 1, 2, 3, 3, 3, 4, 5])
    exact = pair_of(a, b, group)
    terms = Triplet(0.3, negatives, directions, reduction, loss).terms(exact)
    scores, positive_mask = exact.scores(), exact.positive_mask
    expected = {
        "a_to_b": naive_loss(scores.tolist(), positive_mask.tolist(), 0.3, negatives, loss, reduction),
        "b_to_a": naive_loss(scores.T.tolist(), positive_mask.T.tolist(), 0.3, negatives, loss, reduction),
    }
    term_names = {"both": ["a_to_b", "b_to_a"], "a": ["a_to_b"], "b": ["b_to_a"]}[directions]
    assert {name: term.item() for name, term in terms.items()} == pytest.approx({n: expected[n] for n in term_names})


@pytest.mark.parametrize("negatives", ["semi_hard", "hardest"])
def test_vector_and_matrix_paths_have_equal_gradients(negatives):
    n = 300  # more than one block of rows
    group = torch.arange(n) // 2
    results = []
    for similarity in (None, InexactSimilarity()):
        a, b = random_features(n, seed=1), random_features(n, seed=2)
        embeddings = a.embedding.requires_grad_(), b.embedding.requires_grad_()
        pair = pair_of(a, b, group)
        pair = pair if similarity is None else Pair(a, b, pair.group, similarity)
        loss = total_loss(Triplet(negatives=negatives), pair)
        results.append((loss, *torch.autograd.grad(loss, embeddings)))
    for from_vectors, from_matrix in zip(*results, strict=True):
        assert torch.allclose(from_vectors, from_matrix, atol=1e-13)
        assert from_matrix.abs().max() > 0


@pytest.mark.parametrize("loss", ["hinge", "polynomial"])
@pytest.mark.parametrize("negatives", MINING)
def test_gradients_match_finite_differences(negatives, loss):
    scores, positive_mask = random_scores(6, 3).requires_grad_(), group_mask([0, 1, 1, 2, 3, 4])
    assert torch.autograd.gradcheck(lambda s: triplet_loss(s, positive_mask, 0.3, negatives, loss), (scores,))


def test_other_positives_are_never_negatives():
    positive_mask = group_mask([0, 0, 1, 1])
    scores = torch.tensor([[0.5, 9, 0.4, 0.1], [9, 0.5, 0, 0], [0, 0, 0.5, 9], [0, 0.2, 9, 0.5]], requires_grad=True)
    for negatives in MINING:
        (gradient,) = torch.autograd.grad(triplet_loss(scores, positive_mask, 0.2, negatives), scores)
        others = positive_mask & ~torch.eye(4, dtype=torch.bool)
        assert (gradient[others] == 0).all()
    assert triplet_loss(scores, positive_mask, 0.2, "hardest").item() == pytest.approx(0.1 / 4)


@pytest.mark.parametrize("negatives", [*MINING, "random"])
@pytest.mark.parametrize("group", [[0], [1, 1, 1]])
def test_anchors_without_negatives_have_zero_loss(negatives, group):
    a, b = random_features(len(group), seed=1), random_features(len(group), seed=2)
    a.embedding.requires_grad_()
    for pair in (pair_of(a, b, torch.tensor(group)), Pair(a, b, torch.tensor(group), InexactSimilarity())):
        loss = total_loss(Triplet(negatives=negatives), pair)
        (gradient,) = torch.autograd.grad(loss, a.embedding)
        assert loss.item() == 0
        assert (gradient == 0).all()


def test_semi_hard_skips_anchor_with_lowest_positive():
    scores = torch.tensor([[-0.9, 0.1, 0.5], [0.1, 0.6, 0.5], [-0.8, -0.9, -0.5]])
    positive_mask = torch.eye(3, dtype=torch.bool)
    assert mine_negatives(scores, positive_mask, semi_hard=True).tolist() == [-1, 2, 0]
    assert mine_negatives(scores, positive_mask, semi_hard=False).tolist() == [2, 2, 0]
    assert triplet_loss(scores, positive_mask, 1.0, "semi_hard", reduction="sum").item() == pytest.approx(0.9 + 0.7)


@pytest.mark.parametrize(("negatives", "expected"), [("semi_hard", 0.0), ("hardest", 0.2), ("all", 0.6)])
@pytest.mark.parametrize("level", [0.0, 1.0, -1e30, 1e30, 1e-30])
def test_all_equal_scores(negatives, expected, level):
    scores = torch.full((4, 4), level, dtype=torch.float64)
    expected_at_level = 0.0 if abs(level) > 1 else expected  # 1e30 + 0.2 == 1e30
    assert triplet_loss(scores, torch.eye(4, dtype=torch.bool), 0.2, negatives).item() == pytest.approx(
        expected_at_level
    )


@pytest.mark.parametrize("negatives", MINING)
@given(st.integers(0, 99))
@quick
def test_invariant_to_order_and_score_shift(negatives, seed):
    group = torch.tensor([0, 1, 1, 2, 3, 4, 4])
    a, b, order = random_features(7, seed=seed), random_features(7, seed=seed + 1), torch.randperm(7)
    objective = Triplet(negatives=negatives)
    permuted_pair = pair_of(permute(a, order), permute(b, order), group[order])
    assert total_loss(objective, pair_of(a, b, group)).item() == pytest.approx(
        total_loss(objective, permuted_pair).item()
    )
    scores, positive_mask = random_scores(7, seed), group_mask(group)
    assert triplet_loss(scores, positive_mask, 0.2, negatives).item() == pytest.approx(
        triplet_loss(scores + 5, positive_mask, 0.2, negatives).item()
    )


@pytest.mark.parametrize("negatives", [*MINING, "random"])
def test_true_pairs_cost_less_than_shuffled(negatives):
    torch.manual_seed(0)
    a = random_features(32, dim=16)
    objective = Triplet(negatives=negatives)
    shuffled = pair_of(a, permute(a, torch.arange(32).roll(1)))
    assert total_loss(objective, pair_of(a, a)) < 0.5 * total_loss(objective, shuffled)


def test_random_negatives_are_sampled_uniformly():
    torch.manual_seed(0)
    positive_mask = group_mask([0, 0, 0, 0, 1, 2])
    counts = torch.zeros(6, 6)
    for _ in range(2000):
        counts[torch.arange(6), sample_negatives(positive_mask)] += 1
    assert (counts[positive_mask] == 0).all()
    relative_frequency = counts / 2000 * (~positive_mask).sum(dim=1, keepdim=True)
    assert relative_frequency[~positive_mask] == pytest.approx(
        torch.ones(int((~positive_mask).sum())).numpy(), abs=0.15
    )
    assert sample_negatives(torch.ones(3, 3, dtype=torch.bool)).tolist() == [-1, -1, -1]


def test_rows_with_and_without_negatives_are_sampled_together():
    positive_mask = torch.tensor([[True, True, True], [True, True, False], [False, False, True]])
    torch.manual_seed(0)
    draws = torch.stack([sample_negatives(positive_mask) for _ in range(50)])
    assert draws[:, 0].tolist() == [-1] * 50
    assert draws[:, 1].tolist() == [2] * 50
    assert set(draws[:, 2].tolist()) == {0, 1}


def test_random_mining_equals_loss_with_sampled_negatives():
    a, b = random_features(12, seed=1), random_features(12, seed=2)
    pair = pair_of(a, b, torch.arange(12) // 2)
    torch.manual_seed(7)
    terms = Triplet(negatives="random").terms(pair)
    torch.manual_seed(7)
    rows, columns = sample_negatives(pair.positive_mask), sample_negatives(pair.positive_mask.T)
    scores = pair.scores()
    naive_rows = sum(max(0.0, 0.2 + float(scores[i, j] - scores[i, i])) for i, j in enumerate(rows.tolist())) / 12
    assert terms["a_to_b"].item() == pytest.approx(naive_rows)
    assert terms["a_to_b"].item() == pytest.approx(triplet_loss(scores, pair.positive_mask, negative_index=rows).item())
    assert terms["b_to_a"].item() == pytest.approx(
        triplet_loss(scores.T, pair.positive_mask.T, negative_index=columns).item()
    )


@pytest.mark.parametrize("negatives", MINING)
def test_half_precision_is_close(negatives):
    a, b = (
        random_features(40, dim=32, seed=1, dtype=torch.float32),
        random_features(40, dim=32, seed=2, dtype=torch.float32),
    )
    near = Features(a.embedding + 0.3 * b.embedding, a.parts, a.mask)
    objective = Triplet(negatives=negatives)
    full = total_loss(objective, pair_of(a, near))

    def to_bfloat16(f):
        return Features(f.embedding.bfloat16(), f.parts, f.mask)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast_loss = total_loss(objective, pair_of(a, near))
    for value in (autocast_loss, total_loss(objective, pair_of(to_bfloat16(a), to_bfloat16(near)))):
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(full.item(), rel=0.05, abs=0.02)


def test_invalid_settings_raise():
    for invalid in ({"margin": -1.0}, {"margin": float("nan")}, {"negatives": "hard"}, {"directions": "c"}):
        (key,) = invalid
        with pytest.raises(RecipeError, match=key):
            Triplet(**invalid)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RecipeError, match="known: mean, sum"):
        Triplet(reduction="none")  # pyright: ignore[reportArgumentType]
    with pytest.raises(RecipeError, match="hinge, polynomial"):
        Triplet(loss="cubic")  # pyright: ignore[reportArgumentType]


def test_invalid_tensors_raise():
    positive_mask = torch.eye(3, dtype=torch.bool)
    scores = torch.zeros(3, 3)
    with pytest.raises(InputError, match=r"scores \(3, 4\)"):
        triplet_loss(torch.zeros(3, 4), positive_mask)
    with pytest.raises(InputError, match="False on the diagonal"):
        triplet_loss(scores, ~positive_mask)
    with pytest.raises(InputError, match=r"positive_mask \(2, 2\)"):
        triplet_loss(scores, positive_mask[:2, :2])
    for bad in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(InputError, match="finite"):
            triplet_loss(scores.index_fill(1, torch.tensor([1]), bad), positive_mask)
    with pytest.raises(InputError, match=r"\[-1, 1\]"):
        triplet_loss(scores + 2, positive_mask, loss="polynomial")
    for out_of_range in (torch.diag(torch.tensor([2.0, 0.0, 0.0])), torch.tensor([[0.0, 2, 0], [0, 0, 0], [0, 0, 0]])):
        with pytest.raises(InputError, match=r"up to 2; .*\[-1, 1\]"):
            triplet_loss(out_of_range, positive_mask, negatives="hardest", loss="polynomial")
    with pytest.raises(InputError, match="row 1 has 1, which is a positive"):
        triplet_loss(scores, positive_mask, negative_index=torch.tensor([1, 1, 0]))
    with pytest.raises(InputError, match="from -1 to 2"):
        triplet_loss(scores, positive_mask, negative_index=torch.tensor([1, 3, 0]))
    for negative_index in (torch.tensor([1, 2, 0], dtype=torch.int32), torch.tensor([1, 2])):
        with pytest.raises(InputError, match=r"need \(3,\) int64"):
            triplet_loss(scores, positive_mask, negative_index=negative_index)
