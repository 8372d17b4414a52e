"""The nouns of the house. Read this first.

Letters in shapes: N, M items; L parts of an item; D width; C classes; S index width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from triptych.errors import InputError

Modality = Literal["image", "audio", "text"]  # in this order wherever two of them make a pair
MODALITIES: tuple[Modality, ...] = get_args(Modality)
InputKind = Literal["inputs", "parts", "pooled"]  # prepared files, an encoder's parts, or their mean and maximum
# Where a part lies. In a picture: left, top, right, bottom, as shares of its width and height as it is shown; in a
# sound or film: start and end in seconds of the file; in a text: first character and the one after the last, of
# `media.text.words`. Empty: nowhere in particular, as a mark before a text or a vector for the whole.
Region = tuple[float, ...]


@dataclass(frozen=True)
class Source:
    """One thing to embed: a text, a file, or the moment of a file between start and end (seconds)."""

    modality: Modality
    content: str | Path
    start: float | None = None
    end: float | None = None

    def __str__(self) -> str:
        segment = "" if self.start is None and self.end is None else f" [{self.start or 0:g}–{self.end or 'end'} s]"
        return f"{self.content}{segment}"


@dataclass(frozen=True)
class Batch:
    """Prepared inputs of N rows; rows of one group are right answers to each other."""

    inputs: dict[Modality, Tensor]  # (N, L, ...), padded along L
    masks: dict[Modality, Tensor]  # (N, L) bool, True where real
    group: Tensor  # (N,) int
    teacher_targets: Tensor | None = None  # (N, C) class probabilities
    input_kinds: dict[Modality, InputKind] = field(default_factory=dict)  # what the inputs are, where not "inputs"
    row_ids: tuple[str, ...] = ()  # the ids of the rows, for messages

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return replace(
            self,
            inputs={m: x.to(device) for m, x in self.inputs.items()},
            masks={m: x.to(device) for m, x in self.masks.items()},
            group=self.group.to(device),
            teacher_targets=None if self.teacher_targets is None else self.teacher_targets.to(device),
        )


@dataclass(frozen=True)
class Features:
    """What a space makes of N items: one embedding each, and their parts (frames, regions or words) in order."""

    embedding: Tensor  # (N, D)
    parts: Tensor  # (N, L, D)
    mask: Tensor  # (N, L) bool, True where real
    modality: Modality | None = None  # None: a formula does not need it; `Space.scores` does

    def __post_init__(self) -> None:
        embedding, parts, mask = (tuple(t.shape) for t in (self.embedding, self.parts, self.mask))
        if (len(embedding), len(parts), len(mask)) != (2, 3, 2) or parts[:2] != mask or embedding[0] != mask[0]:
            raise InputError(f"embedding {embedding}, parts {parts}, mask {mask}; need (N, D), (N, L, D), (N, L)")
        if not self.mask.any(dim=1).all():
            raise InputError(f"mask: row {int((~self.mask.any(dim=1)).nonzero()[0])} has no real part")

    def mean_pool(self) -> Tensor:
        """The mean of each item's real parts: (N, D)."""
        mask = self.mask.unsqueeze(2)
        return self.parts.masked_fill(~mask, 0).sum(dim=1) / mask.sum(dim=1)

    def to(self, device: torch.device) -> Features:
        """The same features on a device."""
        return replace(
            self, embedding=self.embedding.to(device), parts=self.parts.to(device), mask=self.mask.to(device)
        )

    def take(self, rows: Tensor | slice) -> Features:
        """Return the features of the selected rows."""
        return replace(self, embedding=self.embedding[rows], parts=self.parts[rows], mask=self.mask[rows])


@dataclass(frozen=True)
class Pair:
    """Two views of the same N rows: row i of a belongs with row i of b, and with every row of its group."""

    a: Features
    b: Features
    group: Tensor  # (N,) int
    similarity: Similarity
    teacher_targets: Tensor | None = None  # (N, C)

    def __post_init__(self) -> None:
        n, m = len(self.a.embedding), len(self.b.embedding)
        if n == 0 or n != m:
            raise InputError(f"a has {n} rows and b has {m}; row i of a belongs with row i of b, and one is the least")
        if self.group.shape != (n,) or self.group.is_floating_point():
            raise InputError(f"group is {tuple(self.group.shape)} {self.group.dtype}; need ({n},) whole numbers")
        for side, features in (("a", self.a), ("b", self.b)):
            if not torch.isfinite(features.embedding).all():
                raise InputError(f"{side}.embedding holds NaN or infinity")

    @cached_property
    def positive_mask(self) -> Tensor:
        """Every right answer, made only where it is asked for: N² bytes."""
        return self.group[:, None] == self.group  # (N, N) bool

    def scores(self) -> Tensor:
        """Every row of a against every row of b."""
        return self.similarity(self.a, self.b)  # (N, N)


