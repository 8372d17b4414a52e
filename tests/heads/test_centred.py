"""The centred head: the direction of x/|x| − c."""

import math

import pytest
import torch

from triptych.errors import RecipeError
from triptych.heads.centred import CentredHead


def test_the_head_matches_a_loop_and_has_the_direction_of_the_centred_unit_vector():
    head, x = CentredHead(4, 4).double(), torch.randn(3, 4, dtype=torch.float64)
    torch.nn.init.normal_(head.centre, generator=torch.Generator().manual_seed(1))
    centre = head.centre.tolist()
    for row, output in zip(x.tolist(), head(x).tolist(), strict=True):
        norm = math.sqrt(sum(v * v for v in row))
        assert output == pytest.approx([v - norm * c for v, c in zip(row, centre, strict=True)])
        assert [value / norm for value in output] == pytest.approx(
            [v / norm - c for v, c in zip(row, centre, strict=True)]
        )


def test_the_scale_of_the_input_is_kept():
    head, x = CentredHead(4, 4), torch.randn(3, 4)
    torch.nn.init.normal_(head.centre)
    assert torch.allclose(head(5 * x), 5 * head(x), atol=1e-5)


def test_other_dimensions_are_refused():
    message = r"centred: features have 5 dimensions, but space\.embed_dim is 4; set space\.embed_dim = 5"
    with pytest.raises(RecipeError, match=message):
        CentredHead(5, 4)
