"""The MLP head: two layers with GELU and dropout."""

import math

import pytest
import torch

from triptych.errors import RecipeError
from triptych.heads.mlp import MLPHead


def test_the_head_matches_a_loop_over_its_formula():
    head, x = MLPHead(3, 2, hidden_dim=4).double().eval(), torch.randn(3, dtype=torch.float64)
    first, first_bias, second, second_bias = (p.tolist() for p in head.parameters())
    hidden = [
        sum(w * v for w, v in zip(row, x.tolist(), strict=True)) + b for row, b in zip(first, first_bias, strict=True)
    ]
    hidden = [h * 0.5 * (1 + math.erf(h / math.sqrt(2))) for h in hidden]
    expected = [
        sum(w * h for w, h in zip(row, hidden, strict=True)) + b for row, b in zip(second, second_bias, strict=True)
    ]
    assert head(x).tolist() == pytest.approx(expected)


def test_dropout_acts_in_training_only():
    head, x = MLPHead(3, 2, hidden_dim=64, dropout=0.5), torch.randn(1, 3)
    torch.manual_seed(0)
    assert not torch.equal(head.train()(x), head(x))
    assert torch.equal(head.eval()(x), head(x))


@pytest.mark.parametrize("settings", [{"hidden_dim": 0}, {"dropout": 1.0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(RecipeError, match=f"mlp: {next(iter(settings))}"):
        MLPHead(3, 2, **settings)
