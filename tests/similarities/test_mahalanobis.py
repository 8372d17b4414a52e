"""The learned metric against naive loops, near zero, and after steps outside the cone."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.similarities.test_similarities import random_features
from triptych.errors import InputError, RecipeError
from triptych.interfaces import Features
from triptych.similarities.mahalanobis import Mahalanobis, project_to_psd

METRICS = ["identity", "diagonal", "low_rank", "full"]
FORMS = ["rooted", "squared"]


def features_from_embedding(embedding):
    return Features(embedding, embedding[:, None], torch.ones(len(embedding), 1, dtype=torch.bool))


def random_metric(metric, embed_dim=6, seed=0, **settings):
    """Return a similarity with a changed metric, and its matrix."""
    similarity = Mahalanobis(embed_dim, metric, rank=min(3, embed_dim), **settings).double()
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(embed_dim, embed_dim, generator=generator, dtype=torch.float64)
    matrix = torch.eye(embed_dim, dtype=torch.float64)
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


def naive_scores(a, b, matrix, form, normalise):
    distances = []
    for x in a.tolist():
        row = []
        for y in b.tolist():
            d = [p - q for p, q in zip(x, y, strict=True)]
            total = sum(d[k] * float(matrix[k, h]) * d[h] for k in range(len(d)) for h in range(len(d)))
            row.append(math.sqrt(max(total, 0)) if form == "rooted" else total)
        distances.append(row)
    largest = max(max(row) for row in distances) if normalise else 1.0
    return torch.tensor([[-g / largest for g in row] for row in distances], dtype=torch.float64)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normalise", [False, True])
def test_matches_naive_loop(metric, form, normalise):
    similarity, matrix = random_metric(metric, form=form, normalise=normalise)
    a, b = random_features(4, seed=1), random_features(5, seed=2)
    expected = naive_scores(a.embedding, b.embedding, matrix, form, normalise)
    assert torch.allclose(similarity(a, b), expected, atol=1e-10)
    index = similarity.query(a) @ similarity.keys(b).T
    if similarity.is_exact:
        assert torch.allclose(index, expected, atol=1e-10)
    assert similarity.is_exact == (form == "squared" and not normalise)
    assert torch.equal(index.argsort(dim=1), expected.argsort(dim=1))  # the same ranking


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normalise", [False, True])
def test_gradients_match_finite_differences(metric, form, normalise):
    similarity, _ = random_metric(metric, form=form, normalise=normalise)
    names = [name for name, _ in similarity.named_parameters()]

    def score(a, b, *parameters):
        parameter_values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(
            similarity, parameter_values, (features_from_embedding(a), features_from_embedding(b))
        )

    tensors = [
        random_features(3, seed=1).embedding,
        random_features(4, seed=2).embedding,
        *(p.data for p in similarity.parameters()),
    ]
    assert torch.autograd.gradcheck(score, tuple(t.clone().requires_grad_() for t in tensors))


def test_antisymmetric_part_of_full_matrix_is_ignored():
    similarity, matrix = random_metric("full", form="squared")
    a, b = random_features(4, seed=1), random_features(5, seed=2)
    skew = torch.triu(torch.ones_like(matrix), 1)
    similarity.matrix.data.add_(skew - skew.T)
    expected = naive_scores(a.embedding, b.embedding, matrix, "squared", normalise=False)
    assert torch.allclose(similarity(a, b), expected, atol=1e-10)
    assert torch.allclose(similarity.query(a) @ similarity.keys(b).T, expected, atol=1e-10)


@pytest.mark.parametrize("metric", ["diagonal", "full"])
def test_learned_metrics_start_at_identity(metric):
    a, b = random_features(4, seed=1), random_features(5, seed=2)
    plain = -torch.cdist(a.embedding, b.embedding)
    assert torch.allclose(Mahalanobis(6, metric).double()(a, b), plain, atol=1e-12)


def test_low_rank_starts_with_distances_preserved_on_average():
    similarity = Mahalanobis(64, "low_rank", rank=16, form="squared")
    identity = Mahalanobis(64, "identity", form="squared")
    a, b = random_features(100, dim=64, seed=1), random_features(100, dim=64, seed=2)
    assert (similarity(a, b) / identity(a, b)).mean().item() == pytest.approx(1, abs=0.1)
    assert torch.allclose((f := Mahalanobis(8, "low_rank", rank=8).factor).T @ f, torch.eye(8), atol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("normalise", [False, True])
def test_identical_rows_score_zero_with_finite_gradients(metric, normalise):
    similarity = random_metric(metric, normalise=normalise)[0]
    x = random_features(4).embedding.requires_grad_()
    scores = similarity(features_from_embedding(x), features_from_embedding(x))
    assert torch.equal(scores.diagonal(), torch.zeros(4, dtype=torch.float64))
    gradients = torch.autograd.grad(scores.sum(), [x, *similarity.parameters()])
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    identical_scores = similarity(
        features_from_embedding(x[:1].expand(3, -1)), features_from_embedding(x[:1].expand(2, -1))
    )
    assert torch.equal(identical_scores, torch.zeros(3, 2, dtype=torch.float64))  # 0, not 0 / 0


@given(st.floats(-6.5, 0), st.floats(-3, 3), st.integers(0, 99))
def test_near_rows_keep_precision_in_float32(decade, size, seed):
    """Unit vectors at a distance of 10^decade: float32 would lose it below 1e-3."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 32, generator=generator) * 10**size
    y = x + torch.randn(1, 32, generator=generator) * 10 ** (size + decade)
    x.requires_grad_()
    difference = (x.double() - y.double()).detach()
    score = Mahalanobis(32)(features_from_embedding(x), features_from_embedding(y))
    assert score.dtype == torch.float32
    assert -score.item() == pytest.approx(difference.norm().item(), rel=1e-2)
    (gradient,) = torch.autograd.grad(score.sum(), x)
    assert torch.allclose(
        gradient.double(), -difference / difference.norm(), atol=2e-2
    )  # a unit vector at any distance


