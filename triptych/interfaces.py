"""The types and base classes that all other modules use. Read this module first.

Letters in shapes: N and M items; L or P parts per item; D embedding dimension; C classes; S index vector dimension.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from triptych.errors import InputError

Modality = Literal["image", "audio", "text"]  # a pair of modalities is always written in this order
MODALITIES: tuple[Modality, ...] = get_args(Modality)
# Prepared inputs of an encoder, part vectors returned by an encoder, or the mean (and maximum) of these part vectors.
InputKind = Literal["inputs", "parts", "pooled"]
# Location of a part. Image: left, top, right, bottom as fractions of the displayed width and height. Audio and video:
# start and end in seconds. Text: start and end character offsets in the normalised text. Empty: the part has no
# location, for example a special token or a vector of the complete item.
Region = tuple[float, ...]


@dataclass(frozen=True)
class Source:
    """One item to embed: a text, a file, or the segment of a file between start and end (seconds)."""

    modality: Modality
    content: str | Path
    start: float | None = None
    end: float | None = None

    def __str__(self) -> str:
        segment = "" if self.start is None and self.end is None else f" [{self.start or 0:g}–{self.end or 'end'} s]"
        return f"{self.content}{segment}"


@dataclass(frozen=True)
class Batch:
    """Prepared inputs of N rows; rows of the same group are positives of each other."""

    inputs: dict[Modality, Tensor]  # (N, L, ...), padded along L
    masks: dict[Modality, Tensor]  # (N, L) bool, False for padding
    group: Tensor  # (N,) int
    teacher_targets: Tensor | None = None  # (N, C) class probabilities
    input_kinds: dict[Modality, InputKind] = field(default_factory=dict)  # a missing modality means "inputs"
    row_ids: tuple[str, ...] = ()  # manifest rows, named in error messages

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return replace(
            self,
            inputs={m: x.to(device) for m, x in self.inputs.items()},
            masks={m: x.to(device) for m, x in self.masks.items()},
            group=self.group.to(device),
            teacher_targets=None if self.teacher_targets is None else self.teacher_targets.to(device),
        )


@dataclass(frozen=True)
class Features:
    """Embeddings of N items, and the vectors of the items' parts: frames, image regions or tokens, in order."""

    embedding: Tensor  # (N, D)
    parts: Tensor  # (N, L, D)
    mask: Tensor  # (N, L) bool, False for padding
    modality: Modality | None = None  # required by `Space.scores` only

    def __post_init__(self) -> None:
        embedding, parts, mask = (tuple(t.shape) for t in (self.embedding, self.parts, self.mask))
        if (len(embedding), len(parts), len(mask)) != (2, 3, 2) or parts[:2] != mask or embedding[0] != mask[0]:
            raise InputError(f"embedding {embedding}, parts {parts}, mask {mask}; need (N, D), (N, L, D), (N, L)")
        if not self.mask.any(dim=1).all():
            raise InputError(f"mask: row {int((~self.mask.any(dim=1)).nonzero()[0])} is all padding")

    def require_modality(self) -> Modality:
        """Return the modality; raise InputError if it is not set."""
        if self.modality is None:
            raise InputError("the features have no modality; compute them with Space.embed")
        return self.modality

    def mean_pool(self) -> Tensor:
        """Return the mean part vector of each item, without padding: (N, D)."""
        mask = self.mask.unsqueeze(2)
        return self.parts.masked_fill(~mask, 0).sum(dim=1) / mask.sum(dim=1)

    def to(self, device: torch.device) -> Features:
        """Return the features on a device."""
        return replace(
            self, embedding=self.embedding.to(device), parts=self.parts.to(device), mask=self.mask.to(device)
        )

    def take(self, rows: Tensor | slice) -> Features:
        """Return the features of the selected rows."""
        return replace(self, embedding=self.embedding[rows], parts=self.parts[rows], mask=self.mask[rows])


