"""The learned metric: against its formula as loops, at and near zero, and after a step that broke it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.similarities.test_similarities import features
from triptych.contracts import Features
from triptych.errors import InputError, RecipeError
from triptych.similarities.mahalanobis import Mahalanobis, nearest_metric

METRICS = ["identity", "diagonal", "low_rank", "full"]
FORMS = ["rooted", "squared"]


def holding(embedding):
    return Features(embedding, embedding[:, None], torch.ones(len(embedding), 1, dtype=torch.bool))


def learned(metric, width=6, seed=0, **settings):
    """A similarity whose metric is not where it started, and which matrix that is."""
    similarity = Mahalanobis(width, metric, rank=min(3, width), **settings).double()
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(width, width, generator=generator, dtype=torch.float64)
    matrix = torch.eye(width, dtype=torch.float64)
    if metric == "diagonal":
        similarity.weight.data.copy_(x[0].abs())
        matrix = x[0].abs().diag()
    elif metric == "low_rank":
        similarity.factor.data.copy_(x[: similarity.rank])
        matrix = x[: similarity.rank].T @ x[: similarity.rank]
    elif metric == "full":
        similarity.matrix.data.copy_(x @ x.T)
        matrix = x @ x.T
    return similarity, matrix


def naive(a, b, matrix, form, normalise):
    gaps = []
    for x in a.tolist():
        row = []
        for y in b.tolist():
            d = [p - q for p, q in zip(x, y, strict=True)]
            total = sum(d[k] * float(matrix[k, h]) * d[h] for k in range(len(d)) for h in range(len(d)))
            row.append(math.sqrt(max(total, 0)) if form == "rooted" else total)
        gaps.append(row)
    largest = max(max(row) for row in gaps) if normalise else 1.0
    return torch.tensor([[-g / largest for g in row] for row in gaps], dtype=torch.float64)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normalise", [False, True])
def test_it_follows_its_formula(metric, form, normalise):
    similarity, matrix = learned(metric, form=form, normalise=normalise)
    a, b = features(4, seed=1), features(5, seed=2)
    expected = naive(a.embedding, b.embedding, matrix, form, normalise)
    assert torch.allclose(similarity(a, b), expected, atol=1e-10)
    index = similarity.query(a) @ similarity.keys(b).T
    if similarity.exact:
        assert torch.allclose(index, expected, atol=1e-10)
    assert similarity.exact == (form == "squared" and not normalise)
    assert torch.equal(index.argsort(dim=1), expected.argsort(dim=1))  # a shortlist in the right order


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normalise", [False, True])
def test_gradients_are_right(metric, form, normalise):
    similarity, _ = learned(metric, form=form, normalise=normalise)
    names = [name for name, _ in similarity.named_parameters()]

    def score(a, b, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(similarity, given, (holding(a), holding(b)))

    tensors = [features(3, seed=1).embedding, features(4, seed=2).embedding, *(p.data for p in similarity.parameters())]
    assert torch.autograd.gradcheck(score, tuple(t.clone().requires_grad_() for t in tensors))


def test_only_the_symmetric_half_of_a_full_matrix_counts():
    similarity, matrix = learned("full", form="squared")
    a, b = features(4, seed=1), features(5, seed=2)
    skew = torch.triu(torch.ones_like(matrix), 1)
    similarity.matrix.data.add_(skew - skew.T)
    expected = naive(a.embedding, b.embedding, matrix, "squared", normalise=False)
    assert torch.allclose(similarity(a, b), expected, atol=1e-10)
    assert torch.allclose(similarity.query(a) @ similarity.keys(b).T, expected, atol=1e-10)


@pytest.mark.parametrize("metric", ["diagonal", "full"])
def test_training_starts_at_the_identity(metric):
    a, b = features(4, seed=1), features(5, seed=2)
    plain = -torch.cdist(a.embedding, b.embedding)
    assert torch.allclose(Mahalanobis(6, metric).double()(a, b), plain, atol=1e-12)


def test_a_low_rank_starts_with_lengths_kept_on_average():
    similarity = Mahalanobis(64, "low_rank", rank=16, form="squared")
    whole = Mahalanobis(64, "identity", form="squared")
    a, b = features(100, width=64, seed=1), features(100, width=64, seed=2)
    assert (similarity(a, b) / whole(a, b)).mean().item() == pytest.approx(1, abs=0.1)
    assert torch.allclose((f := Mahalanobis(8, "low_rank", rank=8).factor).T @ f, torch.eye(8), atol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("normalise", [False, True])
def test_identical_rows_score_zero_with_finite_gradients(metric, normalise):
    similarity = learned(metric, normalise=normalise)[0]
    x = features(4).embedding.requires_grad_()
    scores = similarity(holding(x), holding(x))
    assert torch.equal(scores.diagonal(), torch.zeros(4, dtype=torch.float64))
    gradients = torch.autograd.grad(scores.sum(), [x, *similarity.parameters()])
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    same = similarity(holding(x[:1].expand(3, -1)), holding(x[:1].expand(2, -1)))
    assert torch.equal(same, torch.zeros(3, 2, dtype=torch.float64))  # 0, not 0 / 0


@given(st.floats(-6.5, 0), st.floats(-3, 3), st.integers(0, 99))
def test_near_rows_are_told_apart_in_float32(decade, size, seed):
    """Unit rows that are 10^decade of their length apart: float32 alone would lose them below 1e-3."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 32, generator=generator) * 10**size
    y = x + torch.randn(1, 32, generator=generator) * 10 ** (size + decade)
    x.requires_grad_()
    gap = (x.double() - y.double()).detach()
    found = Mahalanobis(32)(holding(x), holding(y))
    assert found.dtype == torch.float32
    assert -found.item() == pytest.approx(gap.norm().item(), rel=1e-2)
    (slope,) = torch.autograd.grad(found.sum(), x)
    assert torch.allclose(slope.double(), -gap / gap.norm(), atol=2e-2)  # a unit vector, however near


