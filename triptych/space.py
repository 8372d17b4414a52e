"""The space: an encoder and a projection for each modality, one geometry, one similarity. Trained, saved, searched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych import saved
from triptych.card import render_pretrained_files
from triptych.data.cache import Cache, fingerprint_encoder, to_float16
from triptych.data.features import compute_or_load
from triptych.data.loader import collate, prepare_sources
from triptych.encoders import ENCODERS
from triptych.encoders.joint import joint_modalities
from triptych.errors import CheckpointError, InputError, MediaError, RecipeError, UsageError, describe_unknown
from triptych.files import write_text
from triptych.interfaces import MODALITIES, Batch, Encoder, Features, InputKind, Modality, Pair, Similarity, Source
from triptych.progress import ProgressBar
from triptych.recipe import Geometry, Recipe, SpaceConfig
from triptych.settings import Component
from triptych.similarities import SIMILARITIES


@dataclass(frozen=True)
class EmbedResult:
    """The features of those sources that could be read, which those are, and why the others could not be."""

    indices: list[int]  # positions in what was given, one for each row of features
    features: Features
    failures: dict[Source, str]


class Space(nn.Module):
    """One embedding space: embedding = geometry(shared(head(pooled parts of the encoder)))."""

    def __init__(self, recipe: Recipe, encoders: Mapping[Modality, Encoder] | None = None) -> None:
        """A space with fresh heads; `encoders` are taken instead of being made, where they are at hand already."""
        super().__init__()
        self.recipe = recipe
        self.history: dict[str, Any] = {}  # what it was trained on, and how good it was; for the model card
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
        """What the space can embed."""
        return tuple(cast(Modality, m) for m in self.encoders)

    @property
    def frozen_modalities(self) -> tuple[Modality, ...]:
        """The modalities whose encoder is not trained, so that its features can be kept."""
        return tuple(m for m in self.modalities if self.encoder(m).frozen)

    def encoder(self, modality: Modality) -> Encoder:
        """The encoder of a modality, or an error that names those there are."""
        if modality not in self.encoders:
            raise UsageError(
                f"this space does not know {modality}; {describe_unknown('modality', modality, self.encoders)}"
            )
        return cast(Encoder, self.encoders[modality])

    def train(self, mode: bool = True) -> Space:
        """As any module, but what is frozen stays as it is in use."""
        super().train(mode)
        for modality in self.frozen_modalities:
            self.encoders[modality].eval()
        for module in self.modules():
            weights = list(module.parameters()) if module is not self else []
            if weights and not any(weight.requires_grad for weight in weights):
                module.train(False)
        return self

    def state_dict_without_frozen(self) -> dict[str, Tensor]:
        """What is the space's own; weights of frozen encoders come with those, and are only named by a hash."""
        frozen_prefixes = tuple(f"encoders.{modality}." for modality in self.frozen_modalities)
        return {name: value for name, value in self.state_dict().items() if not name.startswith(frozen_prefixes)}

    def to_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything the space is, as tensors and a header to save."""
        header = {
            "recipe": self.recipe.to_toml(),
            "files": {m: self.encoder(m).extra_files() for m in self.modalities},
            "frozen": {m: fingerprint_encoder(self.encoder(m)) for m in self.frozen_modalities},
            "history": self.history,
        }
        return {f"space.{name}": value for name, value in self.state_dict_without_frozen().items()}, header

    @staticmethod
    def from_checkpoint(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Space:
        """The space that `contents` described, ready to embed; `path` is for messages."""
        saved_weights = {name.removeprefix("space."): t for name, t in tensors.items() if name.startswith("space.")}
        try:
            space = Space(Recipe.parse(header["recipe"], location=f"the recipe in {path}"))
            for modality in space.modalities:
                if extra_files := header["files"].get(modality):
                    _load_extra_files(path, space.encoder(modality), extra_files)
            space._check_frozen_weights(path, header.get("frozen", {}))
            expected_weights = space.state_dict_without_frozen()
            space.load_state_dict(
                saved_weights | {name: t for name, t in space.state_dict().items() if name not in expected_weights}
            )
            space.history = dict(header.get("history", {}))
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"{path}: its parts do not fit together ({error}); the file has been changed"
            ) from error
        for name, value in space.named_parameters():
            if name not in saved_weights:
                continue  # frozen: it came with its encoder
            if saved_weights[name].dtype != value.dtype:
                raise CheckpointError(
                    f"{path}: the weights {name} are {saved_weights[name].dtype}; they should be {value.dtype}"
                )
            if not torch.isfinite(value).all():
                raise CheckpointError(f"{path}: the weights {name} hold NaN or infinity; train the space again")
        space.eval()._check_embeddings_vary(path)
        return space

    @torch.inference_mode()
    def _check_embeddings_vary(self, path: Path) -> None:
        """Refuse weights that give every item of a modality one and the same embedding, as weights of 0 do."""
        for modality in self.modalities:
            matrices = [weight for weight in self.encoder(modality).parameters() if weight.ndim > 1]
            num_pools = 2 if self.recipe.space.pooling == "mean_max" else 1
            pooled = torch.randn(
                2, num_pools, self.encoder(modality).feature_dim, generator=torch.Generator().manual_seed(0)
            )
            embedding = self.project(modality, pooled, torch.ones(2, num_pools, dtype=torch.bool), "pooled")
            if (matrices and not any(matrix.any() for matrix in matrices)) or torch.equal(*embedding):
                raise CheckpointError(
                    f"{path}: gives every {modality} the same embedding, as the weights behind it are 0; "
                    "train the space again"
                )

    def _check_frozen_weights(self, path: Path, fingerprints: Mapping[str, str]) -> None:
        for modality in self.frozen_modalities:
            encoder = self.encoder(modality)
            if fingerprint_encoder(encoder) != fingerprints.get(modality):
                raise CheckpointError(
                    f"{path}: was trained with other weights or settings of {type(encoder).__name__} than are here; "
                    f"install what it was trained with ({encoder.origin}), or train again"
                )

    @staticmethod
    def load(path: str | Path) -> Space:
        """The space of a run folder, of a folder that `save_pretrained` wrote, or of a .safetensors file."""
        resolved = saved.resolve_path(path)
        return (
            from_joint_model(resolved)
            if resolved.is_dir()
            else Space.from_checkpoint(resolved, *saved.read_tensors(resolved))
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the space for others, as the Hugging Face hub has models: weights, config, tokenizer, model card.

        Where our own files lay is left out; `Space.load` takes the folder on any machine, and asks no network.
        """
        folder, portable_recipe = Path(folder), self.recipe.without_local_paths()
        tensors, header = self.to_checkpoint()
        saved.write_tensors(folder / saved.PRETRAINED_FILE, tensors, header | {"recipe": portable_recipe.to_toml()})
        encoders: dict[Modality, Encoder] = {m: self.encoder(m) for m in self.modalities}
        for name, text in render_pretrained_files(portable_recipe, encoders, self.history).items():
            write_text(folder / name, text)

    def forward(
        self,
        modality: Modality,
        inputs: Tensor,
        mask: Tensor,
        input_kind: InputKind = "inputs",
        with_parts: bool = True,
    ) -> Features:
        """Prepared inputs (N, L, ...), or what the encoder has made of them already, to features.

        The embedding lies on the geometry; parts stay in free space, each where an item of this one part would lie.
        Without parts, each item's only part is its embedding: a similarity that reads no parts needs no more.
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
            encoded = to_float16(encoded).to(encoded.dtype)  # as they would come out of the cache
        encoded = torch.cat([encoded, encoded], dim=2) if self.recipe.space.pooling == "mean_max" else encoded
        return Features(embedding, self.shared_head(self.heads[modality](encoded)), mask, modality)

    def project(self, modality: Modality, encoded: Tensor, mask: Tensor, input_kind: InputKind = "parts") -> Tensor:
        """What an encoder has made of items, pooled, projected and brought onto the geometry: (N, D)."""
        has_max_pool = self.recipe.space.pooling == "mean_max"
        if input_kind == "pooled":
            pooled = encoded.flatten(1) if has_max_pool else encoded[:, 0]
        else:
            pooled = (
                torch.cat([masked_mean(encoded, mask), masked_max(encoded, mask)], dim=1)
                if has_max_pool
                else masked_mean(encoded, mask)
            )
        return apply_geometry(self.recipe.space.geometry, self.shared_head(self.heads[modality](pooled)))

    def make_pair(self, a: Features, b: Features, batch: Batch, similarity: Similarity | None = None) -> Pair:
        """Two modalities of one batch as a pair, scored by the space's own similarity or by another."""
        return Pair(a, b, batch.group, similarity or self.similarity, batch.teacher_targets)

    def scores(self, query: Features, gallery: Features) -> Tensor:
        """Score queries of one modality against a gallery of another: (Q, M).

        A similarity need not be symmetric: its arguments are always in the order of MODALITIES, as in training.
        """
        if query.modality is None or gallery.modality is None:
            raise InputError("the features have no modality; compute them with Space.embed")
        if MODALITIES.index(query.modality) > MODALITIES.index(gallery.modality):
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
        """Embed sources of one modality, in order; those that cannot be read are listed, not lost.

        With a cache, what a frozen encoder makes of a file is looked up there, and kept there.
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
                    raise InputError(f"an embedding of {modality} holds NaN or infinity; train the space again")
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
        """Computed where the weights are, and brought back to the CPU."""
        device = next(self.parameters()).device
        return self(modality, *(x.to(device) for x in inputs), input_kind, with_parts).to(torch.device("cpu"))

    def embed_one(self, source: Source) -> Features:
        """Embed one source, or raise the error that says why not."""
        result = self.embed([source], source.modality)
        for message in result.failures.values():
            raise MediaError(message)
        return result.features


def from_joint_model(folder: Path) -> Space:
    """A joint model of transformers, in a folder, as a space: its own encoders, projections and cosine; no training."""
    modalities = joint_modalities(folder)
    if modalities is None:
        raise RecipeError(f"{folder}: holds no model with two modalities in one space (CLIP, SigLIP, CLAP …)")
    components: dict[Modality, Component] = {m: Component(f"joint_{m}", {"model": str(folder)}) for m in modalities}
    embed_dim = ENCODERS[components["text"].name](**components["text"].settings).feature_dim
    config = SpaceConfig(components, Component("cosine"), embed_dim=embed_dim, head="none")
    space = Space(Recipe("ready-made", config, objectives=())).eval()
    space._check_embeddings_vary(folder)
    return space


EmbeddedBlock = tuple[list[int], Features | None, dict[Source, str]]  # places read, their features, and what failed


def _load_extra_files(path: Path, encoder: Encoder, extra_files: dict[str, str]) -> None:
    """Give an encoder its files back; what is wrong with them names the file that holds them."""
    try:
        encoder.load_extra_files(extra_files)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def make_head(config: SpaceConfig, modality: str, feature_dim: int) -> nn.Module:
    """From what is pooled of an encoder's parts to the width of the space."""
    input_dim = feature_dim * (2 if config.pooling == "mean_max" else 1)
    if config.head == "linear":
        return nn.Linear(input_dim, config.embed_dim, bias=False)
    if config.head == "mlp":
        return make_mlp(input_dim, config.hidden_dim, config.embed_dim, config.dropout)
    if input_dim != config.embed_dim:
        raise RecipeError(
            f"space.head = none: {modality} comes {input_dim} wide; space.embed_dim = {config.embed_dim} must be that"
        )
    return nn.Identity()


