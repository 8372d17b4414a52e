"""Distillation against naive loops, with one-hot teachers, and without a teacher."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objectives.test_objectives import pair_of, permute, total_loss
from tests.similarities.test_similarities import random_features
from triptych.errors import InputError, RecipeError
from triptych.interfaces import Features
from triptych.objectives.distill import Distill, class_kl_divergence, score_cross_entropy

quick = settings(deadline=None, max_examples=50)


def softmax(row):
    powers = [math.exp(value - max(row)) for value in row]
    return [power / sum(powers) for power in powers]


def naive_divergence(teacher, logits):
    return sum(g * math.log(g / f) for g, f in zip(teacher, softmax(logits), strict=True) if g > 0)


def naive_cross_entropy(teacher, student):
    rows = zip(teacher, student, strict=True)
    return sum(-sum(g * math.log(f) for g, f in zip(softmax(t), softmax(s), strict=True)) for t, s in rows) / len(
        teacher
    )


def random_logits(rows, classes, seed, scale=3.0):
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def pair_with_teacher(n=6, classes=9, seed=0, dtype=torch.float64):
    a, b = random_features(n, seed=seed, dtype=dtype), random_features(n, seed=seed + 1, dtype=dtype)
    return replace(pair_of(a, b), teacher_targets=random_logits(n, classes, seed + 2).softmax(dim=1).to(dtype))


@given(st.integers(1, 6), st.integers(2, 9), st.booleans(), st.integers(0, 99))
@quick
def test_class_kl_divergence_matches_naive_loop(rows, classes, is_one_hot, seed):
    teacher = random_logits(rows, classes, seed).softmax(dim=1)
    if is_one_hot:  # 0 log 0 = 0
        teacher = torch.nn.functional.one_hot(teacher.argmax(dim=1), classes).double()
    student = random_logits(rows, classes, seed + 1)
    divergences = class_kl_divergence(teacher, student)
    expected = [naive_divergence(g, f) for g, f in zip(teacher.tolist(), student.tolist(), strict=True)]
    assert divergences.tolist() == pytest.approx(expected, abs=1e-12)
    assert class_kl_divergence(student.softmax(dim=1), student).abs().max() < 1e-12


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
@quick
def test_score_cross_entropy_matches_naive_loop(rows, columns, seed):
    teacher, student = random_logits(rows, columns, seed), random_logits(rows, columns, seed + 1)
    both = naive_cross_entropy(teacher.tolist(), student.tolist())
    both += naive_cross_entropy(teacher.T.tolist(), student.T.tolist())
    assert score_cross_entropy(teacher, student).item() == pytest.approx(both / 2)
    assert score_cross_entropy(teacher + 40, student - 7).item() == pytest.approx(both / 2)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_objective_averages_both_sides_over_batch(temperature, heads):
    pair, objective = (
        pair_with_teacher(),
        Distill(num_classes=9, embed_dim=6, temperature=temperature, heads=heads).double(),
    )
    terms = objective.terms(pair)
    assert pair.teacher_targets is not None
    assert len(objective.heads) == heads
    for name, side, head in (("a", pair.a, objective.heads[0]), ("b", pair.b, objective.heads[-1])):
        outputs = head(side.embedding) / temperature
        each = [naive_divergence(g, f) for g, f in zip(pair.teacher_targets.tolist(), outputs.tolist(), strict=True)]
        assert terms[name].item() == pytest.approx(0.5 * sum(each) / len(each))


def test_gradients_match_finite_differences_and_teacher_has_none():
    pair, objective = pair_with_teacher(4), Distill(num_classes=9, embed_dim=6).double()
    assert pair.teacher_targets is not None

    def value(x, y):
        a, b = Features(x, pair.a.parts, pair.a.mask), Features(y, pair.b.parts, pair.b.mask)
        return total_loss(objective, replace(pair, a=a, b=b))

    embeddings = pair.a.embedding.requires_grad_(), pair.b.embedding.requires_grad_()
    assert torch.autograd.gradcheck(value, embeddings)
    student = random_logits(3, 5, 1).requires_grad_()
    teacher = random_logits(3, 5, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: score_cross_entropy(teacher.detach(), s), (student,))
    assert torch.autograd.gradcheck(lambda s: class_kl_divergence(teacher.detach().softmax(dim=1), s), (student,))
    assert not score_cross_entropy(teacher, student.detach()).requires_grad


def test_heads_fit_teacher_classes():
    torch.manual_seed(0)
    pair, objective = pair_with_teacher(5), Distill(num_classes=9, embed_dim=6, heads=2).double()
    start = total_loss(objective, pair).item()
    optimizer = torch.optim.LBFGS(objective.parameters(), max_iter=60)

    def step():
        optimizer.zero_grad()
        loss = total_loss(objective, pair)
        loss.backward()
        return loss

    optimizer.step(step)
    assert total_loss(objective, pair).item() < 0.02 * start
    shuffled = replace(pair, a=permute(pair.a, torch.arange(5).roll(1)))
    assert total_loss(objective, pair) < total_loss(objective, shuffled)


@pytest.mark.parametrize("heads", [1, 2])
def test_shared_head_aligns_pairs(heads):
    """Embeddings trained by classes only: one shared head aligns pairs, two heads do not."""
    torch.manual_seed(0)
    pair, objective = pair_with_teacher(5), Distill(num_classes=9, embed_dim=6, heads=heads).double()
    sides = [torch.randn(5, 6, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.Adam([*sides, *objective.parameters()], lr=0.05)
    for _ in range(400):
        a, b = (torch.nn.functional.normalize(x, dim=1) for x in sides)
        current_pair = replace(pair, a=replace(pair.a, embedding=a), b=replace(pair.b, embedding=b))
        optimizer.zero_grad()
        total_loss(objective, current_pair).backward()
        optimizer.step()
    pair_cosine = torch.nn.functional.cosine_similarity(sides[0], sides[1]).mean().item()
    assert pair_cosine > 0.95 if heads == 1 else pair_cosine < 0.7


def test_invariant_to_order_and_works_for_one_pair():
    pair, objective, order = pair_with_teacher(8), Distill(num_classes=9, embed_dim=6).double(), torch.randperm(8)
    assert pair.teacher_targets is not None
    permuted_pair = replace(
        pair, a=permute(pair.a, order), b=permute(pair.b, order), teacher_targets=pair.teacher_targets[order]
    )
    assert torch.isclose(total_loss(objective, pair), total_loss(objective, permuted_pair), atol=1e-12)
    assert torch.isfinite(total_loss(objective, pair_with_teacher(1)))


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_large_and_small_logits_stay_finite(scale):
    student = (random_logits(4, 7, 1) * scale).requires_grad_()
    loss = class_kl_divergence(random_logits(4, 7, 2).softmax(dim=1), student).mean()
    assert torch.isfinite(loss)
    assert torch.isfinite(torch.autograd.grad(loss, student)[0]).all()


def test_half_precision_is_close():
    pair, objective = pair_with_teacher(8, dtype=torch.float32), Distill(num_classes=9, embed_dim=6)
    assert pair.teacher_targets is not None
    full = total_loss(objective, pair).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = total_loss(objective, replace(pair, teacher_targets=pair.teacher_targets.bfloat16()))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(full, rel=0.02)


def test_invalid_settings_raise():
    for invalid in (
        {"num_classes": 1},
        {"num_classes": 2.5},
        {"embed_dim": 0},
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"heads": 3},
    ):
        (key,) = invalid
        with pytest.raises(RecipeError, match=f"{key} = "):
            Distill(**invalid)  # pyright: ignore[reportArgumentType]


def test_smallest_settings_are_valid():
    objective = Distill(num_classes=2, embed_dim=1)
    assert [tuple(parameter.shape) for parameter in objective.parameters()] == [(2, 1), (2,)]


def test_teacher_is_rescaled_to_sum_to_one():
    teacher, student = random_logits(4, 7, 1).softmax(dim=1), random_logits(4, 7, 2)
    expected = [naive_divergence(g, f) for g, f in zip(teacher.tolist(), student.tolist(), strict=True)]
    assert class_kl_divergence(1.005 * teacher, student).tolist() == pytest.approx(expected, rel=1e-10)


def test_invalid_teachers_raise():
    pair, objective = pair_with_teacher(), Distill(num_classes=9, embed_dim=6).double()
    assert pair.teacher_targets is not None
    with pytest.raises(InputError, match=r"set data\.teacher or remove distill"):
        objective.terms(replace(pair, teacher_targets=None))
    with pytest.raises(InputError, match=r"teacher is \(6, 8\); need \(6, 9\)"):
        objective.terms(replace(pair, teacher_targets=pair.teacher_targets[:, :8]))
    with pytest.raises(InputError, match="has 6 dimensions, distill has embed_dim = 5"):
        Distill(num_classes=9, embed_dim=5).double().terms(pair)
    with pytest.raises(InputError, match=r"row 2 sums to 1\.9"):
        objective.terms(replace(pair, teacher_targets=pair.teacher_targets + torch.eye(6, 1).roll(2, 0) * 0.1))
    for bad in (torch.nan, torch.inf, -0.1):
        with pytest.raises(InputError, match="NaN, infinity or a negative number"):
            objective.terms(replace(pair, teacher_targets=pair.teacher_targets.index_fill(1, torch.tensor([0]), bad)))
    with pytest.raises(InputError, match="need the same"):
        class_kl_divergence(torch.ones(2, 3) / 3, torch.ones(2, 4))
    for teacher_shape, student_shape in (((2, 3), (3, 2)), ((2,), (2,)), ((0, 3), (0, 3))):
        with pytest.raises(InputError, match=r"student \(.*need the same \(N, M\)"):
            score_cross_entropy(torch.ones(teacher_shape), torch.ones(student_shape))
    with pytest.raises(InputError, match="student contains NaN"):
        score_cross_entropy(torch.ones(2, 3), torch.full((2, 3), torch.nan))
