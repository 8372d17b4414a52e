"""Precision and shape checks of score matrices."""

import pytest
import torch

from triptych.errors import InputError
from triptych.objectives.scores import check_scores, upcast_half


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_upcast_half_changes_half_precision_only(dtype):
    x = torch.ones(3, dtype=dtype)
    assert upcast_half(x).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (upcast_half(x) is x) == (dtype in (torch.float32, torch.float64))


def test_valid_scores_pass():
    check_scores(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    check_scores(torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.bool), square=True)
    check_scores(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), square=True)


@pytest.mark.parametrize(
    ("shape", "mask", "square", "message"),
    [
        ((2,), torch.ones(2, dtype=torch.bool), False, r"scores \(2,\).*need \(N, M\)"),
        ((0, 3), torch.ones(0, 3, dtype=torch.bool), False, r"scores \(0, 3\)"),
        ((2, 3), torch.ones(2, 3, dtype=torch.bool), True, r"scores \(2, 3\).*need \(N, N\)"),
        ((2, 3), torch.ones(3, 2, dtype=torch.bool), False, r"candidate_mask \(3, 2\)"),
        ((2, 3), torch.ones(2, 3), False, r"candidate_mask \(2, 3\) torch.float32.*bool mask"),
    ],
)
def test_invalid_scores_raise(shape, mask, square, message):
    with pytest.raises(InputError, match=message):
        check_scores(torch.zeros(shape), mask, "candidate_mask", square)
