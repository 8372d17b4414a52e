"""InfoNCE with one and several positives, dense and streamed, against naive loops."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objectives.test_objectives import pair_of, permute, total_loss
from tests.similarities.test_similarities import random_features
from triptych.errors import InputError, RecipeError
from triptych.interfaces import Features, Pair
from triptych.objectives.infonce import InfoNCE, infonce_loss, streamed_infonce_loss
from triptych.similarities.cosine import Cosine

VARIANTS: list[dict[str, Any]] = [
    {},
    {"positives": "pairwise"},
    {"positives": "supcon"},
    {"label_smoothing": 0.1},
    {"gce_q": 0.7},
]
VARIANTS += [{"stream_block": 3}]
EYE = torch.eye(6, dtype=torch.bool)


def random_tensor(*shape, seed=0, scale=2.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def random_masks(n, m, seed):
    generator = torch.Generator().manual_seed(seed)
    positive_mask = torch.rand(n, m, generator=generator) < 0.3
    candidate_mask = torch.rand(n, m, generator=generator) < 0.8
    positive_mask[0, 0] = candidate_mask[0, 0] = True
    return positive_mask, candidate_mask


def naive_loss(logits, positive_mask, candidate_mask, positives_in_denominator, weight, smoothing, gce_q=0.0):
    """A naive loop over pairs, from the docstring."""
    logits, positive_mask, candidate_mask = logits.tolist(), positive_mask.tolist(), candidate_mask.tolist()
    rows = []
    for i in range(len(logits)):
        candidates = [j for j in range(len(logits[i])) if candidate_mask[i][j]]
        losses = []
        for p in (j for j in candidates if positive_mask[i][j]):
            denominator = (
                candidates if positives_in_denominator else [j for j in candidates if j == p or not positive_mask[i][j]]
            )
            normal = math.log(sum(math.exp(logits[i][j]) for j in denominator))
            surprise = {j: normal - logits[i][j] for j in denominator}
            loss = (1 - smoothing) * surprise[p] + smoothing * sum(surprise.values()) / len(denominator)
            losses.append((1 - math.exp(-surprise[p]) ** gce_q) / gce_q if gce_q else loss)
        rows.append(losses)
    if positives_in_denominator:
        weighted_losses = [(weight[i], sum(losses) / len(losses)) for i, losses in enumerate(rows) if losses]
    else:
        weighted_losses = [(weight[i], loss) for i, losses in enumerate(rows) for loss in losses]
    return sum(w * x for w, x in weighted_losses) / sum(w for w, _ in weighted_losses)


@settings(deadline=None, max_examples=80)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 0.6]),
    st.integers(0, 999),
)
def test_loss_matches_naive_loop(n, m, positives_in_denominator, weighted, smoothing, seed):
    logits, (positive_mask, candidate_mask) = random_tensor(n, m, seed=seed), random_masks(n, m, seed)
    weight = random_tensor(n, seed=seed + 1).abs() if weighted else torch.ones(n)
    loss = infonce_loss(
        logits, positive_mask, candidate_mask, positives_in_denominator, weight if weighted else None, smoothing
    )
    expected = naive_loss(logits, positive_mask, candidate_mask, positives_in_denominator, weight.tolist(), smoothing)
    assert loss.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)
    masked_loss = infonce_loss(
        logits.masked_fill(~candidate_mask, -math.inf), positive_mask, candidate_mask, positives_in_denominator
    )
    assert torch.equal(masked_loss, infonce_loss(logits, positive_mask, candidate_mask, positives_in_denominator))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 6), st.booleans(), st.sampled_from([0.1, 0.7, 1.0]), st.integers(0, 999))
def test_gce_matches_naive_loop(n, m, positives_in_denominator, gce_q, seed):
    logits, (positive_mask, candidate_mask) = random_tensor(n, m, seed=seed), random_masks(n, m, seed)
    loss = infonce_loss(logits, positive_mask, candidate_mask, positives_in_denominator, gce_q=gce_q)
    expected = naive_loss(logits, positive_mask, candidate_mask, positives_in_denominator, [1.0] * n, 0.0, gce_q)
    assert loss.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)
    tiny_q = infonce_loss(logits, positive_mask, candidate_mask, positives_in_denominator, gce_q=1e-9)
    assert tiny_q.item() == pytest.approx(
        infonce_loss(logits, positive_mask, candidate_mask, positives_in_denominator).item(), rel=1e-6, abs=1e-7
    )


def test_gce_gradient_vanishes_for_mismatched_pair():
    gradients = []
    for gce_q in (0.0, 0.7):
        logits = random_tensor(6, 6)
        logits[0, 0] = -40.0  # a confident error
        logits.requires_grad_()
        infonce_loss(logits, EYE, gce_q=gce_q).backward()
        assert logits.grad is not None
        gradients.append(logits.grad[0, 0].abs().item())
    assert gradients[0] > 0.1
    assert gradients[1] < 1e-9


@pytest.mark.parametrize("positives_in_denominator", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradients_match_finite_differences(positives_in_denominator, smoothing):
    positive_mask, candidate_mask = random_masks(5, 6, 3)
    logits, weight = random_tensor(5, 6).requires_grad_(), random_tensor(5, seed=1).abs()

    def value(logits):
        return infonce_loss(logits, positive_mask, candidate_mask, positives_in_denominator, weight, smoothing)

    assert torch.autograd.gradcheck(value, (logits,))


def test_equals_torch_cross_entropy_with_index_and_soft_labels():
    """The softmax over rows differs from that over columns, hence two directions."""
    logits = random_tensor(6, 6)
    truth = torch.arange(6)
    assert infonce_loss(logits, EYE).item() == pytest.approx(F.cross_entropy(logits, truth).item(), rel=1e-12)
    assert infonce_loss(logits, EYE).item() == pytest.approx(F.cross_entropy(logits, EYE.double()).item(), rel=1e-12)
    smooth = infonce_loss(logits, EYE, label_smoothing=0.3)
    assert smooth.item() == pytest.approx(F.cross_entropy(logits, truth, label_smoothing=0.3).item(), rel=1e-12)
    assert infonce_loss(logits, EYE).item() != pytest.approx(infonce_loss(logits.T, EYE).item(), rel=1e-3)
    assert infonce_loss(logits + 5.0, EYE).item() == pytest.approx(infonce_loss(logits, EYE).item(), rel=1e-12)


def test_row_weights_equal_torch_class_weights():
    logits, weight, truth = random_tensor(6, 6), random_tensor(6, seed=1).abs(), torch.arange(6)
    expected = F.cross_entropy(logits, truth, weight=weight)
    assert infonce_loss(logits, EYE, weight=weight).item() == pytest.approx(expected.item(), rel=1e-12)


def test_rectangular_logits_with_extra_negatives():
    query, keys = random_tensor(4, 5, scale=1.0), random_tensor(12, 5, seed=1, scale=1.0)
    positive_mask = torch.zeros(4, 12, dtype=torch.bool)
    positive_mask[torch.arange(4), torch.arange(4) * 3] = True
    expected = F.cross_entropy(query @ keys.T, torch.arange(4) * 3)
    assert infonce_loss(query @ keys.T, positive_mask).item() == pytest.approx(expected.item(), rel=1e-12)


def test_small_losses_keep_float32_precision():
    """log-sum-exp minus logit would be 0 in float32."""
    logits = torch.tensor([[60.0, 20.0], [20.0, 60.0]])
    assert infonce_loss(logits, EYE[:2, :2]).item() == pytest.approx(math.exp(-40), rel=1e-5, abs=0)
    root = 60.0**0.5
    query = torch.tensor([[root, 0.0], [20 / root, (60 - 400 / 60) ** 0.5]])
    streamed = streamed_infonce_loss(query, query, torch.tensor(1.0))
    assert [x.item() for x in streamed] == pytest.approx([math.exp(-40)] * 2, rel=1e-3, abs=0)


@pytest.mark.parametrize("mask", [EYE[:3, :2], EYE[:3, :3].float()], ids=["shape", "dtype"])
def test_an_invalid_candidate_mask_is_named(mask):
    with pytest.raises(InputError, match=r"scores \(3, 3\), candidate_mask .*need \(N, M\) for both.* a bool mask"):
        infonce_loss(torch.zeros(3, 3), EYE[:3, :3], mask)


@pytest.mark.parametrize("positives", ["single", "pairwise", "supcon"])
def test_positives_modes_match_naive_loop(positives):
    group = torch.tensor([0, 1, 1, 2, 0, 3, 1])
    pair = pair_of(random_features(7, seed=1), random_features(7, seed=2), group)
    logits, same_group = pair.scores() / 0.2, pair.positive_mask
    eye = torch.eye(7, dtype=torch.bool)
    positive_mask, candidate_mask = (
        (eye, ~same_group | eye) if positives == "single" else (same_group, torch.ones_like(same_group))
    )
    terms = InfoNCE(temperature=0.2, positives=positives, a_weight=0.7, b_weight=0.1).double().terms(pair)
    for name, weight, orient in (("a_to_b", 0.7, lambda x: x), ("b_to_a", 0.1, lambda x: x.T)):
        expected = naive_loss(
            orient(logits), orient(positive_mask), orient(candidate_mask), positives == "supcon", [1.0] * 7, 0.0
        )
        assert terms[name].item() == pytest.approx(weight * expected, rel=1e-6)


def test_positives_modes_agree_with_one_positive_per_row():
    pair = pair_of(random_features(6, seed=1), random_features(6, seed=2))
    values = [
        total_loss(InfoNCE(positives=positives).double(), pair).item() for positives in ("single", "pairwise", "supcon")
    ]
    assert values == pytest.approx([values[0]] * 3, rel=1e-10)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("group", [[0], [0, 0, 0], [0, 0, 1], [0, 1, 2]])
def test_any_grouping_has_a_finite_loss_and_gradient(variant, group):
    objective = InfoNCE(**variant).double()
    a = random_features(len(group), seed=1)
    x = a.embedding.requires_grad_()
    value = total_loss(
        objective, pair_of(Features(x, a.parts, a.mask), random_features(len(group), seed=2), torch.tensor(group))
    )
    grads = torch.autograd.grad(value, (x, objective.log_scale))
    assert all(value_or_grad.isfinite().all() for value_or_grad in (value, *grads))
    if len(set(group)) == 1 and variant.get("positives") != "supcon":
        assert value.item() == pytest.approx(0, abs=1e-12)  # no negatives


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 11), st.floats(0.01, 2.0), st.integers(0, 99)
)
def test_streamed_equals_dense(group, block, temperature, seed):
    n = len(group)
    a, b = random_features(n, seed=seed), random_features(n, seed=seed + 100)
    x, y = a.embedding.requires_grad_(), b.embedding.requires_grad_()
    pair = pair_of(Features(x, a.parts, a.mask), Features(y, b.parts, b.mask), torch.tensor(group))
    results = []
    for size in (0, block):
        objective = InfoNCE(temperature=temperature, stream_block=size).double()
        terms = objective.terms(pair)
        grads = torch.autograd.grad(total_loss(objective, pair), (x, y, objective.log_scale))
        results.append([*terms.values(), *grads])
    for dense, streamed in zip(*results, strict=True):
        assert torch.allclose(dense, streamed, rtol=1e-9, atol=1e-12)


def test_streamed_equals_dense_in_float32():
    a, b = random_features(300, 32, seed=1, dtype=torch.float32), random_features(300, 32, seed=2, dtype=torch.float32)
    pair = pair_of(a, b, torch.arange(300) // 3)
    dense, streamed = (InfoNCE(stream_block=block).terms(pair) for block in (0, 128))
    for name in dense:
        assert streamed[name].item() == pytest.approx(dense[name].item(), rel=1e-6)


def test_streaming_never_builds_positive_mask():
    pair = pair_of(random_features(4, seed=1), random_features(4, seed=2), torch.tensor([5, 3, 3, 9]))
    InfoNCE(stream_block=2).double().terms(pair)
    assert "positive_mask" not in vars(pair)
    InfoNCE().double().terms(pair)
    assert "positive_mask" in vars(pair)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_invariant_to_order_and_true_pairs_cost_less(variant):
    objective = InfoNCE(**variant).double()
    a, b, group, order = random_features(8, seed=1), random_features(8, seed=2), torch.arange(8) // 2, torch.randperm(8)
    value = total_loss(objective, pair_of(a, b, group))
    permuted_loss = total_loss(objective, pair_of(permute(a, order), permute(b, order), group[order]))
    assert permuted_loss.item() == pytest.approx(value.item(), rel=1e-10)
    assert total_loss(objective, pair_of(a, a, group)) < total_loss(
        objective, pair_of(a, permute(a, order.roll(1)), group)
    )


@pytest.mark.parametrize("positives", ["single", "pairwise", "supcon"])
def test_half_precision_is_close_to_float32(positives):
    a, b = random_features(20, 32, seed=1, dtype=torch.float32), random_features(20, 32, seed=2, dtype=torch.float32)
    pair, objective = pair_of(a, b, torch.arange(20) // 2), InfoNCE(positives=positives)
    exact = total_loss(objective, pair)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = total_loss(objective, pair)
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=2e-2)
    logits = (pair.scores() / 0.07).bfloat16()
    assert infonce_loss(logits, torch.eye(20, dtype=torch.bool)).dtype == torch.float32


@pytest.mark.parametrize("size", [1e-30, 1e3])
def test_large_small_and_equal_logits(size):
    logits = torch.tensor([[size, -size], [size, -size]], requires_grad=True)
    value = infonce_loss(logits, EYE[:2, :2])
    assert value.item() == pytest.approx(math.log1p(math.exp(-2 * size)) + size)
    assert torch.autograd.grad(value, logits)[0].isfinite().all()
    assert infonce_loss(torch.zeros(6, 6), EYE).item() == pytest.approx(math.log(6))


def test_invalid_inputs_raise():
    invalid_settings: list[dict[str, Any]] = [
        {"temperature": math.inf},
        {"a_weight": -1.0},
        {"a_weight": 0.0, "b_weight": 0.0},
        {"label_smoothing": 1.0},
        {"gce_q": 1.5},
        {"gce_q": 0.5, "label_smoothing": 0.1},
        {"positives": "some"},
        {"stream_block": -1},
    ]
    for invalid in invalid_settings:
        with pytest.raises(RecipeError, match=next(iter(invalid))):
            InfoNCE(**invalid)
    with pytest.raises(RecipeError, match=r"stream_block = 8 needs positives = 'single'.*'pairwise'"):
        InfoNCE(stream_block=8, positives="pairwise")
    with pytest.raises(RecipeError, match="label_smoothing"):
        InfoNCE(stream_block=8, label_smoothing=0.1)
    with pytest.raises(RecipeError, match="gce_q = 0"):
        InfoNCE(stream_block=8, gce_q=0.5)
    with pytest.raises(InputError, match=r"positive_mask \(2, 2\)"):
        infonce_loss(torch.zeros(2, 3), EYE[:2, :2])
    with pytest.raises(InputError, match="no row has a positive among its candidates"):
        infonce_loss(torch.zeros(2, 2), EYE[:2, :2], ~EYE[:2, :2])
    with pytest.raises(InputError, match=r"weight is \(3,\)"):
        infonce_loss(torch.zeros(2, 2), EYE[:2, :2], weight=torch.ones(3))
    for weight in ([2.0, -1.0], [0.0, 0.0]):
        with pytest.raises(InputError, match="none negative, not all 0"):
            infonce_loss(torch.zeros(2, 2), EYE[:2, :2], weight=torch.tensor(weight))
    with pytest.raises(InputError, match="query has 2 rows and keys has 3"):
        streamed_infonce_loss(torch.ones(2, 2), torch.ones(3, 2), torch.tensor(1.0))


class InexactSimilarity(Cosine):
    """A similarity that cannot be streamed."""

    is_exact = False


def test_streaming_inexact_similarity_raises():
    a = random_features(3)
    pair = Pair(a, a, torch.arange(3), InexactSimilarity())
    with pytest.raises(InputError, match=r"InexactSimilarity is not exact.*stream_block = 0"):
        InfoNCE(stream_block=2).double().terms(pair)