@given(st.integers(1, 6), st.integers(0, 99))
def test_invariant_to_order_and_translation(n, seed):
    similarity = random_metric("full", seed=seed)[0]
    a, b, order = random_features(n, seed=seed), random_features(n, seed=seed + 1), torch.randperm(n)
    scores = similarity(a, b)
    assert torch.allclose(
        similarity(features_from_embedding(a.embedding[order]), features_from_embedding(b.embedding[order])),
        scores[order][:, order],
    )
    assert torch.allclose(
        similarity(features_from_embedding(a.embedding + 5), features_from_embedding(b.embedding + 5)),
        scores,
        atol=1e-6,
    )


def test_after_step_projects_onto_valid_metrics():
    diagonal = Mahalanobis(3, "diagonal")
    diagonal.weight.data = torch.tensor([-1.0, 0.0, 2.0])
    with pytest.raises(InputError, match="-1 is negative; call after_step"):
        diagonal(random_features(2, 3), random_features(2, 3))
    diagonal.after_step()
    assert diagonal.weight.tolist() == [0, 0, 2]
    full = Mahalanobis(6, "full").double()
    x = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    full.matrix.data.copy_(x)
    with pytest.raises(InputError, match="negative eigenvalue; call after_step"):
        full(random_features(2), random_features(2))
    full.after_step()
    full(random_features(2), random_features(2))
    values, vectors = torch.linalg.eigh((x + x.T) / 2)
    assert values[0] < 0
    positive_part = torch.stack([e * torch.outer(u, u) for e, u in zip(values, vectors.T, strict=True) if e > 0]).sum(
        dim=0
    )
    assert torch.allclose(full.matrix.data, positive_part, atol=1e-12)
    before = full.matrix.data.clone()
    full.after_step()
    assert torch.allclose(full.matrix.data, before, atol=1e-12)  # a projection is idempotent