@dataclass(frozen=True)
class Hit:
    """One search result; start and end (seconds) where it is a moment of a longer file."""

    item: str  # the file, or the text itself
    modality: Modality
    score: float  # the space's own similarity; of several parts, their standardised scores together
    captions: tuple[str, ...] = ()
    start: float | None = None
    end: float | None = None
    id: str = ""  # of the item in its collection
    relevance: float = 0.0  # 0 to 1: how unusual the score is against the collection's background; see RELEVANT
    parts: tuple[float, ...] = ()  # the similarity to each part of the query, in the query's order
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what the manifest says of it
    duration: float | None = None  # seconds
    excerpt: str | None = None  # how a text file began when it was indexed
    copies: tuple[str, ...] = ()  # ids of items that are nearly the same and are therefore not listed


class Encoder(nn.Module, ABC):
    """A file or text -> its parts. Owns its preprocessing, so that training and search cannot differ."""

    modality: Modality
    feature_dim: int  # D of the parts it returns
    max_seconds: float = math.inf  # the longest piece it takes at once; longer files are indexed as moments
    frozen: bool = False  # its weights are given and stay: each file goes through it once, and runs do not save it
    origin: str = "triptych, trained from scratch"  # where network and weights come from
    licence: str = "Apache-2.0"  # of network and weights
    part_name: str  # what a part is: frame, region, word …

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """What must be installed or given before it can be made, as one sentence; None when everything is at hand."""
        return None

    def fit_vocabulary(self, sources: Iterable[Source]) -> None:
        """Learn what must be known of the training data before the first step (a vocabulary); most learn nothing."""

    @abstractmethod
    def prepare(self, source: Source) -> Tensor:
        """Decode one source to (L, ...); L may vary. Runs on worker threads; the same source gives the same tensor."""

    @abstractmethod
    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(N, L, ...) and (N, L) -> parts (N, P, width) and their mask (N, P); padding changes nothing."""

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG002
        """Where each of a source's so many real parts lies, in order; unless an encoder knows better, nowhere."""
        return [()] * parts

    def class_probabilities(self, mean: Tensor) -> Tensor | None:  # noqa: ARG002
        """Class probabilities (N, C) from the mean of the parts (N, width); None where it was not taught classes."""
        return None

    def extra_files(self) -> dict[str, str]:
        """What the encoder needs beside its weights, as named texts that are saved with the space."""
        return {}

    def load_extra_files(self, files: dict[str, str]) -> None:
        """Take back what `files` gave."""


class Similarity(nn.Module, ABC):
    """Scores of N items against M: always higher = more alike. Belongs to the saved space."""

    reads_parts: bool = False  # beside or instead of the embedding
    is_exact: bool  # query(a) @ keys(b).T equals forward(a, b); else it is a shortlist that forward re-ranks

    @abstractmethod
    def forward(self, a: Features, b: Features) -> Tensor: ...  # (N, M)

    @abstractmethod
    def query(self, a: Features) -> Tensor: ...  # (N, S)

    @abstractmethod
    def keys(self, b: Features) -> Tensor: ...  # (M, S)

    def attribution(self, a: Features, b: Features) -> Tensor:
        """How much each part of row i of a and each part of row i of b speak for each other: (N, A, B), padding 0.

        Unless a similarity has its own: the share of two parts in the inner product of the two items' mean parts.
        """
        products, mask = a.parts @ b.parts.transpose(1, 2), a.mask.unsqueeze(2) & b.mask.unsqueeze(1)
        return products.masked_fill(~mask, 0) / mask.sum(dim=(1, 2), keepdim=True)

    def after_step(self) -> None:
        """Bring parameters back to where they are allowed to be, after each optimizer step."""


class Objective(nn.Module, ABC):
    """What training minimises for one pair of modalities: named terms, whose sum counts."""

    @abstractmethod
    def forward(self, pair: Pair) -> dict[str, Tensor]: ...

    def metrics_to_log(self) -> dict[str, float]:
        """What is worth logging of it beside its terms, such as a learned temperature."""
        return {}

    def after_step(self) -> None:
        """Bring parameters back to where they are allowed to be, after each optimizer step."""