@given(st.integers(1, 6), st.integers(0, 99))
def test_order_and_translation_change_nothing(n, seed):
    similarity = learned("full", seed=seed)[0]
    a, b, order = features(n, seed=seed), features(n, seed=seed + 1), torch.randperm(n)
    scores = similarity(a, b)
    assert torch.allclose(similarity(holding(a.embedding[order]), holding(b.embedding[order])), scores[order][:, order])
    assert torch.allclose(similarity(holding(a.embedding + 5), holding(b.embedding + 5)), scores, atol=1e-6)


def test_after_step_projects_on_the_allowed_metrics():
    diagonal = Mahalanobis(3, "diagonal")
    diagonal.weight.data = torch.tensor([-1.0, 0.0, 2.0])
    with pytest.raises(InputError, match="-1 is negative; call after_step"):
        diagonal(features(2, 3), features(2, 3))
    diagonal.after_step()
    assert diagonal.weight.tolist() == [0, 0, 2]
    full = Mahalanobis(6, "full").double()
    x = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    full.matrix.data.copy_(x)
    with pytest.raises(InputError, match="negative eigenvalue; call after_step"):
        full(features(2), features(2))
    full.after_step()
    full(features(2), features(2))
    values, vectors = torch.linalg.eigh((x + x.T) / 2)
    assert values[0] < 0
    kept = torch.stack([e * torch.outer(u, u) for e, u in zip(values, vectors.T, strict=True) if e > 0]).sum(dim=0)
    assert torch.allclose(full.matrix.data, kept, atol=1e-12)
    before = full.matrix.data.clone()
    full.after_step()
    assert torch.allclose(full.matrix.data, before, atol=1e-12)  # a projection: twice is once


@given(st.integers(1, 8), st.integers(0, 99))
def test_no_other_allowed_metric_is_nearer(width, seed):
    generator = torch.Generator().manual_seed(seed)
    given_, other = torch.randn(2, width, width, generator=generator, dtype=torch.float64)
    symmetric, nearest = (given_ + given_.T) / 2, nearest_metric(given_)
    assert torch.linalg.eigvalsh(nearest).min() > -1e-12
    assert (symmetric - nearest).norm() <= (symmetric - other @ other.T).norm() + 1e-12


@pytest.mark.slow
def test_a_few_wild_steps_end_in_a_metric():
    similarity = Mahalanobis(6, "full", form="squared")
    a, b = features(4, seed=1, dtype=torch.float32), features(4, seed=2, dtype=torch.float32)
    optimizer = torch.optim.SGD(similarity.parameters(), lr=1.0)
    for _ in range(5):
        optimizer.zero_grad()
        (-similarity(a, b)).mean().backward()  # smaller and smaller gaps: straight out of the cone
        optimizer.step()
        similarity.after_step()
    assert (similarity(a, b) <= 0).all()


def test_half_precision_and_autocast_stay_close():
    a, b = features(6, seed=1, dtype=torch.bfloat16), features(6, seed=2, dtype=torch.bfloat16)
    similarity = Mahalanobis(6, "full")
    whole = similarity(holding(a.embedding.double()), holding(b.embedding.double()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = similarity(a, b)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), whole, rtol=1e-5)


def test_what_makes_no_sense_is_named():
    with pytest.raises(RecipeError, match=r"metric 'ful' is unknown.*did you mean 'full'"):
        Mahalanobis(metric="ful")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="form 'root' is unknown"):
        Mahalanobis(form="root")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="rank = 9; need 1 <= rank <= width = 8"):
        Mahalanobis(8, "low_rank", rank=9)
    with pytest.raises(RecipeError, match="width = 0"):
        Mahalanobis(0)
    with pytest.raises(InputError, match=r"b.embedding is 5 wide and mahalanobis has width = 6"):
        Mahalanobis(6)(features(2), features(2, width=5))
    for bad in (math.nan, math.inf, 1e200):
        with pytest.raises(InputError, match="NaN or infinity"):
            Mahalanobis(6)(holding(torch.full((2, 6), bad, dtype=torch.float64)), features(2))
    broken = Mahalanobis(6, "full")
    broken.matrix.data[0, 0] = math.nan
    with pytest.raises(InputError, match="matrix of the metric holds NaN"):
        broken.after_step()
