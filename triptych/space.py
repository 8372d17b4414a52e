"""The space: an encoder and a projection for each modality, one geometry, one similarity. Trained, saved, searched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.contracts import MODALITIES, Batch, Encoder, Features, Given, Modality, Pair, Similarity, Source
from triptych.data.cache import Cache, halved
from triptych.data.features import remember
from triptych.data.loader import collate, prepared
from triptych.encoders import ENCODERS
from triptych.encoders.joint import joint_modalities
from triptych.errors import InputError, MediaError, RecipeError, UsageError, unknown
from triptych.progress import Bar
from triptych.recipe import Geometry, Recipe, SpaceRecipe
from triptych.settings import Part
from triptych.similarities import SIMILARITIES


@dataclass(frozen=True)
class Embedded:
    """The features of those sources that could be read, which those are, and why the others could not be."""

    read: list[int]  # positions in what was given, one for each row of features
    features: Features
    failures: dict[Source, str]


class Space(nn.Module):
    """One embedding space: embedding = geometry(shared(head(pooled parts of the encoder)))."""

    def __init__(self, recipe: Recipe, encoders: Mapping[Modality, Encoder] | None = None) -> None:
        """A space with fresh heads; `encoders` are taken instead of being made, where they are at hand already."""
        super().__init__()
        self.recipe = recipe
        shape = recipe.space
        made = encoders or {m: ENCODERS[part.name](**part.settings) for m, part in shape.encoders.items()}
        self.encoders = nn.ModuleDict({m: made[m] for m in shape.encoders})
        self.heads = nn.ModuleDict({m: head(shape, m, cast(Encoder, e).width) for m, e in self.encoders.items()})
        self.shared = (
            two_layers(shape.width, shape.shared, shape.width, shape.dropout) if shape.shared else nn.Identity()
        )
        self.similarity: Similarity = SIMILARITIES[shape.similarity.name](**shape.similarity.settings)
        for modality in self.frozen:
            self.encoders[modality].requires_grad_(False)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """What the space can embed."""
        return tuple(cast(Modality, m) for m in self.encoders)

    @property
    def frozen(self) -> tuple[Modality, ...]:
        """The modalities whose encoder is not trained, so that its features can be kept."""
        return tuple(m for m in self.modalities if self.encoder(m).frozen)

    def encoder(self, modality: Modality) -> Encoder:
        """The encoder of a modality, or an error that names those there are."""
        if modality not in self.encoders:
            raise UsageError(f"this space does not know {modality}; {unknown('modality', modality, self.encoders)}")
        return cast(Encoder, self.encoders[modality])

    def train(self, mode: bool = True) -> Space:
        """As any module, but what is frozen stays as it is in use."""
        super().train(mode)
        for modality in self.frozen:
            self.encoders[modality].eval()
        return self

    def forward(
        self, modality: Modality, inputs: Tensor, mask: Tensor, given: Given = "inputs", parts: bool = True
    ) -> Features:
        """Prepared inputs (N, L, ...), or what the encoder has made of them already, to features.

        The embedding lies on the geometry; parts stay in free space, each where an item of this one part would lie.
        Without parts, each item's only part is its embedding: a similarity that reads no parts needs no more.
        """
        if given == "inputs":
            with torch.set_grad_enabled(torch.is_grad_enabled() and modality not in self.frozen):
                found, mask = self.encoder(modality)(inputs, mask)
        else:
            found = inputs.float()
        wide = self.recipe.space.pooling == "mean_max"
        if given == "pooled":
            pooled = found.flatten(1) if wide else found[:, 0]
        else:
            pooled = torch.cat([mean(found, mask), maximum(found, mask)], dim=1) if wide else mean(found, mask)
        embedding = onto(self.recipe.space.geometry, self.shared(self.heads[modality](pooled)))
        if given == "pooled" or not parts:
            return alone(embedding)
        if modality in self.frozen and given == "inputs":
            found = halved(found).to(found.dtype)  # as they would come out of the cache
        found = torch.cat([found, found], dim=2) if wide else found
        return Features(embedding, self.shared(self.heads[modality](found)), mask)

    def pair(self, a: Features, b: Features, batch: Batch, similarity: Similarity | None = None) -> Pair:
        """Two modalities of one batch as a pair, scored by the space's own similarity or by another."""
        return Pair(a, b, batch.group, similarity or self.similarity, batch.teacher)

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
        cache: Cache | None = None,
    ) -> Embedded:
        """Embed sources of one modality, in order; those that cannot be read are listed, not lost.

        With a cache, what a frozen encoder makes of a file is looked up there, and kept there.
        """
        was_training = self.training
        self.eval()
        try:
            stream = (
                self._remembered(list(sources), modality, batch, workers, bar, parts, cache)
                if cache and modality in self.frozen
                else self._fresh(sources, modality, batch, workers, bar, parts)
            )
            read: list[int] = []
            features: list[Features] = []
            failures: dict[Source, str] = {}
            for places, found, failed in stream:
                failures |= failed
                if found is None:
                    continue
                if not torch.isfinite(found.embedding).all():
                    raise InputError(f"an embedding of {modality} holds NaN or infinity; train the space again")
                read += places
                features.append(found)
        finally:
            self.train(was_training)
        return Embedded(read, joined(features, self.recipe.space.width), failures)

    def _fresh(
        self, sources: Iterable[Source], modality: Modality, batch: int, workers: int, bar: Bar | None, parts: bool
    ) -> Iterator[Piece]:
        stream = enumerate(prepared(sources, self.encoder(modality), workers))
        while chunk := list(islice(stream, batch)):
            read = [(i, tensor) for i, (_, tensor) in chunk if not isinstance(tensor, MediaError)]
            failed = {source: str(error) for _, (source, error) in chunk if isinstance(error, MediaError)}
            inputs = collate([tensor for _, tensor in read]) if read else None
            yield [i for i, _ in read], self(modality, *inputs, parts=parts) if inputs else None, failed
            if bar:
                bar.advance(len(chunk))

    def _remembered(
        self,
        sources: Sequence[Source],
        modality: Modality,
        batch: int,
        workers: int,
        bar: Bar | None,
        parts: bool,
        cache: Cache,
    ) -> Iterator[Piece]:
        known = remember(self.encoder(modality), sources, cache, workers, bar)
        yield [], None, known.failures
        read = [i for i, source in enumerate(sources) if source in known.place]
        for first in range(0, len(read), batch):
            some = read[first : first + batch]
            inputs = known.inputs([known.place[sources[i]] for i in some], parts)
            yield some, self(modality, *inputs, given="parts" if parts else "pooled"), {}

    def embed_one(self, source: Source) -> Features:
        """Embed one source, or raise the error that says why not."""
        embedded = self.embed([source], source.modality)
        for message in embedded.failures.values():
            raise MediaError(message)
        return embedded.features


