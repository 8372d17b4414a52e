"""Attribute the score of two items to pairs of their parts, and locate these parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from triptych.errors import UsageError
from triptych.interfaces import MODALITIES, Features, Modality, Region, Source
from triptych.space import Space


@dataclass(frozen=True)
class Attribution:
    """The attribution of the score of items `a` and `b` to pairs of parts; `a` precedes `b` in the order of MODALITIES.

    Depending on the similarity, the values are attention weights, dot products, or contributions to the score.
    """

    a: Source
    b: Source
    values: Tensor  # (A, B), higher = larger contribution
    a_locations: Sequence[Region]  # of the A parts of item `a`
    b_locations: Sequence[Region]  # of the B parts of item `b`
    score: float

    def view_from(self, modality: Modality) -> tuple[Tensor, Sequence[Region], Sequence[Region]]:
        """Return the values with the parts of `modality` as rows, the row locations, and the column locations."""
        if modality == self.a.modality:
            return self.values, self.a_locations, self.b_locations
        return self.values.T, self.b_locations, self.a_locations


def compute_attribution(space: Space, first: Source, second: Source) -> Attribution:
    """Compute the attribution of the score of two sources of different modalities, given in any order."""
    a, b = order_by_modality(first, second)
    return compute_feature_attribution(space, a, space.embed_one(a), b, space.embed_one(b))


@torch.inference_mode()
def compute_feature_attribution(
    space: Space, a: Source, a_features: Features, b: Source, b_features: Features
) -> Attribution:
    """Compute the attribution for two embedded sources; source `a` precedes `b` in the order of MODALITIES.

    `a_features` and `b_features` contain one item each.
    """
    a_item, b_item = drop_padding(a_features), drop_padding(b_features)
    return Attribution(
        a,
        b,
        space.similarity.attribution(a_item, b_item)[0],
        space.encoder(a.modality).part_locations(a, a_item.parts.shape[1]),
        space.encoder(b.modality).part_locations(b, b_item.parts.shape[1]),
        float(space.similarity(a_item, b_item)),
    )


def order_by_modality(first: Source, second: Source) -> tuple[Source, Source]:
    """Return two sources in the order of MODALITIES."""
    if first.modality == second.modality:
        raise UsageError(f"both items are {first.modality}; give two items of different modalities")
    return (first, second) if MODALITIES.index(first.modality) < MODALITIES.index(second.modality) else (second, first)


def drop_padding(features: Features) -> Features:
    """Return the features of one item without padding."""
    mask = features.mask[0]
    return replace(features, parts=features.parts[:, mask], mask=features.mask[:, mask])