def make_mlp(input_dim: int, hidden_dim: int, output_dim: int, dropout: float) -> nn.Module:
    """Linear, GELU, linear."""
    return nn.Sequential(
        nn.Linear(input_dim, hidden_dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden_dim, output_dim)
    )


def masked_mean(parts: Tensor, mask: Tensor) -> Tensor:
    """Mean of the real parts: (N, P, W) to (N, W)."""
    weights = mask.to(parts.dtype).unsqueeze(2)
    return (parts * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1)


def masked_max(parts: Tensor, mask: Tensor) -> Tensor:
    """Largest of the real parts, number by number: (N, P, W) to (N, W)."""
    return parts.masked_fill(~mask.unsqueeze(2), -torch.inf).amax(dim=1)


def apply_geometry(geometry: Geometry, z: Tensor) -> Tensor:
    """Vectors brought onto a geometry: sphere z/|z|, ball z/max(1, |z|), free z."""
    if geometry == "sphere":
        return F.normalize(z, dim=-1)
    if geometry == "ball":
        return z / z.norm(dim=-1, keepdim=True).clamp_min(1)
    return z


def features_without_parts(embedding: Tensor, modality: Modality | None = None) -> Features:
    """Return features in which each embedding is its own only part."""
    mask = torch.ones(len(embedding), 1, dtype=torch.bool, device=embedding.device)
    return Features(embedding, embedding.unsqueeze(1), mask, modality)


def concat_features(features: list[Features], embed_dim: int, modality: Modality | None) -> Features:
    """Concatenate batches of features of one modality; parts are padded to the longest."""
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
    """Yield the index of the first row and the features of each block of at most `block_size` rows."""
    for first in range(0, len(features.embedding), block_size):
        yield first, features.take(slice(first, first + block_size))
