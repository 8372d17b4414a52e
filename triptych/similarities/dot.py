"""Dot product of embeddings."""

import torch
from torch import Tensor

from triptych.errors import InputError
from triptych.interfaces import Features, Similarity


class Dot(Similarity):
    """Dot product of two embeddings, without normalisation.

    s(a, b) = <a, b>

    Example:
        >>> import torch
        >>> from triptych.losses import Dot
        >>> Dot()(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
        tensor([[2.0000, 1.2000]])

    Source: Wang & Isola 2020, section 5, who compare the dot product in free space, in the ball and on the sphere.
    Use when: the norm of an embedding may carry meaning (geometry ball or free). On the sphere, the dot product equals
    the cosine.
    Beware: with the free geometry, an item with a large norm scores high with many items, and most objectives decrease
        without bound as all norms grow.
    """

    is_exact = True

    def forward(self, a: Features, b: Features) -> Tensor:
        query, keys = self.query(a), self.keys(b)
        if query.shape[1] != keys.shape[1]:
            dims = f"{query.shape[1]} dimensions and b.embedding has {keys.shape[1]}"
            raise InputError(f"a.embedding has {dims}; need the same number of dimensions")
        scores = query @ keys.T  # (N, M)
        if not torch.isfinite(scores).all():
            raise InputError("scores: NaN or infinity in an embedding, or norms so large that products overflow")
        return scores

    def query(self, a: Features) -> Tensor:
        return a.embedding  # (N, D)

    def keys(self, b: Features) -> Tensor:
        return b.embedding  # (M, D)
