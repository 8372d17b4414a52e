"""Cosine similarity of embeddings."""

import torch.nn.functional as F
from torch import Tensor

from triptych.errors import InputError
from triptych.interfaces import Features, Similarity

MIN_NORM = 1e-12  # F.normalize divides by at least this number, so it cannot normalise shorter vectors


class Cosine(Similarity):
    """Cosine of the angle between two embeddings.

    s(a, b) = <a, b> / (|a| · |b|)

    Example:
        >>> import torch
        >>> from triptych.losses import Cosine
        >>> Cosine()(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
        tensor([[1.0000, 0.6000]])

    Source: the similarity of CLIP and CLAP (Radford et al. 2021; Elizalde et al. 2022).
    Use when: no other similarity has a clear advantage. Cosine is the fastest similarity to search.
    Beware: cosine compares only embeddings, not the vectors of single regions or words. A zero vector raises
    InputError.
    """

    is_exact = True

    def forward(self, a: Features, b: Features) -> Tensor:
        return self.query(a) @ self.keys(b).T  # (N, M)

    def attribution(self, a: Features, b: Features) -> Tensor:
        # With mean pooling and a linear projection, the contributions of all pairs of parts sum to the score.
        norms = [features.mean_pool().norm(dim=1).clamp_min(MIN_NORM) for features in (a, b)]
        return super().attribution(a, b) / (norms[0] * norms[1])[:, None, None]

    def query(self, a: Features) -> Tensor:
        return _normalise(a.embedding, "a")  # (N, D)

    def keys(self, b: Features) -> Tensor:
        return _normalise(b.embedding, "b")  # (M, D)


def _normalise(embedding: Tensor, name: str) -> Tensor:
    is_zero = embedding.detach().norm(dim=1) <= MIN_NORM
    if is_zero.any():
        raise InputError(f"{name}.embedding: row {int(is_zero.nonzero()[0])} is zero and has no direction")
    return F.normalize(embedding, dim=1)
