"""The inner product of two embeddings."""

import torch
from torch import Tensor

from triptych.errors import InputError
from triptych.interfaces import Features, Similarity


class Dot(Similarity):
    """Inner product of two embeddings, length included.

    s(a, b) = <a, b>

    Source: Wang & Isola 2020, section 5, the inner product in free space, in the ball and on the sphere.
    Use when: the length of an embedding may carry meaning (geometry ball or free); on the sphere it is the cosine.
    Beware: in free space a long item is like everything, and most objectives can always gain by growing all lengths.
    """

    is_exact = True

    def forward(self, a: Features, b: Features) -> Tensor:
        query, keys = self.query(a), self.keys(b)
        if query.shape[1] != keys.shape[1]:
            raise InputError(
                f"a.embedding is {query.shape[1]} wide and b.embedding {keys.shape[1]}; need the same width"
            )
        scores = query @ keys.T  # (N, M)
        if not torch.isfinite(scores).all():
            raise InputError("scores: NaN or infinity in an embedding, or embeddings so long that products overflow")
        return scores

    def query(self, a: Features) -> Tensor:
        return a.embedding  # (N, D)

    def keys(self, b: Features) -> Tensor:
        return b.embedding  # (M, D)
