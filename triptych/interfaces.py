"""The types and base classes that all other modules use. Read this module first.

Letters in tensor shapes: N and M count items, L and P count parts per item, and C counts classes. D is the embedding
dimension. S is the dimension of the index vectors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.errors import InputError

if TYPE_CHECKING:  # so that importing interfaces does not import Pillow
    from PIL import Image

Modality = Literal["image", "audio", "text"]  # the two modalities of a pair are always in this order
MODALITIES: tuple[Modality, ...] = get_args(Modality)
# The kind of a tensor. "inputs": the prepared inputs of an encoder. "parts": the part vectors that an encoder returns.
# "pooled": the mean of the part vectors; with pooling = "mean_max", the mean and the maximum.
InputKind = Literal["inputs", "parts", "pooled"]
# The location of a part. For images: left, top, right and bottom as fractions of the displayed width and height. For
# audio and video: start and end in seconds. For texts: start and end character offsets in the normalised text. The
# tuple is empty if the part has no location, for example if the part is a special token.
Region = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Waveform:
    """Audio in memory: mono float32 samples and their sampling rate."""

    samples: np.ndarray  # (T,)
    rate: int  # sampling rate in Hz

    def __str__(self) -> str:
        return f"audio array of {len(self.samples) / self.rate:.3g} s at {self.rate} Hz"


@dataclass(frozen=True, eq=False)
class Pixels:
    """An image in memory."""

    image: Image.Image

    def __str__(self) -> str:
        return f"image of {self.image.width} × {self.image.height} pixels"


@dataclass(frozen=True)
class Source:
    """One item to embed: a text, a file, a segment of a file, or data in memory.

    Args:
        modality: image, audio or text.
        content: A text, a path, or data in memory as `triptych.inputs.to_source` makes it.
        start: The start of a segment in seconds. Default: the start of the file.
        end: The end of a segment in seconds. Default: the end of the file.
        prompt_name: The name of one of the encoder's prompts, such as "query".

    Example:
        >>> segment = triptych.Source("audio", Path("bark.wav"), start=0.5, end=1.5)
        >>> space.encode(segment).shape
        (32,)
    """

    modality: Modality
    content: str | Path | Waveform | Pixels
    start: float | None = None
    end: float | None = None
    prompt_name: str | None = field(default=None, kw_only=True)

    @property
    def path(self) -> Path:
        """The path of the file; raise InputError if the content is in memory."""
        if isinstance(self.content, Waveform | Pixels):
            raise InputError(f"{self.content}: this operation needs a file, but the content is in memory")
        return Path(self.content)

    def __str__(self) -> str:
        segment = "" if self.start is None and self.end is None else f" [{self.start or 0:g}–{self.end or 'end'} s]"
        return f"{self.content}{segment}"


@dataclass(frozen=True)
class Batch:
    """The prepared inputs of N manifest rows; rows of the same group are positives of each other."""

    inputs: dict[Modality, Tensor]  # (N, L, ...), padded along L
    masks: dict[Modality, Tensor]  # (N, L) bool, False for padding
    group: Tensor  # (N,) int
    teacher_targets: Tensor | None = None  # (N, C) class probabilities
    input_kinds: dict[Modality, InputKind] = field(default_factory=dict)  # default: "inputs" for every modality
    row_ids: tuple[str, ...] = ()  # names of the manifest rows, for error messages

    def to(self, device: torch.device) -> Batch:
        """Return the batch with its tensors copied to a device."""
        return replace(
            self,
            inputs={m: x.to(device) for m, x in self.inputs.items()},
            masks={m: x.to(device) for m, x in self.masks.items()},
            group=self.group.to(device),
            teacher_targets=None if self.teacher_targets is None else self.teacher_targets.to(device),
        )


@dataclass(frozen=True)
class Features:
    """The embeddings of N items, and one vector for each part (frame, image region or token) of each item."""

    embedding: Tensor  # (N, D)
    parts: Tensor  # (N, L, D)
    mask: Tensor  # (N, L) bool, False for padding
    modality: Modality | None = None  # only `Space.scores` requires the modality

    def __post_init__(self) -> None:
        embedding, parts, mask = (tuple(t.shape) for t in (self.embedding, self.parts, self.mask))
        if (len(embedding), len(parts), len(mask)) != (2, 3, 2) or parts[:2] != mask or embedding[0] != mask[0]:
            raise InputError(f"embedding {embedding}, parts {parts}, mask {mask}; need (N, D), (N, L, D), (N, L)")
        if not self.mask.any(dim=1).all():
            raise InputError(f"mask: row {int((~self.mask.any(dim=1)).nonzero()[0])} is all padding")

    def require_modality(self) -> Modality:
        """Return the modality of the features; raise InputError if the modality is not set."""
        if self.modality is None:
            raise InputError("the features have no modality; compute the features with Space.embed")
        return self.modality

    def mean_pool(self) -> Tensor:
        """Return the mean of the part vectors of each item, without padding: (N, D)."""
        mask = self.mask.unsqueeze(2)
        return self.parts.masked_fill(~mask, 0).sum(dim=1) / mask.sum(dim=1)

    def to(self, device: torch.device) -> Features:
        """Return the features with their tensors copied to a device."""
        return Features(self.embedding.to(device), self.parts.to(device), self.mask.to(device), self.modality)

    def take(self, rows: Tensor | slice) -> Features:
        """Return the features of the selected rows."""
        return Features(self.embedding[rows], self.parts[rows], self.mask[rows], self.modality)


def features_from_embeddings(embeddings: Tensor | np.ndarray, modality: Modality | None = None) -> Features:
    """Return features in which the only part of each item is its embedding; `embeddings` is (N, D) or (D,)."""
    tensor = torch.as_tensor(embeddings)
    if tensor.dim() not in (1, 2) or not tensor.is_floating_point():
        raise InputError(f"embeddings are {tuple(tensor.shape)} {tensor.dtype}; need (N, D) of a floating-point dtype")
    tensor = tensor.reshape(-1, tensor.shape[-1])
    mask = torch.ones(len(tensor), 1, dtype=torch.bool, device=tensor.device)
    return Features(tensor, tensor.unsqueeze(1), mask, modality)


def features_from_parts(parts: Tensor, mask: Tensor, modality: Modality | None = None) -> Features:
    """Return features of part vectors (N, L, D) with mask (N, L); the embedding is the mean of the parts of an item."""
    features = Features(parts[:, 0], parts, mask, modality)
    return replace(features, embedding=features.mean_pool())


def concat_features(features: list[Features], embed_dim: int, modality: Modality | None) -> Features:
    """Concatenate batches of features of one modality, with part vectors padded to the largest number of parts."""
    if not features:
        return features_from_embeddings(torch.empty(0, embed_dim), modality)
    max_parts = max(f.parts.shape[1] for f in features)
    return Features(
        torch.cat([f.embedding for f in features]),
        torch.cat([F.pad(f.parts, (0, 0, 0, max_parts - f.parts.shape[1])) for f in features]),
        torch.cat([F.pad(f.mask, (0, max_parts - f.mask.shape[1])) for f in features]),
        modality,
    )


def iter_blocks(features: Features, block_size: int) -> Iterator[tuple[int, Features]]:
    """Split features into blocks of at most `block_size` rows; yield each block's first row index and features."""
    for first in range(0, len(features.embedding), block_size):
        yield first, features.take(slice(first, first + block_size))


