"""The data loader: prepare batches of rows on worker threads, in an order that depends only on the seed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from triptych.data.manifest import Row
from triptych.errors import MediaError, TrainingError, UsageError, describe_unknown
from triptych.interfaces import Batch, Encoder, Modality, Source

ModalitySet = tuple[Modality, ...]
PendingInput = Future[Tensor | None] | int | None
PREFETCH_BATCHES = 2  # number of batches that are prepared before they are needed


def source_of(row: Row, modality: Modality, caption: int = 0) -> Source:
    """Return the source of a row in one modality; `caption` is the index of the caption."""
    if modality not in row.modalities:
        raise UsageError(f"row {row.number} has no {modality}; it has {', '.join(row.modalities)}")
    if modality == "text":
        return Source("text", row.texts[caption % len(row.texts)])
    path = (row.audio if modality == "audio" else row.image) or row.video or Path()
    is_timed = modality == "audio" or path == row.video  # images have no segments
    return Source(modality, path, row.start, row.end) if is_timed else Source(modality, path)


def sources_of(row: Row, modality: Modality) -> list[Source]:
    """Return all sources of a row in one modality: one file, or all captions."""
    count = len(row.texts) if modality == "text" else 1
    return [source_of(row, modality, caption) for caption in range(count)]


def collate(inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad N tensors (L_i, ...) with zeros to one tensor (N, L, ...); also return a mask (N, L), false for padding."""
    lengths = torch.tensor([len(x) for x in inputs])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    return torch.nn.utils.rnn.pad_sequence(list(inputs), batch_first=True), mask


def prepare_sources(
    sources: Iterable[Source], encoder: Encoder, workers: int = 2, prefetch: int = 64
) -> Iterator[tuple[Source, Tensor | MediaError]]:
    """Yield each source, in order, with its prepared tensor or with the MediaError that it raised."""
    with open_thread_pool(workers) as pool:
        pending: deque[tuple[Source, Future[Tensor | MediaError]]] = deque()
        for source in sources:
            pending.append((source, pool.submit(_prepare, encoder, source)))
            if len(pending) > prefetch:
                first, future = pending.popleft()
                yield first, future.result()
        for source, future in pending:
            yield source, future.result()


class PrecomputedFeatures(Protocol):
    """Features that were computed earlier, addressed by index."""

    index_of: dict[Source, int]
    failures: dict[Source, str]

    def load_batch(self, indices: Sequence[int], with_parts: bool) -> tuple[Tensor, Tensor]: ...