@dataclass(frozen=True)
class Pair:
    """Features of N rows in two modalities; items `a_i` and `b_j` are positives if rows i and j have the same group."""

    a: Features
    b: Features
    group: Tensor  # (N,) int
    similarity: Similarity
    teacher_targets: Tensor | None = None  # (N, C)

    def __post_init__(self) -> None:
        n, m = len(self.a.embedding), len(self.b.embedding)
        if n == 0 or n != m:
            raise InputError(f"a has {n} rows and b has {m}; need the same number, at least 1")
        if self.group.shape != (n,) or self.group.is_floating_point():
            raise InputError(f"group is {tuple(self.group.shape)} {self.group.dtype}; need ({n},) integers")
        for side, features in (("a", self.a), ("b", self.b)):
            if not torch.isfinite(features.embedding).all():
                raise InputError(f"{side}.embedding contains NaN or infinity")

    @cached_property
    def positive_mask(self) -> Tensor:
        """Bool mask of the pairs (i, j) that are positives; computed on first use, because the mask takes N² bytes."""
        return self.group[:, None] == self.group  # (N, N) bool

    def scores(self) -> Tensor:
        """Return the score of every item `a_i` with every item `b_j`."""
        return self.similarity(self.a, self.b)  # (N, N)


class Encoder(nn.Module, ABC):
    """Encodes a file or text as a sequence of part vectors; includes the preprocessing of the file or text."""

    modality: Modality
    feature_dim: int  # dimension of the part vectors that `forward` returns
    max_seconds: float = math.inf  # longest segment that can be encoded; longer files are split into segments
    frozen: bool = False  # True: weights are not trained and not saved in space files; outputs can be cached
    origin: str = "triptych, trained from scratch"  # where the network and the weights come from
    licence: str = "Apache-2.0"  # licence of the network and the weights
    part_name: str  # the word for a part: frame, region or token

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return what must be installed or provided before the encoder can be created; None if nothing is missing."""
        return None

    def fit_vocabulary(self, sources: Iterable[Source]) -> None:
        """Learn a vocabulary from the training data, before the first training step. Default: do nothing."""

    @abstractmethod
    def prepare(self, source: Source) -> Tensor:
        """Decode one source to a tensor (L, ...); L may vary. Must be deterministic and thread-safe."""

    @abstractmethod
    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode inputs (N, L, ...) with mask (N, L); return parts (N, P, feature_dim) and the mask of parts (N, P).

        The result must not depend on padding.
        """

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG002
        """Return the location of each part of the source, in order. Default: empty locations."""
        return [()] * parts

    def class_probabilities(self, mean: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return class probabilities (N, C) for mean part vectors (N, feature_dim); None if there is no classifier."""
        return None

    def extra_files(self) -> dict[str, str]:
        """Return the text files, such as a tokenizer, that are saved with the weights: file name to text."""
        return {}

    def load_extra_files(self, files: dict[str, str]) -> None:
        """Restore the encoder from the result of `extra_files`."""


class Similarity(nn.Module, ABC):
    """Scores N items against M items; a higher score means more similar. Parameters are saved in the space file."""

    reads_parts: bool = False  # True: forward reads the part vectors. False: forward reads the embeddings only
    # True: query(a) @ keys(b).T equals forward(a, b). False: the product is an approximation, so search uses it only
    # to select candidates, and re-ranks the candidates with forward.
    is_exact: bool

    @abstractmethod
    def forward(self, a: Features, b: Features) -> Tensor: ...  # (N, M)

    @abstractmethod
    def query(self, a: Features) -> Tensor: ...  # (N, S)

    @abstractmethod
    def keys(self, b: Features) -> Tensor: ...  # (M, S)

    def attribution(self, a: Features, b: Features) -> Tensor:
        """Return the contribution of each part of `a_i` and each part of `b_i` to their score: (N, A, B), padding 0.

        Default: the contributions to the inner product of the mean part vectors of the two items.
        """
        products, mask = a.parts @ b.parts.transpose(1, 2), a.mask.unsqueeze(2) & b.mask.unsqueeze(1)
        return products.masked_fill(~mask, 0) / mask.sum(dim=(1, 2), keepdim=True)

    def after_step(self) -> None:
        """Project parameters onto their constraints; called after each optimizer step."""


class Objective(nn.Module, ABC):
    """A training loss for one pair of modalities; returns named terms, and training minimises their sum."""

    @abstractmethod
    def forward(self, pair: Pair) -> dict[str, Tensor]: ...

    def metrics_to_log(self) -> dict[str, float]:
        """Return values to log besides the loss terms, such as a learned temperature."""
        return {}

    def after_step(self) -> None:
        """Project parameters onto their constraints; called after each optimizer step."""
