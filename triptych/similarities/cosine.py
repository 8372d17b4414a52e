"""The angle between two embeddings."""

import torch.nn.functional as F
from torch import Tensor

from triptych.contracts import Features, Similarity


class Cosine(Similarity):
    """Cosine of the angle between two embeddings, whatever their length.

    s(a, b) = <a, b> / (|a| · |b|)

    Source: the similarity of CLIP and CLAP (Radford et al. 2021; Elizalde et al. 2022).
    Use when: in doubt; it is the fastest to search.
    Beware: reads the pooled embedding only; what a single region or word matches is not seen.
    """

    exact = True

    def forward(self, a: Features, b: Features) -> Tensor:
        return self.query(a) @ self.keys(b).T  # (N, M)

    def query(self, a: Features) -> Tensor:
        return F.normalize(a.embedding, dim=1)  # (N, D)

    def keys(self, b: Features) -> Tensor:
        return F.normalize(b.embedding, dim=1)  # (M, D)
