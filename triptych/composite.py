"""Composite spaces: the direct sum of spaces that were trained apart, with or without a bridge.

A text is embedded by all members that embed texts, an image and an audio file by the members that embed them. With the
members 1 (images and texts) and 2 (audio and texts), the vectors are

    text  = [z1, z2,  0, 1, 0]
    image = [z1,  0,  u, c, 1]
    audio = [ 0, z2,  v, d, e]

z are the embeddings of the members (unit vectors if the member compares by cosine). u and v are the vectors of the
bridge, whose inner product is the score of an image with audio. c, d and e are the offsets of the calibration. Without
a bridge or a calibration, their columns are absent, and the inner product of a text with an image or with audio is the
score of the member. The inner product of two texts, or of two items that several members embed, is the sum of the
scores of the members.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load as unpack_tensors
from safetensors.torch import save as pack_tensors
from torch import Tensor, nn

from triptych.bridge import Bridge
from triptych.data.cache import Cache, fingerprint_encoder
from triptych.data.loader import collate
from triptych.errors import CheckpointError, UsageError
from triptych.interfaces import MODALITIES, Encoder, Modality, Source
from triptych.progress import ProgressBar
from triptych.recipe import Recipe, SpaceConfig
from triptych.settings import Component
from triptych.similarities.cosine import Cosine
from triptych.similarities.dot import Dot
from triptych.space import Space

SEPARATOR = "+"
NON_TEXT: tuple[Modality, Modality] = ("image", "audio")  # the modalities that a bridge connects, as a and b
CALIBRATED_PAIRS = ("image-text", "audio-text", "image-audio")


class Calibration(nn.Module):
    """Standardises the scores of pairs of different modalities: (score - mean) / std of random pairs.

    Scores of texts with images and of texts with audio are then comparable. The ranking within one modality does not
    change. The arguments have the shape (3,), in the order of CALIBRATED_PAIRS.
    """

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.mean: Tensor
        self.std: Tensor

    def scales(self, modality: Modality) -> tuple[Tensor, Tensor]:
        """Return the factors of a modality's embeddings and of its bridge vectors."""
        one = torch.ones_like(self.std[0])
        return (one, one) if modality == "text" else (1 / self.std[NON_TEXT.index(modality)], self.std[2].rsqrt())

    def offsets(self, modality: Modality) -> Tensor:
        """Return the two last columns of a modality. The inner product of the columns of a pair is -mean/std."""
        image, audio, both = -self.mean / self.std
        one, zero = torch.ones_like(both), torch.zeros_like(both)
        columns = {"text": (one, zero), "image": (image, one), "audio": (audio, both - image * audio)}
        return torch.stack(columns[modality])


@dataclass(frozen=True)
class CompositeLayout:
    """The dimensions of the embeddings of the members, of the bridge (0: no bridge) and of the calibration (0 or 2)."""

    dims: tuple[int, ...]
    bridge_dim: int = 0
    offset_dim: int = 0

    @property
    def embed_dim(self) -> int:
        """The dimension of the composite embedding."""
        return sum(self.dims) + self.bridge_dim + self.offset_dim

    def columns(self, member: int) -> slice:
        """Return the columns of a member's embedding."""
        first = sum(self.dims[:member])
        return slice(first, first + self.dims[member])

    def select(self, embeddings: Tensor, members: Sequence[int]) -> Tensor:
        """Return the columns of several members (N, W), side by side."""
        return torch.cat([embeddings[:, self.columns(member)] for member in members], dim=1)


