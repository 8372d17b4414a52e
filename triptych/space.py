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
from triptych.card import shared_files
from triptych.contracts import MODALITIES, Batch, Encoder, Features, Given, Modality, Pair, Similarity, Source
from triptych.data.cache import Cache, fingerprint, halved
from triptych.data.features import remember
from triptych.data.loader import collate, prepared
from triptych.encoders import ENCODERS
from triptych.encoders.joint import joint_modalities
from triptych.errors import CheckpointError, InputError, MediaError, RecipeError, UsageError, unknown
from triptych.files import write_text
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
        self.history: dict[str, Any] = {}  # what it was trained on, and how good it was; for the model card
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
        for module in self.modules():
            weights = list(module.parameters()) if module is not self else []
            if weights and not any(weight.requires_grad for weight in weights):
                module.train(False)
        return self

    def own_weights(self) -> dict[str, Tensor]:
        """What is the space's own; weights of frozen encoders come with those, and are only named by a hash."""
        given = tuple(f"encoders.{modality}." for modality in self.frozen)
        return {name: value for name, value in self.state_dict().items() if not name.startswith(given)}

    def contents(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything the space is, as tensors and a header to save."""
        header = {
            "recipe": self.recipe.text(),
            "files": {m: self.encoder(m).files() for m in self.modalities},
            "frozen": {m: fingerprint(self.encoder(m)) for m in self.frozen},
            "history": self.history,
        }
        return {f"space.{name}": value for name, value in self.own_weights().items()}, header

    @staticmethod
    def of(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> Space:
        """The space that `contents` described, ready to embed; `path` is for messages."""
        own = {name.removeprefix("space."): t for name, t in tensors.items() if name.startswith("space.")}
        try:
            space = Space(Recipe.parse(header["recipe"], where=f"the recipe in {path}"))
            for modality in space.modalities:
                if files := header["files"].get(modality):
                    _restore(path, space.encoder(modality), files)
            space._refuse_other_weights(path, header.get("frozen", {}))
            mine = space.own_weights()
            space.load_state_dict(own | {name: t for name, t in space.state_dict().items() if name not in mine})
            space.history = dict(header.get("history", {}))
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"{path}: its parts do not fit together ({error}); the file has been changed"
            ) from error
        for name, value in space.named_parameters():
            if name not in own:
                continue  # frozen: it came with its encoder
            if own[name].dtype != value.dtype:
                raise CheckpointError(f"{path}: the weights {name} are {own[name].dtype}; they should be {value.dtype}")
            if not torch.isfinite(value).all():
                raise CheckpointError(f"{path}: the weights {name} hold NaN or infinity; train the space again")
        space.eval()._refuse_constant_embeddings(path)
        return space

    @torch.inference_mode()
    def _refuse_constant_embeddings(self, path: Path) -> None:
        """Refuse weights that give every item of a modality one and the same embedding, as weights of 0 do."""
        for modality in self.modalities:
            matrices = [weight for weight in self.encoder(modality).parameters() if weight.ndim > 1]
            sizes = 2 if self.recipe.space.pooling == "mean_max" else 1
            pooled = torch.randn(2, sizes, self.encoder(modality).width, generator=torch.Generator().manual_seed(0))
            embedding = self.locate(modality, pooled, torch.ones(2, sizes, dtype=torch.bool), "pooled")
            if (matrices and not any(matrix.any() for matrix in matrices)) or torch.equal(*embedding):
                raise CheckpointError(
                    f"{path}: gives every {modality} the same embedding, as the weights behind it are 0; "
                    "train the space again"
                )

    def _refuse_other_weights(self, path: Path, frozen: Mapping[str, str]) -> None:
        for modality in self.frozen:
            encoder = self.encoder(modality)
            if fingerprint(encoder) != frozen.get(modality):
                raise CheckpointError(
                    f"{path}: was trained with other weights or settings of {type(encoder).__name__} than are here; "
                    f"install what it was trained with ({encoder.origin}), or train again"
                )

    @staticmethod
    def load(path: str | Path) -> Space:
        """The space of a run folder, of a folder that `save_pretrained` wrote, or of a .safetensors file."""
        place = saved.find(path)
        return ready_made(place) if place.is_dir() else Space.of(place, *saved.read(place))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the space for others, as the Hugging Face hub has models: weights, config, tokenizer, model card.

        Where our own files lay is left out; `Space.load` takes the folder on any machine, and asks no network.
        """
        folder, shared = Path(folder), self.recipe.for_others()
        tensors, header = self.contents()
        saved.write(folder / saved.SHARED_FILE, tensors, header | {"recipe": shared.text()})
        encoders: dict[Modality, Encoder] = {m: self.encoder(m) for m in self.modalities}
        for name, text in shared_files(shared, encoders, self.history).items():
            write_text(folder / name, text)

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
        embedding = self.locate(modality, found, mask, given)
        if given == "pooled" or not parts:
            return alone(embedding)
        if modality in self.frozen and given == "inputs":
            found = halved(found).to(found.dtype)  # as they would come out of the cache
        found = torch.cat([found, found], dim=2) if self.recipe.space.pooling == "mean_max" else found
        return Features(embedding, self.shared(self.heads[modality](found)), mask)

    def locate(self, modality: Modality, found: Tensor, mask: Tensor, given: Given = "parts") -> Tensor:
        """What an encoder has made of items, pooled, projected and brought onto the geometry: (N, D)."""
        wide = self.recipe.space.pooling == "mean_max"
        if given == "pooled":
            pooled = found.flatten(1) if wide else found[:, 0]
        else:
            pooled = torch.cat([mean(found, mask), maximum(found, mask)], dim=1) if wide else mean(found, mask)
        return onto(self.recipe.space.geometry, self.shared(self.heads[modality](pooled)))

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
            found = self._at_home(modality, inputs, "inputs", parts) if inputs else None
            yield [i for i, _ in read], found, failed
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
            yield some, self._at_home(modality, inputs, "parts" if parts else "pooled", parts), {}

    def _at_home(self, modality: Modality, inputs: tuple[Tensor, Tensor], given: Given, parts: bool) -> Features:
        """Computed where the weights are, and brought back to the CPU."""
        home = next(self.parameters()).device
        return self(modality, *(x.to(home) for x in inputs), given, parts).to(torch.device("cpu"))

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
    space = Space(Recipe("ready-made", shape, objectives=())).eval()
    space._refuse_constant_embeddings(folder)
    return space


Piece = tuple[list[int], Features | None, dict[Source, str]]  # places read, their features, and what failed


def _restore(path: Path, encoder: Encoder, files: dict[str, str]) -> None:
    """Give an encoder its files back; what is wrong with them names the file that holds them."""
    try:
        encoder.restore(files)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


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
    mask = torch.ones(len(embedding), 1, dtype=torch.bool, device=embedding.device)
    return Features(embedding, embedding.unsqueeze(1), mask)


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
