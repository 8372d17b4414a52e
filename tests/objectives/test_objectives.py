"""Properties of every registered objective."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.similarities.test_similarities import random_features
from triptych.errors import RecipeError
from triptych.interfaces import Features, Pair
from triptych.objectives import OBJECTIVES
from triptych.similarities import SIMILARITIES

CLASSES, EMBED_DIM = 5, 6
SETTINGS = {"distill": {"num_classes": CLASSES, "embed_dim": EMBED_DIM}}  # defaults for the others


def pair_of(a, b, group=None, teacher=None):
    """A pair with cosine similarity; the default teacher is the softmax of the first dimensions of a."""
    group = torch.arange(len(a.embedding)) if group is None else group
    teacher = a.embedding.detach()[:, :CLASSES].softmax(dim=1) if teacher is None else teacher
    return Pair(a, b, group, SIMILARITIES["cosine"](), teacher)


def total_loss(objective, pair):
    return torch.stack(list(objective.terms(pair).values())).sum()


def permute(items, order):
    return Features(items.embedding[order], items.parts[order], items.mask[order])


@pytest.fixture(params=OBJECTIVES.known_names())
def objective(request):
    objective = OBJECTIVES[request.param](**SETTINGS.get(request.param, {})).double()
    for name, parameter in objective.named_parameters():
        if "head" in name:  # heads that read the classes
            parameter.data.copy_(torch.eye(*parameter.shape) if parameter.dim() == 2 else 0 * parameter)
    return objective


def test_true_pairs_cost_less_than_shuffled(objective):
    a = random_features(8)
    shuffled = permute(a, torch.arange(8).roll(1))
    assert total_loss(objective, pair_of(a, a)) < total_loss(objective, pair_of(a, shuffled))


def test_invariant_to_batch_order(objective):
    a, b, order = random_features(8, seed=1), random_features(8, seed=2), torch.randperm(8)
    assert torch.isclose(
        total_loss(objective, pair_of(a, b)),
        total_loss(objective, pair_of(permute(a, order), permute(b, order))),
        atol=1e-12,
    )


def test_gradients_match_finite_differences(objective):
    a, b = random_features(5, seed=1), random_features(5, seed=2)
    group = torch.tensor([0, 1, 1, 2, 3])
    teacher = a.embedding[:, :CLASSES].softmax(dim=1)

    def value(x, y):
        pair = pair_of(Features(x, a.parts, a.mask), Features(y, b.parts, b.mask), group, teacher)
        return total_loss(objective, pair)

    assert torch.autograd.gradcheck(value, (a.embedding.requires_grad_(), b.embedding.requires_grad_()))


def test_a_call_with_tensors_returns_the_sum_of_the_terms(objective):
    a, b, group = random_features(6, seed=1), random_features(6, seed=2), torch.tensor([0, 1, 1, 2, 3, 0])
    pair = pair_of(a, b, group)
    teacher = {"teacher_targets": pair.teacher_targets} if objective.reads_teacher else {}
    torch.manual_seed(0)
    value = objective(a.embedding, b.embedding, group=group, **teacher)
    torch.manual_seed(0)
    assert value.shape == ()
    assert torch.equal(value, total_loss(objective, pair))
    if objective.reads_scores:
        torch.manual_seed(0)
        assert objective(scores=pair.scores(), group=group).item() == pytest.approx(value.item(), rel=1e-12)


def test_after_step_restores_valid_parameters(objective):
    for parameter in objective.parameters():
        parameter.data.fill_(1e4)
    objective.after_step()
    assert torch.isfinite(total_loss(objective, pair_of(random_features(4), random_features(4))))


def naive_infonce(scores, group, temperature):
    n = len(scores)
    loss = 0.0
    for i in range(n):
        row = sum(math.exp(scores[i][j] / temperature) for j in range(n) if j == i or group[j] != group[i])
        column = sum(math.exp(scores[j][i] / temperature) for j in range(n) if j == i or group[j] != group[i])
        loss += 0.5 * (math.log(row) + math.log(column)) - scores[i][i] / temperature
    return loss / n


@given(st.lists(st.integers(0, 3), min_size=1, max_size=7), st.floats(0.02, 2.0), st.integers(0, 99))
def test_infonce_matches_naive_loop(group, temperature, seed):
    pair = pair_of(
        random_features(len(group), seed=seed), random_features(len(group), seed=seed + 100), torch.tensor(group)
    )
    loss = total_loss(OBJECTIVES["infonce"](temperature=temperature).double(), pair)
    expected = naive_infonce(pair.scores().tolist(), group, temperature)
    assert loss.item() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_infonce_keeps_fixed_temperature():
    fixed = OBJECTIVES["infonce"](temperature=2.0, learn_temperature=False)
    fixed.after_step()
    assert [p for p in fixed.parameters() if p.requires_grad] == []
    assert fixed.state_dict()["log_scale"].exp().item() == pytest.approx(0.5)
    with pytest.raises(RecipeError, match="0 < min_temperature <= temperature"):
        OBJECTIVES["infonce"](temperature=0.0)
