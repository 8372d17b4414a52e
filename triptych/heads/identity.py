"""Identity head: no projection."""

from torch import Tensor

from triptych.errors import RecipeError
from triptych.interfaces import Head


class IdentityHead(Head):
    """No projection: y = x.

    Source: joint models such as CLIP, whose encoders already include the projection.
    Use when: all encoders return vectors of one space.
    Beware: `embed_dim` must equal the dimension of the pooled features, which `pooling = "mean_max"` doubles.
    """

    def __init__(self, input_dim: int, embed_dim: int) -> None:
        super().__init__()
        if input_dim != embed_dim:
            dims = f"features have {input_dim} dimensions, but space.embed_dim is {embed_dim}"
            raise RecipeError(f"none: {dims}; set space.embed_dim = {input_dim}")

    def forward(self, x: Tensor) -> Tensor:
        """Return x unchanged."""
        return x
