"""The embedding space: an encoder and a projection head for each modality, one geometry, one similarity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.data.cache import Cache, to_float16
from triptych.data.features import compute_or_load
from triptych.data.loader import collate, prepare_sources
from triptych.encoders import ENCODERS
from triptych.errors import InputError, MediaError, RecipeError, UsageError, describe_unknown
from triptych.interfaces import MODALITIES, Batch, Encoder, Features, InputKind, Modality, Pair, Similarity, Source
from triptych.progress import ProgressBar
from triptych.recipe import Geometry, Recipe, SpaceConfig
from triptych.similarities import SIMILARITIES


@dataclass(frozen=True)
class EmbedResult:
    """The features of the readable sources, and error messages for the unreadable sources."""

    indices: list[int]  # for each row of `features`, the position of its source in the input
    features: Features
    failures: dict[Source, str]


class Space(nn.Module):
    """One embedding space: embedding = geometry(shared_head(head(pool(encoder(inputs)))))."""

    def __init__(self, recipe: Recipe, encoders: Mapping[Modality, Encoder] | None = None) -> None:
        """Create a space with untrained heads; encoders given in `encoders` are used instead of new ones."""
        super().__init__()
        self.recipe = recipe
        self.history: dict[str, Any] = {}  # training data and validation score, for the model card
        config = recipe.space
        encoder_by_modality = encoders or {
            m: ENCODERS[component.name](**component.settings) for m, component in config.encoders.items()
        }
        self.encoders = nn.ModuleDict({m: encoder_by_modality[m] for m in config.encoders})
        self.heads = nn.ModuleDict(
            {m: make_head(config, m, cast(Encoder, e).feature_dim) for m, e in self.encoders.items()}
        )
        self.shared_head = (
            make_mlp(config.embed_dim, config.shared_hidden_dim, config.embed_dim, config.dropout)
            if config.shared_hidden_dim
            else nn.Identity()
        )
        self.similarity: Similarity = SIMILARITIES[config.similarity.name](**config.similarity.settings)
        for modality in self.frozen_modalities:
            self.encoders[modality].requires_grad_(False)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """The modalities that the space can embed."""
        return tuple(cast(Modality, m) for m in self.encoders)

    @property
    def frozen_modalities(self) -> tuple[Modality, ...]:
        """The modalities whose encoder is frozen, so that the encoder's outputs can be cached."""
        return tuple(m for m in self.modalities if self.encoder(m).frozen)

    def encoder(self, modality: Modality) -> Encoder:
        """Return the encoder of a modality; raise UsageError if there is none."""
        if modality not in self.encoders:
            raise UsageError(f"this space has no {modality}; {describe_unknown('modality', modality, self.encoders)}")
        return cast(Encoder, self.encoders[modality])

    def train(self, mode: bool = True) -> Space:
        """Set the training mode as nn.Module.train does, but keep frozen encoders in evaluation mode."""
        super().train(mode)
        for modality in self.frozen_modalities:
            self.encoders[modality].eval()
        for module in self.modules():
            weights = list(module.parameters()) if module is not self else []
            if weights and not any(weight.requires_grad for weight in weights):
                module.train(False)
        return self

    def state_dict_without_frozen(self) -> dict[str, Tensor]:
        """Return all weights except the weights of frozen encoders; a space file contains only their hash."""
        frozen_prefixes = tuple(f"encoders.{modality}." for modality in self.frozen_modalities)
        return {name: value for name, value in self.state_dict().items() if not name.startswith(frozen_prefixes)}

    def forward(
        self,
        modality: Modality,
        inputs: Tensor,
        mask: Tensor,
        input_kind: InputKind = "inputs",
        with_parts: bool = True,
    ) -> Features:
        """Compute features from prepared inputs (N, L, ...), or from precomputed encoder outputs.

        Embeddings are mapped onto the geometry. Part vectors are projected by the same head, but not mapped.
        with_parts = False returns the embedding as the only part of each item, for similarities that read no parts.
        """
        if input_kind == "inputs":
            with torch.set_grad_enabled(torch.is_grad_enabled() and modality not in self.frozen_modalities):
                encoded, mask = self.encoder(modality)(inputs, mask)
        else:
            encoded = inputs.float()
        embedding = self.project(modality, encoded, mask, input_kind)
        if input_kind == "pooled" or not with_parts:
            return features_without_parts(embedding, modality)
        if modality in self.frozen_modalities and input_kind == "inputs":
            encoded = to_float16(encoded).to(encoded.dtype)  # the precision of the cache
        encoded = torch.cat([encoded, encoded], dim=2) if self.recipe.space.pooling == "mean_max" else encoded
        return Features(embedding, self.shared_head(self.heads[modality](encoded)), mask, modality)

    def project(self, modality: Modality, encoded: Tensor, mask: Tensor, input_kind: InputKind = "parts") -> Tensor:
        """Pool encoder outputs, project them and map them onto the geometry: (N, D)."""
        has_max_pool = self.recipe.space.pooling == "mean_max"
        if input_kind == "pooled":
            pooled = encoded.flatten(1) if has_max_pool else encoded[:, 0]
        else:
            pooled = masked_mean(encoded, mask)
            if has_max_pool:
                pooled = torch.cat([pooled, masked_max(encoded, mask)], dim=1)
        return apply_geometry(self.recipe.space.geometry, self.shared_head(self.heads[modality](pooled)))

    def make_pair(self, a: Features, b: Features, batch: Batch, similarity: Similarity | None = None) -> Pair:
        """Return the pair of features of two modalities of a batch; default: with the similarity of the space."""
        return Pair(a, b, batch.group, similarity or self.similarity, batch.teacher_targets)

    def scores(self, query: Features, gallery: Features) -> Tensor:
        """Return the scores of Q queries of one modality with M gallery items of another modality: (Q, M).

        A similarity may be asymmetric, so it is called with the modalities in the order of MODALITIES, as in training.
        """
        if MODALITIES.index(query.require_modality()) > MODALITIES.index(gallery.require_modality()):
            return self.similarity(gallery, query).T
        return self.similarity(query, gallery)

    @torch.inference_mode()
    def embed(
        self,
        sources: Iterable[Source],
        modality: Modality,
        batch_size: int = 64,
        workers: int = 2,
        progress: ProgressBar | None = None,
        with_parts: bool = True,
        cache: Cache | None = None,
    ) -> EmbedResult:
        """Embed sources of one modality, in order; `failures` has an error message for each unreadable source.

        If a cache is given, the outputs of a frozen encoder are read from the cache, and missing outputs are added.
        """
        was_training = self.training
        self.eval()
        try:
            stream = (
                self._embed_cached(list(sources), modality, batch_size, workers, progress, with_parts, cache)
                if cache and modality in self.frozen_modalities
                else self._embed_uncached(sources, modality, batch_size, workers, progress, with_parts)
            )
            indices: list[int] = []
            blocks: list[Features] = []
            failures: dict[Source, str] = {}
            for block_indices, block, block_failures in stream:
                failures |= block_failures
                if block is None:
                    continue
                if not torch.isfinite(block.embedding).all():
                    raise InputError(f"an embedding of {modality} contains NaN or infinity; train the space again")
                indices += block_indices
                blocks.append(block)
        finally:
            self.train(was_training)
        return EmbedResult(indices, concat_features(blocks, self.recipe.space.embed_dim, modality), failures)

    def _embed_uncached(
        self,
        sources: Iterable[Source],
        modality: Modality,
        batch_size: int,
        workers: int,
        progress: ProgressBar | None,
        with_parts: bool,
    ) -> Iterator[EmbeddedBlock]:
        stream = enumerate(prepare_sources(sources, self.encoder(modality), workers))
        while chunk := list(islice(stream, batch_size)):
            readable = [(i, tensor) for i, (_, tensor) in chunk if not isinstance(tensor, MediaError)]
            failures = {source: str(error) for _, (source, error) in chunk if isinstance(error, MediaError)}
            inputs = collate([tensor for _, tensor in readable]) if readable else None
            features = self._forward_on_device(modality, inputs, "inputs", with_parts) if inputs else None
            yield [i for i, _ in readable], features, failures
            if progress:
                progress.advance(len(chunk))

    def _embed_cached(
        self,
        sources: Sequence[Source],
        modality: Modality,
        batch_size: int,
        workers: int,
        progress: ProgressBar | None,
        with_parts: bool,
        cache: Cache,
    ) -> Iterator[EmbeddedBlock]:
        cached = compute_or_load(self.encoder(modality), sources, cache, workers, progress)
        yield [], None, cached.failures
        readable = [i for i, source in enumerate(sources) if source in cached.index_of]
        for first in range(0, len(readable), batch_size):
            indices = readable[first : first + batch_size]
            inputs = cached.load_batch([cached.index_of[sources[i]] for i in indices], with_parts)
            yield (
                indices,
                self._forward_on_device(modality, inputs, "parts" if with_parts else "pooled", with_parts),
                {},
            )

    def _forward_on_device(
        self, modality: Modality, inputs: tuple[Tensor, Tensor], input_kind: InputKind, with_parts: bool
    ) -> Features:
        """Compute features on the device of the weights; return them on the CPU."""
        device = next(self.parameters()).device
        return self(modality, *(x.to(device) for x in inputs), input_kind, with_parts).to(torch.device("cpu"))

    def embed_one(self, source: Source) -> Features:
        """Embed one source; raise MediaError if the source cannot be read."""
        result = self.embed([source], source.modality)
        for message in result.failures.values():
            raise MediaError(message)
        return result.features


