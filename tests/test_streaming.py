"""The streamed sums, against loops and the dense formulas, and the promise that no (N, M) tensor is ever made."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from triptych import streaming
from triptych.errors import InputError
from triptych.streaming import log_sum_exps, softplus_sum


def made(*shape, seed=0, dtype=torch.float64, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype) * scale


def groups_of(n, m, kinds=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(kinds, (n,), generator=generator), torch.randint(kinds, (m,), generator=generator)


def dense_logits(query, keys, scale, row_bias=None, column_bias=None, left_out=None, diagonal=True):
    logits = scale * query @ keys.T
    logits = logits if row_bias is None else logits + row_bias[:, None]
    logits = logits if column_bias is None else logits + column_bias
    own = torch.eye(*logits.shape, dtype=torch.bool)
    gone = torch.zeros_like(own) if left_out is None else (left_out[0][:, None] == left_out[1]) & ~own
    return logits.masked_fill(gone if diagonal else gone | own, -math.inf)


def gradients(value, inputs):
    return torch.autograd.grad(value, inputs)


def close(found, expected, relative, least=1e-30):
    """As far apart as `relative` of the largest: what a float can promise of a sum."""
    found, expected = found.detach().double(), expected.detach().double()
    same = found == expected  # -inf is
    gap = torch.where(same, 0.0, (found - expected).abs()).max()
    return (
        bool(gap <= relative * expected[expected.isfinite()].abs().max().clamp(min=least)) if not same.all() else True
    )


def naive_log_sum(terms):
    return -math.inf if not terms else max(terms) + math.log(sum(math.exp(t - max(terms)) for t in terms))


sizes = st.integers(1, 7)


@given(
    sizes, sizes, st.integers(1, 9), st.floats(-4, 4), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 99)
)
def test_log_sum_exps_follow_their_formula(n, m, block, scale, biased, grouped, diagonal, seed):
    query, keys = made(n, 3, seed=seed), made(m, 3, seed=seed + 100)
    biases = made(n, seed=seed + 200, scale=3.0 * biased), made(m, seed=seed + 300, scale=3.0 * biased)
    groups = groups_of(n, m, seed=seed) if grouped else None
    row, column = log_sum_exps(query, keys, scale, *biases, left_out=groups, diagonal=diagonal, block=block)
    if not biased:
        assert torch.equal(row, log_sum_exps(query, keys, scale, left_out=groups, diagonal=diagonal, block=block)[0])
    logit = {}
    for i in range(n):
        for j in range(m):
            if (i == j and diagonal) or (i != j and not (groups and groups[0][i] == groups[1][j])):
                logit[i, j] = scale * sum(p * q for p, q in zip(query[i].tolist(), keys[j].tolist(), strict=True))
                logit[i, j] += biases[0][i].item() + biases[1][j].item()
    for i in range(n):
        expected = naive_log_sum([x for (r, _), x in logit.items() if r == i])
        assert row[i].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    for j in range(m):
        expected = naive_log_sum([x for (_, c), x in logit.items() if c == j])
        assert column[j].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(sizes, sizes, st.integers(1, 9), st.floats(-9, 9), st.floats(-30, 30), st.booleans(), st.integers(0, 99))
def test_softplus_sum_follows_its_formula(n, m, block, scale, bias, grouped, seed):
    query, keys = made(n, 3, seed=seed), made(m, 3, seed=seed + 100)
    groups = groups_of(n, m, seed=seed) if grouped else None
    expected = 0.0
    for i in range(n):
        for j in range(m):
            logit = scale * sum(p * q for p, q in zip(query[i].tolist(), keys[j].tolist(), strict=True)) + bias
            wrong = -logit if groups and groups[0][i] == groups[1][j] else logit
            expected += max(wrong, 0.0) + math.log1p(math.exp(-abs(wrong)))
    found = softplus_sum(query, keys, scale, bias, groups, block)
    assert found.item() == pytest.approx(expected, rel=1e-12)
    with torch.no_grad():
        assert torch.equal(softplus_sum(query, keys, scale, bias, groups, block), found)


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("diagonal", [False, True])
def test_gradients_of_log_sum_exps_are_right(monkeypatch, careful, diagonal):
    if careful:
        monkeypatch.setattr(streaming, "_all_digits", lambda *_: False)
    inputs = [made(6, 3), made(5, 3, seed=1), torch.tensor(1.7).double(), made(6, seed=2), made(5, seed=3)]
    inputs = [x.requires_grad_() for x in inputs]
    groups = torch.tensor([0, 1, 1, 2, 3, 4]), torch.tensor([0, 1, 2, 3, 0])

    def value(*inputs):
        return log_sum_exps(*inputs, left_out=groups, diagonal=diagonal, block=4)

    assert torch.autograd.gradcheck(value, inputs)
    assert torch.autograd.gradcheck(lambda q, k: log_sum_exps(q, k, block=4), inputs[:2])


def test_gradients_of_softplus_sum_are_right():
    inputs = [made(6, 3), made(5, 3, seed=1), torch.tensor(2.5).double(), torch.tensor(-0.4).double()]
    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(lambda *x: softplus_sum(*x, groups=groups_of(6, 5), block=4), inputs)
    value = softplus_sum(*inputs, groups=groups_of(6, 5)) * 3
    once = torch.autograd.grad(value, inputs, retain_graph=True)
    assert all(torch.equal(x, y) for x, y in zip(once, gradients(value, inputs), strict=True))


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 14.0, 100.0, 1e4])
@pytest.mark.parametrize("biased", [False, True])
def test_the_dense_numbers_come_out_at_any_scale(dtype, relative, scale, biased):
    """float32 is held against float64: two roundings of one number may differ, the truth may not."""
    n, m, width = 70, 90, 16
    query, keys = (F.normalize(made(k, width, seed=k), dim=1).to(dtype).requires_grad_() for k in (n, m))
    biases = [made(k, seed=k + 1, scale=9, dtype=dtype).requires_grad_() for k in (n, m)] if biased else []
    factor = torch.tensor(scale, dtype=dtype, requires_grad=True)
    inputs = [query, keys, factor, *biases]
    truth = [x.detach().double().requires_grad_() for x in inputs]
    groups, upstream = groups_of(n, m, 20), (made(n, seed=5), made(m, seed=6))
    found = log_sum_exps(*inputs, left_out=groups, block=32)
    logits = dense_logits(*truth, left_out=groups)
    expected = logits.logsumexp(1), logits.logsumexp(0)
    assert all(close(x, y, relative) for x, y in zip(found, expected, strict=True))
    weigh = [sum((x * u.to(x.dtype)).sum() for x, u in zip(pair, upstream, strict=True)) for pair in (found, expected)]
    # A logit of size s has an error of s · eps, and its exponential that relative error: nobody can do better.
    allowed = 4 * relative * max(1.0, scale / 10)
    for x, y in zip(gradients(weigh[0], inputs), gradients(weigh[1], truth), strict=True):
        assert close(x, y, allowed, least=0.0 if x.dim() else 10.0)  # d_scale is what remains of large terms


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("scale", "bias"), [(10.0, -10.0), (1.0, 0.0), (100.0, 5.0), (3000.0, -40.0), (0.0, 30.0)])
def test_the_dense_softplus_comes_out_at_any_scale(dtype, relative, scale, bias):
    query, keys = (F.normalize(made(k, 16, seed=k), dim=1).to(dtype).requires_grad_() for k in (70, 90))
    inputs = [query, keys, *(torch.tensor(x, dtype=dtype, requires_grad=True) for x in (scale, bias))]
    truth = [x.detach().double().requires_grad_() for x in inputs]
    left, right = groups_of(70, 90, 50)
    found = softplus_sum(*inputs, groups=(left, right), block=32)
    logits = dense_logits(truth[0], truth[1], truth[2]) + truth[3]
    expected = -F.logsigmoid(torch.where(left[:, None] == right, logits, -logits)).sum()
    assert close(found, expected, relative)
    for x, y in zip(gradients(found, inputs), gradients(expected, truth), strict=True):
        assert close(x, y, 4 * relative * max(1.0, scale / 10))


def test_range_decides_how_it_is_summed(monkeypatch):
    """The quick way is taken at any temperature in use, and left where it would lose digits."""
    careful = []
    real = streaming._careful_lses
    monkeypatch.setattr(streaming, "_careful_lses", lambda *a: careful.append(scale) or real(*a))
    query, keys = (F.normalize(made(200, 32, seed=s, dtype=torch.float32), dim=1) for s in (1, 2))
    for scale in (1.0, 14.3, 100.0, 1e4):
        log_sum_exps(query, keys, scale)
    scale = 200.0  # every logit is far below the bound, so 2^(logit - bound) would be nothing
    row, _ = log_sum_exps(query.abs(), -query.abs(), scale)
    assert careful == [1e4, 200.0]
    assert close(row, dense_logits(query.abs().double(), -query.abs().double(), scale).logsumexp(1), 1e-6)


@pytest.mark.parametrize("depth", range(60, 121, 5))
def test_no_digit_is_lost_where_exponentials_vanish(depth):
    """Below e^-87 float32 has fewer and fewer digits, then none: no sum may be made of such."""
    x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
    exact = dense_logits(x.double(), -x.double(), depth)
    row, column = log_sum_exps(x, -x, float(depth))
    assert close(row, exact.logsumexp(1), 1e-6)
    assert close(column, exact.logsumexp(0), 1e-6)
    bias = torch.tensor([0.0, -depth, -depth - 0.7])
    groups = torch.tensor([0, 1, 2]), torch.tensor([1, 1, 0])  # row 1 counts its own column and the last alone
    logits = dense_logits(0.1 * x, 0.1 * x, 1.0, column_bias=bias, left_out=groups).double()
    row, _ = log_sum_exps(0.1 * x, 0.1 * x, 1.0, column_bias=bias, left_out=groups)
    assert (row - logits.logsumexp(1)).abs().max() < 1e-5
    assert logits[1, 0] == -math.inf  # so nothing large hides the small


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_neither_block_nor_order_changes_the_numbers(block, other, seed):
    query, keys, groups = made(23, 4, seed=seed), made(23, 4, seed=seed + 1), groups_of(23, 23, 6, seed)[0]
    one = log_sum_exps(query, keys, 3.0, left_out=(groups, groups), block=block)
    two = log_sum_exps(query, keys, 3.0, left_out=(groups, groups), block=other)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(seed))
    three = log_sum_exps(query[order], keys[order], 3.0, left_out=(groups[order], groups[order]), block=other)
    for x, y, z in zip(one, two, three, strict=True):
        assert torch.allclose(x, y, rtol=1e-12)
        assert torch.allclose(x[order], z, rtol=1e-12)


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor anyone made."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return out


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_the_matrix_never_exists(scale):
    query, keys = made(400, 8).requires_grad_(), made(500, 8, seed=1).requires_grad_()
    groups = torch.arange(400) // 2, torch.arange(500) // 2
    with Largest() as seen:
        torch.cat(log_sum_exps(query, keys, scale, left_out=groups, block=32)).sum().backward()
        softplus_sum(query, keys, scale, -1.0, groups, block=32).backward()
    assert 0 < seen.numbers <= 500 * 8
    with Largest() as seen:
        (query @ keys.T).sum().backward()
    assert seen.numbers == 400 * 500  # so it can see one


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_worked_on_in_float32(dtype, autocast):
    query, keys = (made(30, 8, seed=s, dtype=dtype).requires_grad_() for s in (1, 2))
    groups = groups_of(30, 30, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        row, column = log_sum_exps(query, keys, 2.0, left_out=groups, block=8)
        total = softplus_sum(query, keys, 2.0, -1.0, groups, block=8)
    assert {row.dtype, column.dtype, total.dtype} == {torch.float32}
    logits = dense_logits(query.double(), keys.double(), 2.0, left_out=groups)
    assert close(row, logits.logsumexp(1), 1e-6)
    assert close(column, logits.logsumexp(0), 1e-6)
    d_query, d_keys = gradients(row.sum() + column.sum() + total, (query, keys))
    assert d_query.dtype == d_keys.dtype == dtype
    assert d_query.isfinite().all()


def test_where_nothing_counts_it_is_minus_infinity_without_a_gradient():
    query, keys = made(3, 2).requires_grad_(), made(3, 2, seed=1).requires_grad_()
    groups = torch.tensor([0, 0, 1])
    row, column = log_sum_exps(query[:2], keys[:2], left_out=(groups[:2], groups[:2]), diagonal=False)
    assert row.tolist() == column.tolist() == [-math.inf] * 2
    row, column = log_sum_exps(query, keys, left_out=(groups, torch.tensor([0, 0, 0])), diagonal=False)
    assert row[:2].tolist() == [-math.inf] * 2
    grads = gradients(F.softplus(row).sum() + F.softplus(column).sum(), (query, keys))
    assert all(g.isfinite().all() for g in grads)
    assert grads[0][:2].abs().max() == 0


def test_equal_and_tiny_scores():
    zeros = torch.zeros(5, 3, requires_grad=True)
    row, column = log_sum_exps(zeros, zeros, 100.0, block=2)
    assert row.tolist() == pytest.approx([math.log(5)] * 5)
    assert gradients(row.sum() + column.sum(), [zeros])[0].abs().max() == 0
    tiny = made(5, 3, dtype=torch.float32, scale=1e-30)
    assert log_sum_exps(tiny, tiny)[0].tolist() == pytest.approx([math.log(5)] * 5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"keys": torch.ones(4, 2)}, r"query \(3, 3\), keys \(4, 2\)"),
        ({"query": torch.ones(0, 3)}, "none empty"),
        ({"keys": torch.ones(4, 3, dtype=torch.float64)}, "one floating type"),
        ({"query": torch.full((3, 3), math.nan)}, "query holds NaN"),
        ({"keys": torch.full((4, 3), math.inf)}, "keys holds NaN or infinity"),
        ({"block": 0}, "block = 0"),
        ({"scale": math.nan}, "scale"),
        ({"scale": 1e38, "query": torch.full((3, 3), 1e20)}, "scale"),
    ],
)
@pytest.mark.parametrize("kernel", [log_sum_exps, softplus_sum])
def test_what_makes_no_sense_is_named(kernel, change, words):
    with pytest.raises(InputError, match=words):
        kernel(**{"query": torch.ones(3, 3), "keys": torch.ones(4, 3)} | change)


def test_wrong_groups_and_biases_are_named():
    query, keys, group = torch.ones(3, 3), torch.ones(4, 3), torch.arange(3)
    with pytest.raises(InputError, match=r"groups are \(3,\) and \(3,\); need \(3,\) and \(4,\)"):
        log_sum_exps(query, keys, left_out=(group, group))
    with pytest.raises(InputError, match=r"row_bias is \(4,\); need \(3,\)"):
        log_sum_exps(query, keys, row_bias=torch.zeros(4))
    with pytest.raises(InputError, match="column_bias"):
        log_sum_exps(query, keys, column_bias=torch.full((4,), math.nan))
