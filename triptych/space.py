"""The space: an encoder and a projection for each modality, one geometry, one similarity. Trained, saved, searched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.contracts import MODALITIES, Batch, Encoder, Features, Modality, Pair, Similarity, Source
from triptych.data.loader import collate, prepared
from triptych.encoders import ENCODERS
from triptych.errors import InputError, MediaError, UsageError, unknown
from triptych.progress import Bar
from triptych.recipe import Geometry, Recipe
from triptych.similarities import SIMILARITIES


@dataclass(frozen=True)
class Embedded:
    """The features of those sources that could be read, which those are, and why the others could not be."""

    read: list[int]  # positions in what was given, one for each row of features
    features: Features
    failures: dict[Source, str]


class Space(nn.Module):
    """One embedding space: embedding = geometry(mean of the projected parts)."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        shape = recipe.space
        self.encoders = nn.ModuleDict({m: ENCODERS[p.name](**p.settings) for m, p in shape.encoders.items()})
        self.projections = nn.ModuleDict(
            {m: nn.Linear(cast(Encoder, e).width, shape.width, bias=False) for m, e in self.encoders.items()}
        )
        self.similarity: Similarity = SIMILARITIES[shape.similarity.name](**shape.similarity.settings)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """What the space can embed."""
        return tuple(cast(Modality, m) for m in self.encoders)

    def encoder(self, modality: Modality) -> Encoder:
        """The encoder of a modality, or an error that names those there are."""
        if modality not in self.encoders:
            raise UsageError(f"this space does not know {modality}; {unknown('modality', modality, self.encoders)}")
        return cast(Encoder, self.encoders[modality])

    def forward(self, modality: Modality, inputs: Tensor, mask: Tensor) -> Features:
        """Prepared inputs (N, L, ...) to features. Parts stay in free space; the embedding lies on the geometry."""
        parts, mask = self.encoder(modality)(inputs, mask)
        parts = self.projections[modality](parts)  # (N, P, D)
        weight = mask.to(parts.dtype).unsqueeze(2)
        mean = (parts * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1)
        return Features(onto(self.recipe.space.geometry, mean), parts, mask)

    def pair(self, a: Features, b: Features, batch: Batch, similarity: Similarity | None = None) -> Pair:
        """Two modalities of one batch as a pair, scored by the space's own similarity or by another."""
        return Pair(a, b, batch.group[:, None] == batch.group, similarity or self.similarity, batch.teacher)

    def scores(self, query: Features, query_is: Modality, gallery: Features, gallery_is: Modality) -> Tensor:
        """Queries of one modality against a gallery of another: (Q, M).

        Not every similarity is symmetric, so it always gets the two in the order of MODALITIES, as in training.
        """
        if MODALITIES.index(query_is) > MODALITIES.index(gallery_is):
            return self.similarity(gallery, query).T
        return self.similarity(query, gallery)

    @torch.inference_mode()
    def embed(
        self,
        sources: Iterable[Source],
        modality: Modality,
        batch: int = 64,
        workers: int = 2,
        bar: Bar | None = None,
        parts: bool = True,
    ) -> Embedded:
        """Embed sources of one modality, in order; those that cannot be read are listed, not lost.

        Without parts, each item's only part is its embedding: a similarity that reads no parts needs no more.
        """
        was_training = self.training
        self.eval()
        read: list[int] = []
        features: list[Features] = []
        failures: dict[Source, str] = {}
        stream = enumerate(prepared(sources, self.encoder(modality), workers))
        try:
            while chunk := list(islice(stream, batch)):
                tensors = []
                for position, (source, tensor) in chunk:
                    if isinstance(tensor, MediaError):
                        failures[source] = str(tensor)
                    else:
                        read.append(position)
                        tensors.append(tensor)
                if tensors:
                    found = self(modality, *collate(tensors))
                    if not torch.isfinite(found.embedding).all():
                        raise InputError(f"an embedding of {modality} holds NaN or infinity; train the space again")
                    features.append(found if parts else alone(found.embedding))
                if bar:
                    bar.advance(len(chunk))
        finally:
            self.train(was_training)
        return Embedded(read, joined(features, self.recipe.space.width), failures)

    def embed_one(self, source: Source) -> Features:
        """Embed one source, or raise the error that says why not."""
        embedded = self.embed([source], source.modality)
        for message in embedded.failures.values():
            raise MediaError(message)
        return embedded.features


def onto(geometry: Geometry, z: Tensor) -> Tensor:
    """Vectors brought onto a geometry: sphere z/|z|, ball z/max(1, |z|), free z."""
    if geometry == "sphere":
        return F.normalize(z, dim=-1)
    if geometry == "ball":
        return z / z.norm(dim=-1, keepdim=True).clamp_min(1)
    return z


def alone(embedding: Tensor) -> Features:
    """Features of embeddings without parts: each is its own only part."""
    return Features(embedding, embedding.unsqueeze(1), torch.ones(len(embedding), 1, dtype=torch.bool))


def joined(features: list[Features], width: int) -> Features:
    """Batches of features as one, parts padded to the longest."""
    if not features:
        return alone(torch.empty(0, width))
    longest = max(f.parts.shape[1] for f in features)
    return Features(
        torch.cat([f.embedding for f in features]),
        torch.cat([F.pad(f.parts, (0, 0, 0, longest - f.parts.shape[1])) for f in features]),
        torch.cat([F.pad(f.mask, (0, longest - f.mask.shape[1])) for f in features]),
    )


def blocks(features: Features, size: int) -> Iterator[tuple[int, Features]]:
    """Features in blocks of at most `size` rows, each with its first row's number."""
    for first in range(0, len(features.embedding), size):
        rows = slice(first, first + size)
        yield first, Features(features.embedding[rows], features.parts[rows], features.mask[rows])
