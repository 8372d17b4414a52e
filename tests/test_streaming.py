"""Streaming reductions match loops and dense formulas, and never allocate an (N, M) tensor."""

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


def make_tensor(*shape, seed=0, dtype=torch.float64, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype) * scale


def make_groups(n, m, num_groups=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(num_groups, (n,), generator=generator), torch.randint(num_groups, (m,), generator=generator)


def dense_logits(query, keys, scale, row_bias=None, column_bias=None, excluded_groups=None, include_diagonal=True):
    logits = scale * query @ keys.T
    logits = logits if row_bias is None else logits + row_bias[:, None]
    logits = logits if column_bias is None else logits + column_bias
    diagonal_mask = torch.eye(*logits.shape, dtype=torch.bool)
    excluded = (
        torch.zeros_like(diagonal_mask)
        if excluded_groups is None
        else (excluded_groups[0][:, None] == excluded_groups[1]) & ~diagonal_mask
    )
    return logits.masked_fill(excluded if include_diagonal else excluded | diagonal_mask, -math.inf)


def compute_gradients(value, inputs):
    return torch.autograd.grad(value, inputs)


def is_close(actual, expected, rtol, floor=1e-30):
    """Return whether the largest difference is at most `rtol` times the largest expected value."""
    actual, expected = actual.detach().double(), expected.detach().double()
    is_equal = actual == expected  # includes -inf
    max_difference = torch.where(is_equal, 0.0, (actual - expected).abs()).max()
    return (
        bool(max_difference <= rtol * expected[expected.isfinite()].abs().max().clamp(min=floor))
        if not is_equal.all()
        else True
    )


def naive_log_sum_exp(terms):
    return -math.inf if not terms else max(terms) + math.log(sum(math.exp(t - max(terms)) for t in terms))


sizes = st.integers(1, 7)


@given(
    sizes, sizes, st.integers(1, 9), st.floats(-4, 4), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 99)
)
def test_log_sum_exps_follow_their_formula(n, m, block, scale, biased, grouped, diagonal, seed):
    query, keys = make_tensor(n, 3, seed=seed), make_tensor(m, 3, seed=seed + 100)
    biases = make_tensor(n, seed=seed + 200, scale=3.0 * biased), make_tensor(m, seed=seed + 300, scale=3.0 * biased)
    groups = make_groups(n, m, seed=seed) if grouped else None
    row, column = log_sum_exps(
        query, keys, scale, *biases, excluded_groups=groups, include_diagonal=diagonal, block_size=block
    )
    if not biased:
        assert torch.equal(
            row,
            log_sum_exps(query, keys, scale, excluded_groups=groups, include_diagonal=diagonal, block_size=block)[0],
        )
    logit = {}
    for i in range(n):
        for j in range(m):
            if (i == j and diagonal) or (i != j and not (groups and groups[0][i] == groups[1][j])):
                logit[i, j] = scale * sum(p * q for p, q in zip(query[i].tolist(), keys[j].tolist(), strict=True))
                logit[i, j] += biases[0][i].item() + biases[1][j].item()
    for i in range(n):
        expected = naive_log_sum_exp([x for (r, _), x in logit.items() if r == i])
        assert row[i].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    for j in range(m):
        expected = naive_log_sum_exp([x for (_, c), x in logit.items() if c == j])
        assert column[j].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(sizes, sizes, st.integers(1, 9), st.floats(-9, 9), st.floats(-30, 30), st.booleans(), st.integers(0, 99))