@given(st.integers(1, 8), st.integers(0, 99))
def test_psd_projection_is_nearest(embed_dim, seed):
    generator = torch.Generator().manual_seed(seed)
    matrix, other = torch.randn(2, embed_dim, embed_dim, generator=generator, dtype=torch.float64)
    symmetric, nearest = (matrix + matrix.T) / 2, project_to_psd(matrix)
    assert torch.linalg.eigvalsh(nearest).min() > -1e-12
    assert (symmetric - nearest).norm() <= (symmetric - other @ other.T).norm() + 1e-12


@pytest.mark.slow
def test_large_optimizer_steps_keep_metric_valid():
    similarity = Mahalanobis(6, "full", form="squared")
    a, b = random_features(4, seed=1, dtype=torch.float32), random_features(4, seed=2, dtype=torch.float32)
    optimizer = torch.optim.SGD(similarity.parameters(), lr=1.0)
    for _ in range(5):
        optimizer.zero_grad()
        (-similarity(a, b)).mean().backward()  # smaller distances: out of the cone
        optimizer.step()
        similarity.after_step()
    assert (similarity(a, b) <= 0).all()


def test_half_precision_and_autocast_are_close():
    a, b = random_features(6, seed=1, dtype=torch.bfloat16), random_features(6, seed=2, dtype=torch.bfloat16)
    similarity = Mahalanobis(6, "full")
    expected = similarity(features_from_embedding(a.embedding.double()), features_from_embedding(b.embedding.double()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = similarity(a, b)
    assert scores.dtype == torch.float32
    assert torch.allclose(scores.double(), expected, rtol=1e-5)


def test_invalid_inputs_raise():
    with pytest.raises(RecipeError, match=r"metric 'ful' is unknown.*did you mean 'full'"):
        Mahalanobis(metric="ful")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="form 'root' is unknown"):
        Mahalanobis(form="root")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="rank = 9; need 1 <= rank <= embed_dim = 8"):
        Mahalanobis(8, "low_rank", rank=9)
    with pytest.raises(RecipeError, match="embed_dim = 0"):
        Mahalanobis(0)
    with pytest.raises(InputError, match=r"b.embedding has 5 dimensions, but mahalanobis has embed_dim = 6"):
        Mahalanobis(6)(random_features(2), random_features(2, dim=5))
    for bad in (math.nan, math.inf, 1e200):
        with pytest.raises(InputError, match="NaN or infinity"):
            Mahalanobis(6)(features_from_embedding(torch.full((2, 6), bad, dtype=torch.float64)), random_features(2))
    similarity = Mahalanobis(6, "full")
    similarity.matrix.data[0, 0] = math.nan
    with pytest.raises(InputError, match="matrix of the metric contains NaN"):
        similarity.after_step()


@pytest.mark.parametrize("metric", ["identity", "diagonal", "low_rank", "full"])
def test_attribution_of_squared_metric_sums_to_cross_term(metric):
    a, b = (random_features(3, seed=seed) for seed in (1, 2))
    a, b = (Features(f.mean_pool(), f.parts, f.mask) for f in (a, b))
    similarity = Mahalanobis(embed_dim=6, metric=metric, rank=2, form="squared").double()
    with torch.no_grad():
        for parameter in similarity.parameters():
            parameter.copy_(torch.rand_like(parameter) + (torch.eye(6) * 9 if metric == "full" else 0))
        similarity.after_step()
    zero = Features(torch.zeros_like(a.embedding), a.parts, a.mask)
    cross_term = similarity(a, b) - similarity(a, zero) - similarity(zero, b)  # -(aᵀMa + bᵀMb - 2aᵀMb) + aᵀMa + bᵀMb
    assert torch.allclose(similarity.attribution(a, b).sum(dim=(1, 2)), cross_term.diagonal())


def test_the_default_dimension_is_that_of_the_recipes():
    assert Mahalanobis(metric="diagonal").weight.shape == (128,)


@pytest.mark.parametrize("form", FORMS)
def test_zero_vectors_have_a_finite_gradient(form):
    zeros = torch.zeros(2, 6, dtype=torch.float64, requires_grad=True)
    scores = random_metric("identity", form=form)[0](features_from_embedding(zeros), features_from_embedding(zeros))
    scores.sum().backward()
    assert zeros.grad is not None
    assert torch.isfinite(zeros.grad).all()
