"""Centred head: the embedding minus a constant vector."""

import torch
from torch import Tensor, nn

from triptych.errors import RecipeError
from triptych.interfaces import Head


class CentredHead(Head):
    """Subtract the centre of the text embeddings: y = x − |x| c.

    On the sphere, this is the direction of x/|x| − c. c is the mean text embedding of 1,000 generated phrases
    (`phrases.toml` in the package) in a space with heads `class_names`, and 0 without such heads.

    Source: Mu & Viswanath 2018 (all-but-the-top), of which this is the first step.
    Use when: text embeddings are compared with those of heads `class_names`, which are centred, too.
    Beware: `embed_dim` must equal the dimension of the pooled features. c is a parameter, so training changes it.
    """

    def __init__(self, input_dim: int, embed_dim: int) -> None:
        super().__init__()
        if input_dim != embed_dim:
            dims = f"features have {input_dim} dimensions, but space.embed_dim is {embed_dim}"
            raise RecipeError(f"centred: {dims}; set space.embed_dim = {input_dim}")
        self.centre = nn.Parameter(torch.zeros(embed_dim))

    def forward(self, x: Tensor) -> Tensor:
        """Project (..., input_dim) to (..., embed_dim)."""
        return x - x.norm(dim=-1, keepdim=True) * self.centre
