"""The types that modules exchange. Read this first.

Letters in shapes: N, M items; L parts of an item; D embedding dimension; C classes; S dimension of index vectors.
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

Modality = Literal["image", "audio", "text"]  # pairs of modalities are in this order
MODALITIES: tuple[Modality, ...] = get_args(Modality)
InputKind = Literal["inputs", "parts", "pooled"]  # prepared files, encoder outputs, or their mean and maximum
# Location of a part. Image: left, top, right, bottom as fractions of the displayed width and height. Audio and video:
# start and end in seconds. Text: start and end character offsets in `media.text.words`. Empty: no location, as for a
# special token or a vector of the complete item.
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
    input_kinds: dict[Modality, InputKind] = field(default_factory=dict)  # default: "inputs"
    row_ids: tuple[str, ...] = ()  # for error messages

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
    """Embeddings of N items, and the vectors of their parts (frames, image regions or tokens) in order."""

    embedding: Tensor  # (N, D)
    parts: Tensor  # (N, L, D)
    mask: Tensor  # (N, L) bool, False for padding
    modality: Modality | None = None  # required by `Space.scores`; formulas do not read it

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
        """Return the mean over the parts of each item, without padding: (N, D)."""
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
    """Features of the same N rows in two modalities: a_i and b_j are positives if i and j are in the same group."""

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
        """Which pairs (i, j) are positives; computed on first use because it takes N² bytes."""
        return self.group[:, None] == self.group  # (N, N) bool

    def scores(self) -> Tensor:
        """Return the score of every row of a with every row of b."""
        return self.similarity(self.a, self.b)  # (N, N)


class Encoder(nn.Module, ABC):
    """Encodes a file or text as a sequence of part vectors. Includes its preprocessing."""

    modality: Modality
    feature_dim: int  # of the parts it returns
    max_seconds: float = math.inf  # the longest segment it encodes; longer files are split into segments
    frozen: bool = False  # weights are not trained: outputs can be cached, and runs do not save the weights
    origin: str = "triptych, trained from scratch"  # of network and weights
    licence: str = "Apache-2.0"  # of network and weights
    part_name: str  # what a part is: frame, region, token …

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return what must be installed or provided before the encoder can be created; None if nothing is missing."""
        return None

    def fit_vocabulary(self, sources: Iterable[Source]) -> None:
        """Fit what is derived from the training data before the first step, such as a vocabulary. Default: nothing."""

    @abstractmethod
    def prepare(self, source: Source) -> Tensor:
        """Decode one source to (L, ...); L may vary. Deterministic; runs on worker threads."""

    @abstractmethod
    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode (N, L, ...) with mask (N, L) as parts (N, P, feature_dim) and their mask (N, P).

        The result must not depend on padding.
        """

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG002
        """Return the location of each of the source's parts, in order. Default: no locations."""
        return [()] * parts

    def class_probabilities(self, mean: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return class probabilities (N, C) from the mean of the parts (N, feature_dim); None without a classifier."""
        return None

    def extra_files(self) -> dict[str, str]:
        """Return what the encoder needs besides its weights, as named texts that are saved with the space."""
        return {}

    def load_extra_files(self, files: dict[str, str]) -> None:
        """Restore the encoder from the result of `extra_files`."""


class Similarity(nn.Module, ABC):
    """Scores N items against M; a higher score means more similar. Saved with the space."""

    reads_parts: bool = False  # whether it reads the parts, not only the embedding
    is_exact: bool  # whether query(a) @ keys(b).T equals forward(a, b); otherwise it is a shortlist to re-rank

    @abstractmethod
    def forward(self, a: Features, b: Features) -> Tensor: ...  # (N, M)

    @abstractmethod
    def query(self, a: Features) -> Tensor: ...  # (N, S)

    @abstractmethod
    def keys(self, b: Features) -> Tensor: ...  # (M, S)

    def attribution(self, a: Features, b: Features) -> Tensor:
        """Attribute the score of a_i and b_i to pairs of their parts: (N, A, B), 0 for padding.

        Default: the contribution of two parts to the inner product of the two items' mean parts.
        """
        products, mask = a.parts @ b.parts.transpose(1, 2), a.mask.unsqueeze(2) & b.mask.unsqueeze(1)
        return products.masked_fill(~mask, 0) / mask.sum(dim=(1, 2), keepdim=True)

    def after_step(self) -> None:
        """Project parameters onto their constraints, after each optimizer step."""


class Objective(nn.Module, ABC):
    """A training loss for one pair of modalities: named terms, whose sum is minimised."""

    @abstractmethod
    def forward(self, pair: Pair) -> dict[str, Tensor]: ...

    def metrics_to_log(self) -> dict[str, float]:
        """Return values to log besides the loss terms, such as a learned temperature."""
        return {}

    def after_step(self) -> None:
        """Project parameters onto their constraints, after each optimizer step."""