class Loader:
    """Forms batches of rows that have a trained pair of modalities. All rows of a batch have the same modalities."""

    def __init__(
        self,
        rows: Sequence[Row],
        encoders: Mapping[Modality, Encoder],
        pairs: Collection[tuple[Modality, Modality]],
        batch_size: int,
        seed: int,
        workers: int = 2,
        memory_mb: int = 2000,
        precomputed: Mapping[Modality, PrecomputedFeatures] | None = None,
        with_parts: bool = True,
        weights: Mapping[str, float] | None = None,
        teacher: Mapping[Source, Tensor] | None = None,
        shard: tuple[int, int] = (0, 1),
        all_reduce_sum: Callable[[int], int] = int,
    ) -> None:
        """With several processes, each process loads its `shard` (rank, world size) of every batch."""
        self.rows, self.encoders, self.batch_size, self.seed, self.workers = rows, encoders, batch_size, seed, workers
        self.precomputed, self.with_parts, self.teacher = precomputed or {}, with_parts, teacher or {}
        self._shard, self._all_reduce_sum = shard, all_reduce_sum
        self.failures: dict[Source, str] = {}
        self._feature_indices: dict[Modality, list[list[int | None]]] = {}
        for modality, features in self.precomputed.items():
            self.failures |= features.failures
            self._feature_indices[modality] = [_feature_indices(row, modality, features) for row in rows]
        groups = {name: i for i, name in enumerate(dict.fromkeys(row.group for row in rows))}
        self._group = [groups[row.group] for row in rows]
        self._input_cache: dict[Source, Tensor] = {}
        self._cache_bytes_left = memory_mb * 1_000_000
        self._lock = Lock()
        members_by_set: dict[ModalitySet, list[int]] = {}
        for i, row in enumerate(rows):
            modality_set: ModalitySet = tuple(m for m in encoders if m in row.modalities)
            if any(a in modality_set and b in modality_set for a, b in pairs):
                members_by_set.setdefault(modality_set, []).append(i)
        self.modality_sets = {key: members for key, members in members_by_set.items() if len(members) >= 2}
        self._repeats = _count_repeats(self.modality_sets, weights or {})
        if not self.modality_sets:
            pair_names = ", ".join(f"{a}–{b}" for a, b in pairs)
            raise TrainingError(
                f"no batch can be formed (rows: {len(rows)}): need at least two rows with the same modalities that "
                f"include a trained pair ({pair_names}); run `triptych validate` to count the modalities of the rows"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches per epoch. Incomplete last batches are dropped."""
        return sum(self._count_batches(modality_set) for modality_set in self.modality_sets)

    def _count_batches(self, modality_set: ModalitySet) -> int:
        """Return the number of batches per epoch that the rows with these modalities form."""
        return max(1, int(len(self.modality_sets[modality_set]) * self._repeats[modality_set]) // self.batch_size)

    def describe_empty_epoch(self) -> str:
        """Return the error message for an epoch without a batch."""
        first = next(iter(self.failures.values()), "")
        return f"no file could be read: {len(self.failures)} files failed; the first failure: {first}"

    def iter_epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of one epoch. The batches depend only on the seed and the epoch number."""
        rng = np.random.default_rng([self.seed, number])
        captions = rng.integers(0, 1 << 30, len(self.rows))
        plan = []
        for modality_set, members in self.modality_sets.items():
            repeats, size = max(1, math.ceil(self._repeats[modality_set])), self.batch_size
            order = np.concatenate([rng.permutation(members) for _ in range(repeats)]).tolist()
            count = self._count_batches(modality_set)
            plan += [(modality_set, order[i * size : (i + 1) * size]) for i in range(count)]
        with open_thread_pool(self.workers) as pool:
            queue: deque[tuple[ModalitySet, list[int], dict[Modality, list[PendingInput]]]] = deque()
            for position in rng.permutation(len(plan)):
                modality_set, members = plan[position][0], self._local_shard(plan[position][1])
                pending: dict[Modality, list[PendingInput]] = {
                    m: [self._feature_index(i, m, int(captions[i])) for i in members]
                    if m in self.precomputed
                    else [pool.submit(self._load_input, i, m, int(captions[i])) for i in members]
                    for m in modality_set
                }
                queue.append((modality_set, members, pending))
                if len(queue) > PREFETCH_BATCHES:
                    yield from self._assemble_batch(*queue.popleft())
            while queue:
                yield from self._assemble_batch(*queue.popleft())

    def _assemble_batch(
        self, modality_set: ModalitySet, members: list[int], pending: dict[Modality, list[PendingInput]]
    ) -> Iterator[Batch]:
        """Yield one batch of the readable rows, or no batch if all processes together have fewer than two rows."""
        results = {m: [x.result() if isinstance(x, Future) else x for x in pending[m]] for m in modality_set}
        readable = [i for i in range(len(members)) if all(results[m][i] is not None for m in modality_set)]
        if self._all_reduce_sum(len(readable)) < 2:
            return
        padded = {}
        for m in modality_set:
            values: list[Any] = [results[m][i] for i in readable]
            if not values:  # other processes have all rows of this batch
                padded[m] = torch.zeros(0, 1), torch.zeros(0, 1, dtype=torch.bool)
            elif m in self.precomputed:
                padded[m] = self.precomputed[m].load_batch(values, self.with_parts)
            else:
                padded[m] = collate(values)
        yield Batch(
            inputs={m: padded[m][0] for m in modality_set},
            masks={m: padded[m][1] for m in modality_set},
            group=torch.tensor([self._group[members[i]] for i in readable], dtype=torch.long),
            teacher_targets=self._teacher_targets([members[i] for i in readable]) if "image" in modality_set else None,
            input_kinds={m: "parts" if self.with_parts else "pooled" for m in modality_set if m in self.precomputed},
            row_ids=tuple(self.rows[members[i]].id for i in readable),
        )

    def _local_shard(self, members: list[int]) -> list[int]:
        """Return this process's contiguous slice of a batch."""
        rank, world_size = self._shard
        return members[len(members) * rank // world_size : len(members) * (rank + 1) // world_size]

    def _teacher_targets(self, members: list[int]) -> Tensor | None:
        """Return the teacher's class probabilities for the rows' images; None without a teacher."""
        if not self.teacher:
            return None
        classes = next(iter(self.teacher.values())).shape
        probabilities = [self.teacher[source_of(self.rows[i], "image")] for i in members]
        return torch.stack(probabilities).float() if probabilities else torch.zeros(0, *classes)

    def _feature_index(self, index: int, modality: Modality, caption: int) -> int | None:
        """Return the index of a row's features; None if the features are missing."""
        indices = self._feature_indices[modality][index]
        return indices[caption % len(indices)] if indices else None

    def _load_input(self, index: int, modality: Modality, caption: int) -> Tensor | None:
        """Return a row's prepared input, cached while memory allows. If reading fails, record why and return None."""
        source = source_of(self.rows[index], modality, caption)
        if source in self.failures:
            return None
        if source not in self._input_cache:
            tensor = _prepare(self.encoders[modality], source)
            if isinstance(tensor, MediaError):
                self.failures[source] = str(tensor)
                return None
            size = tensor.numel() * tensor.element_size()
            with self._lock:
                if size > self._cache_bytes_left:
                    return tensor
                self._cache_bytes_left -= size
                self._input_cache[source] = tensor
        return self._input_cache[source]


def _count_repeats(modality_sets: Collection[ModalitySet], weights: Mapping[str, float]) -> dict[ModalitySet, float]:
    """Return, for each modality set, how often the rows with this modality set are repeated in an epoch."""
    names = {"-".join(modality_set): modality_set for modality_set in modality_sets}
    for name in weights:
        if name not in names:
            raise TrainingError(f"data.sampling_weights: {describe_unknown('modality set', name, names)}")
    return {modality_set: weights.get(name, 1.0) for name, modality_set in names.items()}


def _feature_indices(row: Row, modality: Modality, precomputed: PrecomputedFeatures) -> list[int | None]:
    return [precomputed.index_of.get(s) for s in sources_of(row, modality)] if modality in row.modalities else []


@contextmanager
def open_thread_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Open a thread pool that cancels queued work on exit, such as after an interrupt."""
    pool = ThreadPoolExecutor(workers)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare(encoder: Encoder, source: Source) -> Tensor | MediaError:
    try:
        return encoder.prepare(source)
    except MediaError as error:
        return error
