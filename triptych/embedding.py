"""Embed many sources of one modality in batches; decode files in threads, or read encoder outputs from a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from triptych.data.cache import Cache
from triptych.data.features import CachedFeatures, compute_or_load
from triptych.data.loader import collate, prepare_sources
from triptych.errors import InputError, MediaError
from triptych.interfaces import Encoder, Features, InputKind, Source, concat_features
from triptych.progress import ProgressBar

PreparedSource = tuple[Source, Tensor | MediaError]
InputBlock = tuple[list[int], tuple[Tensor, Tensor]]  # the positions, the inputs and the mask of some sources


@dataclass(frozen=True)
class EmbedResult:
    """The features of the readable sources, and error messages for the unreadable sources."""

    indices: list[int]  # indices[i] is the position in `sources` of row i of `features`
    features: Features
    failures: dict[Source, str]


def embed_in_batches(
    compute_features: Callable[[tuple[Tensor, Tensor], InputKind], Features],
    encoder: Encoder,
    sources: Iterable[Source],
    embed_dim: int,
    batch_size: int = 64,
    workers: int = 2,
    progress: ProgressBar | None = None,
    with_parts: bool = True,
    cache: Cache | None = None,
) -> EmbedResult:
    """Embed sources of one modality, in order; `compute_features` maps inputs and their mask to features.

    With a cache, the outputs of the encoder are read from the cache, and missing outputs are added to the cache.
    """
    failures: dict[Source, str] = {}
    input_kind: InputKind = "inputs"
    if cache:
        sources = list(sources)
        cached = compute_or_load(encoder, sources, cache, workers, progress)
        failures, input_kind = cached.failures, "parts" if with_parts else "pooled"
        stream = _iter_cached_inputs(cached, sources, batch_size, with_parts)
    else:
        stream = _iter_inputs(prepare_sources(sources, encoder, workers), batch_size, failures, progress)
    indices: list[int] = []
    blocks: list[Features] = []
    for block_indices, inputs in stream:
        block = compute_features(inputs, input_kind)
        if not torch.isfinite(block.embedding).all():
            raise InputError(f"an embedding of {encoder.modality} contains NaN or infinity; train the space again")
        indices += block_indices
        blocks.append(block)
    return EmbedResult(indices, concat_features(blocks, embed_dim, encoder.modality), failures)


def _iter_inputs(
    prepared: Iterable[PreparedSource], batch_size: int, failures: dict[Source, str], progress: ProgressBar | None
) -> Iterator[InputBlock]:
    """Yield the positions and the inputs of each batch's readable sources; add unreadable sources to `failures`."""
    stream = enumerate(prepared)
    while chunk := list(islice(stream, batch_size)):
        readable = [(i, tensor) for i, (_, tensor) in chunk if not isinstance(tensor, MediaError)]
        failures |= {source: str(error) for _, (source, error) in chunk if isinstance(error, MediaError)}
        if readable:
            yield [i for i, _ in readable], collate([tensor for _, tensor in readable])
        if progress:
            progress.advance(len(chunk))


def _iter_cached_inputs(
    cached: CachedFeatures, sources: Sequence[Source], batch_size: int, with_parts: bool
) -> Iterator[InputBlock]:
    """Yield the positions and the cached encoder outputs of each batch's readable sources."""
    readable = [i for i, source in enumerate(sources) if source in cached.index_of]
    for first in range(0, len(readable), batch_size):
        indices = readable[first : first + batch_size]
        yield indices, cached.load_batch([cached.index_of[sources[i]] for i in indices], with_parts)
