"""InfoNCE with one and several right answers, dense and streamed, against loops."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.objectives.test_objectives import pair_of, permuted, total
from tests.similarities.test_similarities import features
from triptych.contracts import Features, Pair
from triptych.errors import InputError, RecipeError
from triptych.objectives.infonce import InfoNCE, infonce, streamed_infonce
from triptych.similarities.cosine import Cosine

KINDS: list[dict[str, Any]] = [{}, {"several": "each"}, {"several": "all"}, {"label_smoothing": 0.1}, {"lenience": 0.7}]
KINDS += [{"block": 3}]
EYE = torch.eye(6, dtype=torch.bool)


def made(*shape, seed=0, scale=2.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def masks(n, m, seed):
    generator = torch.Generator().manual_seed(seed)
    positive = torch.rand(n, m, generator=generator) < 0.3
    counted = torch.rand(n, m, generator=generator) < 0.8
    positive[0, 0] = counted[0, 0] = True
    return positive, counted


def naive(logits, positive, counted, together, weight, smoothing, lenience=0.0):
    """Pair by pair, from the docstring."""
    logits, positive, counted = logits.tolist(), positive.tolist(), counted.tolist()
    rows = []
    for i in range(len(logits)):
        seen = [j for j in range(len(logits[i])) if counted[i][j]]
        losses = []
        for p in (j for j in seen if positive[i][j]):
            among = seen if together else [j for j in seen if j == p or not positive[i][j]]
            normal = math.log(sum(math.exp(logits[i][j]) for j in among))
            surprise = {j: normal - logits[i][j] for j in among}
            loss = (1 - smoothing) * surprise[p] + smoothing * sum(surprise.values()) / len(among)
            losses.append((1 - math.exp(-surprise[p]) ** lenience) / lenience if lenience else loss)
        rows.append(losses)
    if together:
        share = [(weight[i], sum(losses) / len(losses)) for i, losses in enumerate(rows) if losses]
    else:
        share = [(weight[i], loss) for i, losses in enumerate(rows) for loss in losses]
    return sum(w * x for w, x in share) / sum(w for w, _ in share)


@settings(deadline=None, max_examples=80)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 0.6]),
    st.integers(0, 999),
)
def test_infonce_follows_its_formula(n, m, together, weighted, smoothing, seed):
    logits, (positive, counted) = made(n, m, seed=seed), masks(n, m, seed)
    weight = made(n, seed=seed + 1).abs() if weighted else torch.ones(n)
    found = infonce(logits, positive, counted, together, weight if weighted else None, smoothing)
    expected = naive(logits, positive, counted, together, weight.tolist(), smoothing)
    assert found.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)
    unread = infonce(logits.masked_fill(~counted, -math.inf), positive, counted, together)
    assert torch.equal(unread, infonce(logits, positive, counted, together))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 6), st.booleans(), st.sampled_from([0.1, 0.7, 1.0]), st.integers(0, 999))
def test_lenience_follows_its_formula(n, m, together, lenience, seed):
    logits, (positive, counted) = made(n, m, seed=seed), masks(n, m, seed)
    found = infonce(logits, positive, counted, together, lenience=lenience)
    expected = naive(logits, positive, counted, together, [1.0] * n, 0.0, lenience)
    assert found.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)
    nearly_none = infonce(logits, positive, counted, together, lenience=1e-9)
    assert nearly_none.item() == pytest.approx(infonce(logits, positive, counted, together).item(), rel=1e-6, abs=1e-7)


def test_with_lenience_a_pair_that_does_not_fit_at_all_pulls_no_more():
    pulls = []
    for lenience in (0.0, 0.7):
        logits = made(6, 6)
        logits[0, 0] = -40.0  # surely wrong
        logits.requires_grad_()
        infonce(logits, EYE, lenience=lenience).backward()
        assert logits.grad is not None
        pulls.append(logits.grad[0, 0].abs().item())
    assert pulls[0] > 0.1
    assert pulls[1] < 1e-9


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradients_are_right(together, smoothing):
    positive, counted = masks(5, 6, 3)
    logits, weight = made(5, 6).requires_grad_(), made(5, seed=1).abs()

    def value(logits):
        return infonce(logits, positive, counted, together, weight, smoothing)

    assert torch.autograd.gradcheck(value, (logits,))


def test_index_labels_equal_the_identity_as_soft_labels():
    """And row softmax is not column softmax, which is why there are two directions."""
    logits = made(6, 6)
    truth = torch.arange(6)
    assert infonce(logits, EYE).item() == pytest.approx(F.cross_entropy(logits, truth).item(), rel=1e-12)
    assert infonce(logits, EYE).item() == pytest.approx(F.cross_entropy(logits, EYE.double()).item(), rel=1e-12)
    smooth = infonce(logits, EYE, label_smoothing=0.3)
    assert smooth.item() == pytest.approx(F.cross_entropy(logits, truth, label_smoothing=0.3).item(), rel=1e-12)
    assert infonce(logits, EYE).item() != pytest.approx(infonce(logits.T, EYE).item(), rel=1e-3)
    assert infonce(logits + 5.0, EYE).item() == pytest.approx(infonce(logits, EYE).item(), rel=1e-12)


def test_weights_are_class_weights():
    logits, weight, truth = made(6, 6), made(6, seed=1).abs(), torch.arange(6)
    expected = F.cross_entropy(logits, truth, weight=weight)
    assert infonce(logits, EYE, weight=weight).item() == pytest.approx(expected.item(), rel=1e-12)


def test_hard_negatives_make_it_rectangular():
    query, keys = made(4, 5, scale=1.0), made(12, 5, seed=1, scale=1.0)
    positive = torch.zeros(4, 12, dtype=torch.bool)
    positive[torch.arange(4), torch.arange(4) * 3] = True
    expected = F.cross_entropy(query @ keys.T, torch.arange(4) * 3)
    assert infonce(query @ keys.T, positive).item() == pytest.approx(expected.item(), rel=1e-12)


def test_a_sure_answer_keeps_its_digits():
    """log-sum-exp minus logit would be 0 here in float32."""
    logits = torch.tensor([[60.0, 20.0], [20.0, 60.0]])
    assert infonce(logits, EYE[:2, :2]).item() == pytest.approx(math.exp(-40), rel=1e-5, abs=0)
    root = 60.0**0.5
    query = torch.tensor([[root, 0.0], [20 / root, (60 - 400 / 60) ** 0.5]])
    streamed = streamed_infonce(query, query, torch.tensor(1.0))
    assert [x.item() for x in streamed] == pytest.approx([math.exp(-40)] * 2, rel=1e-3, abs=0)


@pytest.mark.parametrize("several", ["own", "each", "all"])
def test_several_right_answers_are_what_the_recipe_says(several):
    group = torch.tensor([0, 1, 1, 2, 0, 3, 1])
    pair = pair_of(features(7, seed=1), features(7, seed=2), group)
    logits, match = pair.scores() / 0.2, pair.match
    eye = torch.eye(7, dtype=torch.bool)
    positive, counted = (eye, ~match | eye) if several == "own" else (match, torch.ones_like(match))
    terms = InfoNCE(temperature=0.2, several=several, a_weight=0.7, b_weight=0.1).double()(pair)
    for name, share, turn in (("a_to_b", 0.7, lambda x: x), ("b_to_a", 0.1, lambda x: x.T)):
        expected = naive(turn(logits), turn(positive), turn(counted), several == "all", [1.0] * 7, 0.0)
        assert terms[name].item() == pytest.approx(share * expected, rel=1e-6)


def test_without_other_right_answers_the_choice_does_not_matter():
    pair = pair_of(features(6, seed=1), features(6, seed=2))
    values = [total(InfoNCE(several=several).double(), pair).item() for several in ("own", "each", "all")]
    assert values == pytest.approx([values[0]] * 3, rel=1e-10)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("group", [[0], [0, 0, 0], [0, 0, 1], [0, 1, 2]])
def test_any_grouping_has_a_finite_loss_and_gradient(kind, group):
    objective = InfoNCE(**kind).double()
    a = features(len(group), seed=1)
    x = a.embedding.requires_grad_()
    value = total(objective, pair_of(Features(x, a.parts, a.mask), features(len(group), seed=2), torch.tensor(group)))
    grads = torch.autograd.grad(value, (x, objective.log_scale))
    assert all(found.isfinite().all() for found in (value, *grads))
    if len(set(group)) == 1 and kind.get("several") != "all":
        assert value.item() == pytest.approx(0, abs=1e-12)  # nothing wrong to tell it from


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 11), st.floats(0.01, 2.0), st.integers(0, 99)
)
def test_streamed_is_dense(group, block, temperature, seed):
    n = len(group)
    a, b = features(n, seed=seed), features(n, seed=seed + 100)
    x, y = a.embedding.requires_grad_(), b.embedding.requires_grad_()
    pair = pair_of(Features(x, a.parts, a.mask), Features(y, b.parts, b.mask), torch.tensor(group))
    found = []
    for size in (0, block):
        objective = InfoNCE(temperature=temperature, block=size).double()
        terms = objective(pair)
        grads = torch.autograd.grad(total(objective, pair), (x, y, objective.log_scale))
        found.append([*terms.values(), *grads])
    for one, two in zip(*found, strict=True):
        assert torch.allclose(one, two, rtol=1e-9, atol=1e-12)


def test_streamed_is_dense_in_float32():
    a, b = features(300, 32, seed=1, dtype=torch.float32), features(300, 32, seed=2, dtype=torch.float32)
    pair = pair_of(a, b, torch.arange(300) // 3)
    dense, streamed = (InfoNCE(block=block)(pair) for block in (0, 128))
    for name in dense:
        assert streamed[name].item() == pytest.approx(dense[name].item(), rel=1e-6)


def test_streaming_never_makes_the_matrix_of_right_answers():
    pair = pair_of(features(4, seed=1), features(4, seed=2), torch.tensor([5, 3, 3, 9]))
    InfoNCE(block=2).double()(pair)
    assert "match" not in vars(pair)
    InfoNCE().double()(pair)
    assert "match" in vars(pair)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_order_changes_nothing_and_truth_beats_shuffled(kind):
    objective = InfoNCE(**kind).double()
    a, b, group, order = features(8, seed=1), features(8, seed=2), torch.arange(8) // 2, torch.randperm(8)
    value = total(objective, pair_of(a, b, group))
    turned = total(objective, pair_of(permuted(a, order), permuted(b, order), group[order]))
    assert turned.item() == pytest.approx(value.item(), rel=1e-10)
    assert total(objective, pair_of(a, a, group)) < total(objective, pair_of(a, permuted(a, order.roll(1)), group))


@pytest.mark.parametrize("several", ["own", "each", "all"])
def test_half_precision_is_close_to_float32(several):
    a, b = features(20, 32, seed=1, dtype=torch.float32), features(20, 32, seed=2, dtype=torch.float32)
    pair, objective = pair_of(a, b, torch.arange(20) // 2), InfoNCE(several=several)
    exact = total(objective, pair)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = total(objective, pair)
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=2e-2)
    logits = (pair.scores() / 0.07).bfloat16()
    assert infonce(logits, torch.eye(20, dtype=torch.bool)).dtype == torch.float32


@pytest.mark.parametrize("size", [1e-30, 1e3])
def test_huge_and_tiny_and_equal_logits(size):
    logits = torch.tensor([[size, -size], [size, -size]], requires_grad=True)
    value = infonce(logits, EYE[:2, :2])
    assert value.item() == pytest.approx(math.log1p(math.exp(-2 * size)) + size)
    assert torch.autograd.grad(value, logits)[0].isfinite().all()
    assert infonce(torch.zeros(6, 6), EYE).item() == pytest.approx(math.log(6))


def test_what_makes_no_sense_is_named():
    wrongs: list[dict[str, Any]] = [
        {"temperature": math.inf},
        {"a_weight": -1.0},
        {"a_weight": 0.0, "b_weight": 0.0},
        {"label_smoothing": 1.0},
        {"lenience": 1.5},
        {"lenience": 0.5, "label_smoothing": 0.1},
        {"several": "some"},
        {"block": -1},
    ]
    for wrong in wrongs:
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            InfoNCE(**wrong)
    with pytest.raises(RecipeError, match=r"block = 8 streams only with several = 'own'.*'each'"):
        InfoNCE(block=8, several="each")
    with pytest.raises(RecipeError, match="label_smoothing"):
        InfoNCE(block=8, label_smoothing=0.1)
    with pytest.raises(RecipeError, match="lenience = 0"):
        InfoNCE(block=8, lenience=0.5)
    with pytest.raises(InputError, match=r"positive \(2, 2\)"):
        infonce(torch.zeros(2, 3), EYE[:2, :2])
    with pytest.raises(InputError, match="nothing to find"):
        infonce(torch.zeros(2, 2), EYE[:2, :2], ~EYE[:2, :2])
    with pytest.raises(InputError, match=r"weight is \(3,\)"):
        infonce(torch.zeros(2, 2), EYE[:2, :2], weight=torch.ones(3))
    with pytest.raises(InputError, match="query has 2 rows and keys has 3"):
        streamed_infonce(torch.ones(2, 2), torch.ones(3, 2), torch.tensor(1.0))


class Inexact(Cosine):
    """A similarity that cannot be streamed."""

    exact = False


def test_what_cannot_be_streamed_says_why():
    a = features(3)
    pair = Pair(a, a, torch.arange(3), Inexact())
    with pytest.raises(InputError, match=r"Inexact is not exact.*block = 0"):
        InfoNCE(block=2).double()(pair)
