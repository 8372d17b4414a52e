"""Linear head: one matrix."""

from torch import Tensor, nn

from triptych.interfaces import Head


class LinearHead(Head):
    """One matrix without bias: y = W x.

    Source: the projection of CLIP (Radford et al. 2021).
    Use when: the encoders are trained, or you have few pairs. This is the default.
    Beware: a linear head on frozen encoders can only rotate, scale and drop directions of their features.
    """

    def __init__(self, input_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_dim, embed_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Project (..., input_dim) to (..., embed_dim)."""
        return self.linear(x)