EmbeddedBlock = tuple[list[int], Features | None, dict[Source, str]]  # positions of sources, features, failures


def make_head(config: SpaceConfig, modality: str, feature_dim: int) -> nn.Module:
    """Create the projection from pooled encoder outputs to the embedding dimension."""
    input_dim = feature_dim * (2 if config.pooling == "mean_max" else 1)
    if config.head == "linear":
        return nn.Linear(input_dim, config.embed_dim, bias=False)
    if config.head == "mlp":
        return make_mlp(input_dim, config.hidden_dim, config.embed_dim, config.dropout)
    if input_dim != config.embed_dim:
        raise RecipeError(
            f"space.head = none: {modality} features have {input_dim} dimensions, but space.embed_dim is "
            f"{config.embed_dim}; set space.embed_dim = {input_dim}"
        )
    return nn.Identity()


def make_mlp(input_dim: int, hidden_dim: int, output_dim: int, dropout: float) -> nn.Module:
    """Create a linear layer, GELU, dropout and a second linear layer."""
    return nn.Sequential(
        nn.Linear(input_dim, hidden_dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden_dim, output_dim)
    )


def masked_mean(parts: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over parts that are not padding: (N, P, W) to (N, W)."""
    weights = mask.to(parts.dtype).unsqueeze(2)
    return (parts * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1)


def masked_max(parts: Tensor, mask: Tensor) -> Tensor:
    """Return the elementwise maximum over parts that are not padding: (N, P, W) to (N, W)."""
    return parts.masked_fill(~mask.unsqueeze(2), -torch.inf).amax(dim=1)


def apply_geometry(geometry: Geometry, z: Tensor) -> Tensor:
    """Map vectors onto a geometry: sphere z/|z|, ball z/max(1, |z|), free z."""
    if geometry == "sphere":
        return F.normalize(z, dim=-1)
    if geometry == "ball":
        return z / z.norm(dim=-1, keepdim=True).clamp_min(1)
    return z


def features_without_parts(embedding: Tensor, modality: Modality | None = None) -> Features:
    """Return features in which the only part of each item is its embedding."""
    mask = torch.ones(len(embedding), 1, dtype=torch.bool, device=embedding.device)
    return Features(embedding, embedding.unsqueeze(1), mask, modality)


def concat_features(features: list[Features], embed_dim: int, modality: Modality | None) -> Features:
    """Concatenate batches of features of one modality; parts are padded to the largest number of parts."""
    if not features:
        return features_without_parts(torch.empty(0, embed_dim), modality)
    max_parts = max(f.parts.shape[1] for f in features)
    return Features(
        torch.cat([f.embedding for f in features]),
        torch.cat([F.pad(f.parts, (0, 0, 0, max_parts - f.parts.shape[1])) for f in features]),
        torch.cat([F.pad(f.mask, (0, max_parts - f.mask.shape[1])) for f in features]),
        modality,
    )


def iter_blocks(features: Features, block_size: int) -> Iterator[tuple[int, Features]]:
    """Split features into blocks of at most `block_size` rows; yield the first row's index and the features."""
    for first in range(0, len(features.embedding), block_size):
        yield first, features.take(slice(first, first + block_size))
