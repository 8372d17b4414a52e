"""The identity head returns its input, and refuses other dimensions."""

import pytest
import torch

from triptych.errors import RecipeError
from triptych.heads.identity import IdentityHead


def test_the_input_is_unchanged():
    x = torch.randn(3, 2, 5)
    assert torch.equal(IdentityHead(5, 5)(x), x)


def test_other_dimensions_are_refused():
    with pytest.raises(
        RecipeError, match=r"features have 5 dimensions, but space\.embed_dim is 4; set space\.embed_dim = 5"
    ):
        IdentityHead(5, 4)
