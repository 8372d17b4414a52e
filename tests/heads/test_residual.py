"""The residual head, compared with loops over its formula."""

import math

import torch

from triptych.heads.linear import LinearHead
from triptych.heads.residual import ResidualHead


def make_head(input_dim=4, embed_dim=3):
    torch.manual_seed(0)
    head = ResidualHead(LinearHead(input_dim, embed_dim), input_dim, embed_dim).double()
    head.standardise(torch.randn(6, input_dim, dtype=torch.float64) * 3 + 1)
    return head


def test_the_head_adds_a_scaled_linear_map_to_the_frozen_head():
    head, x = make_head(), torch.randn(2, 5, 4, dtype=torch.float64)
    with torch.no_grad():
        head.correction.normal_()
    mean, deviation, norm = head.mean.tolist(), head.deviation.item(), head.start_norm.item()
    weight, correction = next(head.start.parameters()).tolist(), head.correction.tolist()
    expected = []
    for item in x.tolist():
        for part in item:
            z = [(v - m) / (deviation * math.sqrt(4)) for v, m in zip(part, mean, strict=True)]
            expected.append(
                [
                    sum(w * v for w, v in zip(row, part, strict=True))
                    + norm * sum(c * v for c, v in zip(change, z, strict=True))
                    for row, change in zip(weight, correction, strict=True)
                ]
            )
    assert torch.allclose(head(x), torch.tensor(expected, dtype=torch.float64).view(2, 5, 3))


def test_the_scale_is_that_of_the_training_data():
    head, x = make_head(), torch.randn(7, 4, dtype=torch.float64)
    head.standardise(x)
    means = [sum(row[j] for row in x.tolist()) / 7 for j in range(4)]
    squares = [(row[j] - means[j]) ** 2 for row in x.tolist() for j in range(4)]
    norms = [math.sqrt(sum(v * v for v in row)) for row in head.start(x).tolist()]
    assert torch.allclose(head.mean, torch.tensor(means, dtype=torch.float64))
    assert math.isclose(head.deviation.item(), math.sqrt(sum(squares) / 28))
    assert math.isclose(head.start_norm.item(), sum(norms) / 7)


def test_the_new_head_returns_the_output_of_the_frozen_head_also_with_one_training_item():
    for count in (1, 5):
        head, x = make_head(), torch.randn(6, 4, dtype=torch.float64)
        head.standardise(x[:count])
        assert torch.equal(head(x), head.start(x))
        assert torch.isfinite(head(x)).all()


def test_the_penalty_is_the_squared_distance_from_the_initial_weights_per_feature():
    head = make_head()
    with torch.no_grad():
        head.initial.normal_()
        head.correction.normal_()
    rows = zip(head.correction.tolist(), head.initial.tolist(), strict=True)
    expected = sum((w - i) ** 2 for row, start in rows for w, i in zip(row, start, strict=True)) / 4
    assert math.isclose(head.penalty().item(), expected)
    head.reset()
    assert head.penalty().item() == 0.0


def test_only_the_correction_is_trained():
    head = make_head()
    assert [name for name, p in head.named_parameters() if p.requires_grad] == ["correction"]