def ready_made(folder: Path) -> Space:
    """A joint model of transformers, in a folder, as a space: its own encoders, projections and cosine; no training."""
    modalities = joint_modalities(folder)
    if modalities is None:
        raise RecipeError(f"{folder}: holds no model with two modalities in one space (CLIP, SigLIP, CLAP …)")
    parts: dict[Modality, Part] = {m: Part(f"joint_{m}", {"model": str(folder)}) for m in modalities}
    width = ENCODERS[parts["text"].name](**parts["text"].settings).width
    shape = SpaceRecipe(parts, Part("cosine"), width=width, head="none")
    return Space(Recipe("ready-made", shape, objectives=())).eval()


Piece = tuple[list[int], Features | None, dict[Source, str]]  # places read, their features, and what failed


def head(shape: SpaceRecipe, modality: str, width: int) -> nn.Module:
    """From what is pooled of an encoder's parts to the width of the space."""
    given = width * (2 if shape.pooling == "mean_max" else 1)
    if shape.head == "linear":
        return nn.Linear(given, shape.width, bias=False)
    if shape.head == "mlp":
        return two_layers(given, shape.hidden, shape.width, shape.dropout)
    if given != shape.width:
        raise RecipeError(f"space.head = none: {modality} comes {given} wide; space.width = {shape.width} must be that")
    return nn.Identity()


def two_layers(given: int, hidden: int, width: int, dropout: float) -> nn.Module:
    """Linear, GELU, linear."""
    return nn.Sequential(nn.Linear(given, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width))


def mean(parts: Tensor, mask: Tensor) -> Tensor:
    """Mean of the real parts: (N, P, W) to (N, W)."""
    weight = mask.to(parts.dtype).unsqueeze(2)
    return (parts * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1)


def maximum(parts: Tensor, mask: Tensor) -> Tensor:
    """Largest of the real parts, number by number: (N, P, W) to (N, W)."""
    return parts.masked_fill(~mask.unsqueeze(2), -torch.inf).amax(dim=1)


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
