"""The linear head multiplies by one matrix."""

import torch

from triptych.heads.linear import LinearHead


def test_the_head_is_one_matrix_without_bias():
    head, x = LinearHead(4, 3).double(), torch.randn(2, 5, 4, dtype=torch.float64)
    (weight,) = (p.tolist() for p in head.parameters())
    expected = [
        [[sum(w * v for w, v in zip(row, part, strict=True)) for row in weight] for part in item] for item in x.tolist()
    ]
    assert torch.allclose(head(x), torch.tensor(expected, dtype=torch.float64))
