"""MLP head: two linear layers with GELU and dropout between the layers."""

from torch import Tensor, nn

from triptych.errors import check_range
from triptych.interfaces import Head


class MLPHead(Head):
    """Two linear layers: y = W₂ dropout(GELU(W₁ x + b₁)) + b₂.

    Source: the projection head of SimCLR (Chen et al. 2020), with GELU instead of ReLU.
    Use when: the encoders are frozen and you have thousands of pairs.
    Beware: with few pairs, an MLP overfits; use dropout, or `linear`.
    """

    def __init__(self, input_dim: int, embed_dim: int, hidden_dim: int = 1024, dropout: float = 0.0) -> None:
        super().__init__()
        check_range("mlp: hidden_dim", hidden_dim, 1, 1 << 16)
        check_range("mlp: dropout", dropout, 0, 0.99)
        self.layers = nn.Sequential(
            nn.Linear(input_dim, hidden_dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden_dim, embed_dim)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Project (..., input_dim) to (..., embed_dim)."""
        return self.layers(x)