def test_softplus_sum_follows_its_formula(n, m, block, scale, bias, grouped, seed):
    query, keys = make_tensor(n, 3, seed=seed), make_tensor(m, 3, seed=seed + 100)
    groups = make_groups(n, m, seed=seed) if grouped else None
    expected = 0.0
    for i in range(n):
        for j in range(m):
            logit = scale * sum(p * q for p, q in zip(query[i].tolist(), keys[j].tolist(), strict=True)) + bias
            signed_logit = -logit if groups and groups[0][i] == groups[1][j] else logit
            expected += max(signed_logit, 0.0) + math.log1p(math.exp(-abs(signed_logit)))
    actual = softplus_sum(query, keys, scale, bias, groups, block)
    assert actual.item() == pytest.approx(expected, rel=1e-12)
    with torch.no_grad():
        assert torch.equal(softplus_sum(query, keys, scale, bias, groups, block), actual)


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("diagonal", [False, True])
def test_gradients_of_log_sum_exps_pass_gradcheck(monkeypatch, stable, diagonal):
    if stable:
        monkeypatch.setattr(streaming, "_is_accurate", lambda *_: False)
    inputs = [
        make_tensor(6, 3),
        make_tensor(5, 3, seed=1),
        torch.tensor(1.7).double(),
        make_tensor(6, seed=2),
        make_tensor(5, seed=3),
    ]
    inputs = [x.requires_grad_() for x in inputs]
    groups = torch.tensor([0, 1, 1, 2, 3, 4]), torch.tensor([0, 1, 2, 3, 0])

    def value(*inputs):
        return log_sum_exps(*inputs, excluded_groups=groups, include_diagonal=diagonal, block_size=4)

    assert torch.autograd.gradcheck(value, inputs)
    assert torch.autograd.gradcheck(lambda q, k: log_sum_exps(q, k, block_size=4), inputs[:2])


def test_gradients_of_softplus_sum_pass_gradcheck():
    inputs = [make_tensor(6, 3), make_tensor(5, 3, seed=1), torch.tensor(2.5).double(), torch.tensor(-0.4).double()]
    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(lambda *x: softplus_sum(*x, groups=make_groups(6, 5), block_size=4), inputs)
    value = softplus_sum(*inputs, groups=make_groups(6, 5)) * 3
    once = torch.autograd.grad(value, inputs, retain_graph=True)
    assert all(torch.equal(x, y) for x, y in zip(once, compute_gradients(value, inputs), strict=True))


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 14.0, 100.0, 1e4])
@pytest.mark.parametrize("biased", [False, True])
def test_log_sum_exps_match_the_dense_formula_at_any_scale(dtype, relative, scale, biased):
    """float32 results are compared with float64, not with another float32 computation."""
    n, m, width = 70, 90, 16
    query, keys = (F.normalize(make_tensor(k, width, seed=k), dim=1).to(dtype).requires_grad_() for k in (n, m))
    biases = [make_tensor(k, seed=k + 1, scale=9, dtype=dtype).requires_grad_() for k in (n, m)] if biased else []
    factor = torch.tensor(scale, dtype=dtype, requires_grad=True)
    inputs = [query, keys, factor, *biases]
    truth = [x.detach().double().requires_grad_() for x in inputs]
    groups, upstream = make_groups(n, m, 20), (make_tensor(n, seed=5), make_tensor(m, seed=6))
    actual = log_sum_exps(*inputs, excluded_groups=groups, block_size=32)
    logits = dense_logits(*truth, excluded_groups=groups)
    expected = logits.logsumexp(1), logits.logsumexp(0)
    assert all(is_close(x, y, relative) for x, y in zip(actual, expected, strict=True))
    weighted_sums = [
        sum((x * u.to(x.dtype)).sum() for x, u in zip(pair, upstream, strict=True)) for pair in (actual, expected)
    ]
    # A logit of size s has an error of s · eps, which is the relative error of its exponential.
    allowed = 4 * relative * max(1.0, scale / 10)
    for x, y in zip(
        compute_gradients(weighted_sums[0], inputs), compute_gradients(weighted_sums[1], truth), strict=True
    ):
        assert is_close(x, y, allowed, floor=0.0 if x.dim() else 10.0)  # d_scale is a small difference of large terms


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("scale", "bias"), [(10.0, -10.0), (1.0, 0.0), (100.0, 5.0), (3000.0, -40.0), (0.0, 30.0)])
def test_softplus_sum_matches_the_dense_formula_at_any_scale(dtype, relative, scale, bias):
    query, keys = (F.normalize(make_tensor(k, 16, seed=k), dim=1).to(dtype).requires_grad_() for k in (70, 90))
    inputs = [query, keys, *(torch.tensor(x, dtype=dtype, requires_grad=True) for x in (scale, bias))]
    truth = [x.detach().double().requires_grad_() for x in inputs]
    row_groups, column_groups = make_groups(70, 90, 50)
    actual = softplus_sum(*inputs, groups=(row_groups, column_groups), block_size=32)
    logits = dense_logits(truth[0], truth[1], truth[2]) + truth[3]
    expected = -F.logsigmoid(torch.where(row_groups[:, None] == column_groups, logits, -logits)).sum()
    assert is_close(actual, expected, relative)
    for x, y in zip(compute_gradients(actual, inputs), compute_gradients(expected, truth), strict=True):
        assert is_close(x, y, 4 * relative * max(1.0, scale / 10))