class CompositeTower(nn.Module):
    """The encoder and the heads of one member for one modality."""

    def __init__(self, member: Space, modality: Modality) -> None:
        super().__init__()
        self.modality: Modality = modality
        self.encoder, self.head = member.encoder(modality), member.heads[modality]
        self.shared_head, self.similarity = member.shared_head, member.similarity
        self._member = (member,)  # in a tuple, so that the encoders of other modalities are not sub-modules

    @property
    def member(self) -> Space:
        """The space of the tower."""
        return self._member[0]

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Return the index vectors (N, D) of the member, whose inner products are its scores."""
        return self.similarity.keys(self.member(self.modality, inputs, mask, with_parts=False))

    def describe(self) -> list[str]:
        """Return all that determines the vectors, except the weights of the heads."""
        config = self.member.recipe.space
        return [fingerprint_encoder(self.encoder), config.geometry, config.pooling, config.similarity.name]


class CompositeEncoder(Encoder):
    """The encoders of several members for one modality. The only part of an item is its composite embedding.

    If several members embed the modality, the inputs of the members are packed into one tensor of bytes.
    """

    part_name = "item"
    frozen = True

    def __init__(
        self,
        modality: Modality,
        towers: Mapping[int, CompositeTower],
        layout: CompositeLayout,
        bridge: Bridge | None,
        calibration: Calibration | None,
    ) -> None:
        super().__init__()
        self.modality, self.layout, self.feature_dim = modality, layout, layout.embed_dim
        self.towers = nn.ModuleDict({str(member): tower for member, tower in towers.items()})
        self.bridge, self.calibration = bridge, calibration
        encoders = [tower.encoder for tower in towers.values()]
        self.max_seconds = min(encoder.max_seconds for encoder in encoders)
        self.origin = _join_unique(encoder.origin for encoder in encoders)
        self.licence = _join_unique(encoder.licence for encoder in encoders)
        names = dict.fromkeys(name for encoder in encoders for name in encoder.prompts)
        texts = {name: _join_unique(e.prompts[name] for e in encoders if name in e.prompts) for name in names}
        self.prompts = MappingProxyType(texts)

    def prepare(self, source: Source) -> Tensor:
        """Return the input of the member, or the packed inputs of several members: (L,) uint8."""
        plain, inputs = replace(source, prompt_name=None), list[Tensor]()
        for tower in self._towers:
            prompted = tower.encoder.with_prompt(plain, source.prompt_name) if source.prompt_name else plain
            inputs.append(tower.encoder.prepare(prompted))
        if len(inputs) == 1:
            return inputs[0]
        packed = pack_tensors({str(i): x.contiguous() for i, x in enumerate(inputs)})
        return torch.frombuffer(bytearray(packed), dtype=torch.uint8)

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the composite embeddings (N, 1, feature_dim) and their mask (N, 1)."""
        vectors = [tower(*batch) for tower, batch in zip(self._towers, self._unpack(inputs, mask), strict=True)]
        return self.combine(vectors).unsqueeze(1), mask[:, :1]

    def combine(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the composite embeddings (N, feature_dim) of the index vectors (N, D) of each member."""
        embedding = vectors[0].new_zeros(len(vectors[0]), self.feature_dim)
        for member, vector in zip(self.members, vectors, strict=True):
            embedding[:, self.layout.columns(member)] = vector
        first, last = sum(self.layout.dims), sum(self.layout.dims) + self.layout.bridge_dim
        if self.bridge is not None and self.modality != "text":
            embed = self.bridge.embed_a if self.modality == NON_TEXT[0] else self.bridge.embed_b
            embedding[:, first:last] = embed(torch.cat(list(vectors), dim=1))
        if self.calibration is not None:
            scale, bridge_scale = self.calibration.scales(self.modality)
            embedding[:, :first] *= scale
            embedding[:, first:last] *= bridge_scale
            embedding[:, last:] = self.calibration.offsets(self.modality)
        return embedding

    def embed_sources(
        self, sources: Sequence[Source], cache: Cache | None = None, progress: ProgressBar | None = None
    ) -> tuple[list[int], Tensor, dict[Source, str]]:
        """Embed sources by the members, whose caches are used: the positions of readable sources, embeddings, failures.

        The embeddings are those of `forward`. The cache of a member may contain the sources already, for example the
        captions on which the member was trained.
        """
        options: dict[str, Any] = {"with_parts": False, "cache": cache}
        bars = [progress, *[None] * (len(self.towers) - 1)]
        results = [
            tower.member.embed(sources, self.modality, progress=bar, **options)
            for tower, bar in zip(self._towers, bars, strict=True)
        ]
        failures = {source: reason for result in results for source, reason in result.failures.items()}
        indices = [i for i, source in enumerate(sources) if source not in failures]
        vectors = []
        for tower, result in zip(self._towers, results, strict=True):
            rows = {index: row for row, index in enumerate(result.indices)}
            vectors.append(tower.similarity.keys(result.features)[[rows[i] for i in indices]])
        return indices, self.combine(vectors), failures

    def extra_files(self) -> dict[str, str]:
        """Return a description of the members, so that the fingerprint of the encoder depends on their settings."""
        towers: Any = self.towers
        return {"members.json": json.dumps({name: t.describe() for name, t in towers.items()})}

    @property
    def members(self) -> list[int]:
        """The positions of the members that embed the modality."""
        return [int(name) for name in self.towers]

    @property
    def _towers(self) -> list[Any]:
        return list(self.towers.values())

    def _unpack(self, inputs: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the batch of inputs and the mask of each member."""
        if len(self.towers) == 1:
            return [(inputs, mask)]
        rows = [row[is_byte].cpu().numpy().tobytes() for row, is_byte in zip(inputs, mask, strict=True)]
        items = [unpack_tensors(row) for row in rows]
        batches = [collate([item[str(i)] for item in items]) for i in range(len(self.towers))]
        return [(x.to(inputs.device), m.to(inputs.device)) for x, m in batches]


def join_spaces(
    members: Sequence[Space], bridge: Bridge | None = None, calibration: Calibration | None = None
) -> Space:
    """Return the direct sum of spaces, optionally with a bridge between images and audio, and with a calibration.

    Members may have different dimensions. If several members embed a modality, their scores are added. The encoders of
    the members are shared with the composite space, which cannot be trained.

    Args:
        members: Two or more spaces that compare by cosine or dot product.
        bridge: A bridge from the embeddings of images to the embeddings of audio; see `triptych.bridge`.
        calibration: The mean and standard deviation of the scores of random pairs.

    Returns:
        A space with the similarity `dot`, in evaluation mode.

    Raises:
        UsageError: A member has another similarity, or has no modality in common with the other members.
    """
    for member in members:
        if not isinstance(member.similarity, Cosine | Dot):
            name = member.recipe.space.similarity.name
            raise UsageError(f"{member.name_or_path}: compares by {name}; a composite space needs cosine or dot")
        others = {m for other in members if other is not member for m in other.modalities}
        if not others.intersection(member.modalities):
            problem = (
                f"embeds {', '.join(member.modalities)}; the other members, {', '.join(sorted(others)) or 'nothing'}"
            )
            raise UsageError(f"{member.name_or_path}: {problem}; members need a common modality, such as text")
    dims = tuple(member.recipe.space.embed_dim for member in members)
    layout = CompositeLayout(dims, bridge.embed_dim if bridge else 0, 2 if calibration else 0)
    components: dict[Modality, Component] = {}
    encoders: dict[Modality, Encoder] = {}
    for modality in MODALITIES:
        towers = {i: CompositeTower(m, modality) for i, m in enumerate(members) if m.supports(modality)}
        if towers:
            names = (members[i].recipe.space.encoders[modality].name for i in towers)
            components[modality] = Component(SEPARATOR.join(names))
            encoders[modality] = CompositeEncoder(modality, towers, layout, bridge, calibration)
    config = SpaceConfig(components, Component("dot"), layout.embed_dim, "free", head=Component("none"))
    return Space(Recipe("composite", config, objectives=()), encoders).eval()


def select_encoder(space: Space, modality: Modality) -> CompositeEncoder:
    """Return the encoder of a modality of a composite space; raise UsageError for another space."""
    encoder = space.encoder(modality)
    if not isinstance(encoder, CompositeEncoder):
        raise UsageError(f"{space.name_or_path}: is not a composite space; name two or more spaces, such as A+B")
    return encoder


def refuse_to_save(space: Space) -> None:
    """Raise CheckpointError for a composite space, whose weights belong to its members."""
    if any(isinstance(space.encoder(modality), CompositeEncoder) for modality in space.modalities):
        remedy = "save the members, and name the space A+B or run `triptych bridge A B -o FOLDER`"
        raise CheckpointError(f"{space.name_or_path}: a composite space has no weights of its own; {remedy}")


def _join_unique(values: Any) -> str:
    return " + ".join(dict.fromkeys(values))