@dataclass(frozen=True)
class Pair:
    """The features of N rows in two modalities; items `a_i` and `b_j` are positives if rows i and j share a group."""

    a: Features
    b: Features
    group: Tensor  # (N,) int
    similarity: Similarity
    teacher_targets: Tensor | None = None  # (N, C)

    def __post_init__(self) -> None:
        n, m = len(self.a.embedding), len(self.b.embedding)
        if n == 0 or n != m:
            raise InputError(f"a has {n} rows and b has {m} rows; need the same number of rows, at least 1")
        if self.group.shape != (n,) or self.group.is_floating_point():
            raise InputError(f"group is {tuple(self.group.shape)} {self.group.dtype}; need ({n},) integers")
        for side, features in (("a", self.a), ("b", self.b)):
            if not torch.isfinite(features.embedding).all():
                raise InputError(f"{side}.embedding contains NaN or infinity")

    @cached_property
    def positive_mask(self) -> Tensor:
        """Bool mask (N, N) of the positive pairs (i, j), computed on first access because the mask takes N² bytes."""
        return self.group[:, None] == self.group  # (N, N) bool

    def scores(self) -> Tensor:
        """Return the score of every item `a_i` with every item `b_j`."""
        return self.similarity(self.a, self.b)  # (N, N)


class Backend(ABC):
    """Computes `Encoder.forward` in another way for inference, such as in half precision or with ONNX Runtime."""

    name: str  # part of the cache key, because the features may differ from those of `forward`

    @abstractmethod
    def __call__(self, encoder: Encoder, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parts (N, P, feature_dim) and the mask of parts (N, P), as `encoder.forward`, in float32."""


class Encoder(nn.Module, ABC):
    """Encodes files or texts as sequences of part vectors: `prepare` reads a source, and `forward` encodes a batch."""

    modality: Modality
    feature_dim: int  # the dimension of the part vectors that `forward` returns
    max_seconds: float = math.inf  # length of the longest segment that the encoder accepts
    frozen: bool = False  # True: the weights are not trained, and the encoder's outputs can be cached
    origin: str = "triptych, trained from scratch"  # where the network and the weights come from
    licence: str = "Apache-2.0"  # the licence of the network and the weights
    part_name: str  # what a part of this modality is called: frame, region or token
    prompts: Mapping[str, str] = MappingProxyType({})  # prompts of the model by name: "query", "document" …
    weights_files: tuple[Any, ...] = ()  # the published files (`encoders.weights.WeightsFile`) that the encoder reads
    backend: Backend | None = None  # computes `forward` for inference; None: PyTorch in the dtype of the weights

    def __call__(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode a batch as `forward` does, with the backend if no gradient is needed."""
        if self.backend is None or self.training or torch.is_grad_enabled():
            return super().__call__(inputs, mask)
        return self.backend(self, inputs, mask)

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return a message about the package or file that the encoder needs; None if nothing is missing."""
        return next((reason for file in cls.weights_files if (reason := file.unavailable_reason())), None)

    def fit_vocabulary(self, sources: Iterable[Source]) -> None:
        """Learn a vocabulary from the training data, before the first training step. The default does nothing."""

    @abstractmethod
    def prepare(self, source: Source) -> Tensor:
        """Decode one source to a tensor (L, ...); L may vary. Implementations must be deterministic and thread-safe."""

    @abstractmethod
    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode inputs (N, L, ...) with mask (N, L); return parts (N, P, feature_dim) and the mask of parts (N, P).

        The encoded parts must not depend on the amount of padding in the inputs.
        """

    def with_prompt(self, source: Source, prompt_name: str) -> Source:
        """Return the source with a prompt of the model. Without a prompt of this name, the source is unchanged."""
        return replace(source, prompt_name=prompt_name) if prompt_name in self.prompts else source

    def part_locations(self, source: Source, parts: int) -> Sequence[Region]:  # noqa: ARG002
        """Return the location of each part of the source, in order. The default returns empty locations."""
        return [()] * parts

    def class_probabilities(self, mean: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return class probabilities (N, C) for mean part vectors (N, W); None if the encoder has no classifier."""
        return None

    @staticmethod
    def class_names() -> tuple[str, ...]:
        """Return the names of the classes, in the order of `class_probabilities`; commas separate synonyms."""
        return ()

    @staticmethod
    def class_categories() -> tuple[str, ...]:
        """Return the category of each class, such as "dog" for breeds, or "" for none; () if no class has one."""
        return ()

    def extra_files(self) -> dict[str, str]:
        """Return a dict from file name to text of the files, such as a tokenizer, that are saved with the weights."""
        return {}

    def load_extra_files(self, files: dict[str, str]) -> None:
        """Restore the encoder from the text files that `extra_files` returned."""


class Head(nn.Module, ABC):
    """Projects the outputs of an encoder to the embedding dimension.

    The space passes `input_dim` and `embed_dim` to the constructor. All other arguments of the constructor are settings
    in the recipe.
    """

    def bind(self, encoder: Encoder) -> None:
        """Prepare the head for the encoder whose outputs it projects. The default does nothing."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Project pooled outputs (N, input_dim) or part vectors (N, P, input_dim) to (..., embed_dim)."""


class Similarity(nn.Module, ABC):
    """Scores each of N items with each of M items: a higher score means more similar."""

    reads_parts: bool = False  # True: forward reads part vectors. False: forward reads only embeddings
    # True: query(a) @ keys(b).T equals forward(a, b). False: query(a) @ keys(b).T is an approximation, with which
    # search selects candidates. Search then ranks the candidates with forward.
    is_exact: bool

    def __call__(self, a: Features | Tensor | np.ndarray, b: Features | Tensor | np.ndarray) -> Tensor:
        """Return the scores (N, M) of features, or of embeddings (N, D) and (M, D) as arrays or tensors."""
        if not isinstance(a, Features) and not isinstance(b, Features) and self.reads_parts:
            raise InputError(
                f"{type(self).__name__} compares parts, and embeddings have no parts; "
                "use Space.scores with the features that Space.embed returns"
            )
        return super().__call__(*(x if isinstance(x, Features) else features_from_embeddings(x) for x in (a, b)))

    @abstractmethod
    def forward(self, a: Features, b: Features) -> Tensor: ...  # (N, M)

    @abstractmethod
    def query(self, a: Features) -> Tensor: ...  # (N, S)

    @abstractmethod
    def keys(self, b: Features) -> Tensor: ...  # (M, S)

    def attribution(self, a: Features, b: Features) -> Tensor:
        """Return the contribution of each part of `a_i` with each part of `b_i` to the score of the items: (N, A, B).

        Contributions of padding are 0. The default returns the contributions to the inner product of the mean part
        vectors of the two items.
        """
        products, mask = a.parts @ b.parts.transpose(1, 2), a.mask.unsqueeze(2) & b.mask.unsqueeze(1)
        return products.masked_fill(~mask, 0) / mask.sum(dim=(1, 2), keepdim=True)

    def after_step(self) -> None:
        """Project the parameters onto their constraints. Training calls this method after each optimizer step."""