def test_the_stable_path_is_taken_only_where_needed(monkeypatch):
    """The fast path is used at all common temperatures, and not used if it would lose precision."""
    stable_scales = []
    stable_log_sum_exps = streaming._stable_log_sum_exps
    monkeypatch.setattr(
        streaming, "_stable_log_sum_exps", lambda *a: stable_scales.append(scale) or stable_log_sum_exps(*a)
    )
    query, keys = (F.normalize(make_tensor(200, 32, seed=s, dtype=torch.float32), dim=1) for s in (1, 2))
    for scale in (1.0, 14.3, 100.0, 1e4):
        log_sum_exps(query, keys, scale)
    scale = 200.0  # every logit is far below the bound, so 2^(logit - bound) underflows
    row, _ = log_sum_exps(query.abs(), -query.abs(), scale)
    assert stable_scales == [1e4, 200.0]
    assert is_close(row, dense_logits(query.abs().double(), -query.abs().double(), scale).logsumexp(1), 1e-6)


@pytest.mark.parametrize("depth", range(60, 121, 5))
def test_sums_are_accurate_where_exponentials_underflow(depth):
    """Below e^-87 float32 is subnormal, then zero."""
    x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
    exact = dense_logits(x.double(), -x.double(), depth)
    row, column = log_sum_exps(x, -x, float(depth))
    assert is_close(row, exact.logsumexp(1), 1e-6)
    assert is_close(column, exact.logsumexp(0), 1e-6)
    bias = torch.tensor([0.0, -depth, -depth - 0.7])
    groups = torch.tensor([0, 1, 2]), torch.tensor([1, 1, 0])  # row 1 includes only its own and the last column
    logits = dense_logits(0.1 * x, 0.1 * x, 1.0, column_bias=bias, excluded_groups=groups).double()
    row, _ = log_sum_exps(0.1 * x, 0.1 * x, 1.0, column_bias=bias, excluded_groups=groups)
    assert (row - logits.logsumexp(1)).abs().max() < 1e-5
    assert logits[1, 0] == -math.inf  # no large term hides the small ones


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_block_size_and_order_do_not_change_the_sums(block_size, other_block_size, seed):
    query, keys, groups = (
        make_tensor(23, 4, seed=seed),
        make_tensor(23, 4, seed=seed + 1),
        make_groups(23, 23, 6, seed)[0],
    )
    first = log_sum_exps(query, keys, 3.0, excluded_groups=(groups, groups), block_size=block_size)
    second = log_sum_exps(query, keys, 3.0, excluded_groups=(groups, groups), block_size=other_block_size)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(seed))
    permuted = log_sum_exps(
        query[order], keys[order], 3.0, excluded_groups=(groups[order], groups[order]), block_size=other_block_size
    )
    for x, y, z in zip(first, second, permuted, strict=True):
        assert torch.allclose(x, y, rtol=1e-12)
        assert torch.allclose(x[order], z, rtol=1e-12)


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that is created."""

    num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.num_elements = max(self.num_elements, tensor.numel())
        return out


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_the_full_matrix_is_never_allocated(scale):
    query, keys = make_tensor(400, 8).requires_grad_(), make_tensor(500, 8, seed=1).requires_grad_()
    groups = torch.arange(400) // 2, torch.arange(500) // 2
    with LargestTensor() as largest:
        torch.cat(log_sum_exps(query, keys, scale, excluded_groups=groups, block_size=32)).sum().backward()
        softplus_sum(query, keys, scale, -1.0, groups, block_size=32).backward()
    assert 0 < largest.num_elements <= 500 * 8
    with LargestTensor() as largest:
        (query @ keys.T).sum().backward()
    assert largest.num_elements == 400 * 500  # so that the check can fail


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_computed_in_float32(dtype, autocast):
    query, keys = (make_tensor(30, 8, seed=s, dtype=dtype).requires_grad_() for s in (1, 2))
    groups = make_groups(30, 30, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        row, column = log_sum_exps(query, keys, 2.0, excluded_groups=groups, block_size=8)
        total = softplus_sum(query, keys, 2.0, -1.0, groups, block_size=8)
    assert {row.dtype, column.dtype, total.dtype} == {torch.float32}
    logits = dense_logits(query.double(), keys.double(), 2.0, excluded_groups=groups)
    assert is_close(row, logits.logsumexp(1), 1e-6)
    assert is_close(column, logits.logsumexp(0), 1e-6)
    d_query, d_keys = compute_gradients(row.sum() + column.sum() + total, (query, keys))
    assert d_query.dtype == d_keys.dtype == dtype
    assert d_query.isfinite().all()


def test_fully_excluded_rows_are_minus_infinity_with_zero_gradient():
    query, keys = make_tensor(3, 2).requires_grad_(), make_tensor(3, 2, seed=1).requires_grad_()
    groups = torch.tensor([0, 0, 1])
    row, column = log_sum_exps(query[:2], keys[:2], excluded_groups=(groups[:2], groups[:2]), include_diagonal=False)
    assert row.tolist() == column.tolist() == [-math.inf] * 2
    row, column = log_sum_exps(query, keys, excluded_groups=(groups, torch.tensor([0, 0, 0])), include_diagonal=False)
    assert row[:2].tolist() == [-math.inf] * 2
    grads = compute_gradients(F.softplus(row).sum() + F.softplus(column).sum(), (query, keys))
    assert all(g.isfinite().all() for g in grads)
    assert grads[0][:2].abs().max() == 0


def test_equal_and_tiny_scores():
    zeros = torch.zeros(5, 3, requires_grad=True)
    row, column = log_sum_exps(zeros, zeros, 100.0, block_size=2)
    assert row.tolist() == pytest.approx([math.log(5)] * 5)
    assert compute_gradients(row.sum() + column.sum(), [zeros])[0].abs().max() == 0
    tiny = make_tensor(5, 3, dtype=torch.float32, scale=1e-30)
    assert log_sum_exps(tiny, tiny)[0].tolist() == pytest.approx([math.log(5)] * 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": torch.ones(4, 2)}, r"query \(3, 3\), keys \(4, 2\)"),
        ({"query": torch.ones(0, 3)}, "none empty"),
        ({"keys": torch.ones(4, 3, dtype=torch.float64)}, "the same floating-point type"),
        ({"query": torch.full((3, 3), math.nan)}, "query contains NaN"),
        ({"keys": torch.full((4, 3), math.inf)}, "keys contains NaN or infinity"),
        ({"block_size": 0}, "block_size = 0"),
        ({"scale": math.nan}, "scale"),
        ({"scale": 1e38, "query": torch.full((3, 3), 1e20)}, "scale"),
    ],
)
@pytest.mark.parametrize("kernel", [log_sum_exps, softplus_sum])
def test_errors_name_invalid_arguments(kernel, change, message):
    with pytest.raises(InputError, match=message):
        kernel(**{"query": torch.ones(3, 3), "keys": torch.ones(4, 3)} | change)


def test_errors_name_invalid_groups_and_biases():
    query, keys, group = torch.ones(3, 3), torch.ones(4, 3), torch.arange(3)
    with pytest.raises(InputError, match=r"groups are \(3,\) and \(3,\); need \(3,\) and \(4,\)"):
        log_sum_exps(query, keys, excluded_groups=(group, group))
    with pytest.raises(InputError, match=r"row_bias is \(4,\); need \(3,\)"):
        log_sum_exps(query, keys, row_bias=torch.zeros(4))
    with pytest.raises(InputError, match="column_bias"):
        log_sum_exps(query, keys, column_bias=torch.full((4,), math.nan))
