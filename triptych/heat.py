"""Which part of one item answers to which part of another, and where those parts lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.contracts import MODALITIES, Features, Modality, Place, Source
from triptych.errors import UsageError
from triptych.space import Space


@dataclass(frozen=True)
class Heat:
    """Two items, a before b in the order of MODALITIES; how much their parts speak for each other, and their places.

    The scale is the similarity's own: shares of each word's fit, dot products of a matchmap, or shares of the score.
    """

    a: Source
    b: Source
    values: Tensor  # (A, B), higher = more
    a_places: Sequence[Place]  # of the A parts
    b_places: Sequence[Place]  # of the B parts
    score: float

    def seen_from(self, modality: Modality) -> tuple[Tensor, Sequence[Place], Sequence[Place]]:
        """The same from one side: values (its parts, the other's parts), its places, and the other's places."""
        if modality == self.a.modality:
            return self.values, self.a_places, self.b_places
        return self.values.T, self.b_places, self.a_places


def heat(space: Space, one: Source, other: Source) -> Heat:
    """The heat between two sources of different modalities, in whatever order they are given."""
    a, b = ordered(one, other)
    return heat_between(space, a, space.embed_one(a), b, space.embed_one(b))


@torch.inference_mode()
def heat_between(space: Space, a: Source, a_features: Features, b: Source, b_features: Features) -> Heat:
    """The same of two sources that are embedded already, each as features of one item; a before b."""
    a_item, b_item = only_real(a_features), only_real(b_features)
    return Heat(
        a,
        b,
        space.similarity.heat(a_item, b_item)[0],
        space.encoder(a.modality).places(a, a_item.parts.shape[1]),
        space.encoder(b.modality).places(b, b_item.parts.shape[1]),
        float(space.similarity(a_item, b_item)),
    )


def ordered(one: Source, other: Source) -> tuple[Source, Source]:
    """Two sources in the order of MODALITIES."""
    if one.modality == other.modality:
        raise UsageError(f"both are {one.modality}; give two of different modalities")
    return (one, other) if MODALITIES.index(one.modality) < MODALITIES.index(other.modality) else (other, one)


def only_real(features: Features) -> Features:
    """One item without its padding."""
    real = features.mask[0]
    return Features(features.embedding, features.parts[:, real], features.mask[:, real])
