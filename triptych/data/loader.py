"""Rows to batches: prepared on worker threads, in an order that only the seed decides."""

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

from triptych.contracts import Batch, Encoder, Modality, Source
from triptych.data.manifest import Row
from triptych.errors import MediaError, TrainingError, UsageError, unknown

Wanted = Future[Tensor | None] | int | None
AHEAD = 2  # batches that are being prepared while one is used


def source_of(row: Row, modality: Modality, caption: int = 0) -> Source:
    """What a row has of a modality; of several captions, the given one."""
    if modality not in row.modalities:
        raise UsageError(f"row {row.number} has no {modality}; it has {', '.join(row.modalities)}")
    if modality == "text":
        return Source("text", row.texts[caption % len(row.texts)])
    path = (row.audio if modality == "audio" else row.image) or row.video or Path()
    is_timed = modality == "audio" or path == row.video  # a picture has no moments
    return Source(modality, path, row.start, row.end) if is_timed else Source(modality, path)


def sources_of(row: Row, modality: Modality) -> list[Source]:
    """Everything a row has of a modality: one file, or all its captions."""
    count = len(row.texts) if modality == "text" else 1
    return [source_of(row, modality, caption) for caption in range(count)]


def collate(inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Tensors (L_i, ...) to one (N, L, ...), padded with zeros, and the mask (N, L) of what is real."""
    lengths = torch.tensor([len(x) for x in inputs])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    return torch.nn.utils.rnn.pad_sequence(list(inputs), batch_first=True), mask


def prepared(
    sources: Iterable[Source], encoder: Encoder, workers: int = 2, ahead: int = 64
) -> Iterator[tuple[Source, Tensor | MediaError]]:
    """Each source with its tensor, or with the error that names the file, in order."""
    with _threads(workers) as pool:
        waiting: deque[tuple[Source, Future[Tensor | MediaError]]] = deque()
        for source in sources:
            waiting.append((source, pool.submit(_prepare, encoder, source)))
            if len(waiting) > ahead:
                first, future = waiting.popleft()
                yield first, future.result()
        for source, future in waiting:
            yield source, future.result()


class Known(Protocol):
    """Features that are at hand already, by place."""

    place: dict[Source, int]
    failures: dict[Source, str]

    def inputs(self, places: Sequence[int], parts: bool) -> tuple[Tensor, Tensor]: ...


class Loader:
    """Batches of the rows that have both sides of a trained pair, each batch of one kind of row."""

    def __init__(
        self,
        rows: Sequence[Row],
        encoders: Mapping[Modality, Encoder],
        pairs: Collection[tuple[Modality, Modality]],
        batch: int,
        seed: int,
        workers: int = 2,
        memory_mb: int = 2000,
        known: Mapping[Modality, Known] | None = None,
        parts: bool = True,
        weights: Mapping[str, float] | None = None,
        teacher: Mapping[Source, Tensor] | None = None,
        part: tuple[int, int] = (0, 1),
        total: Callable[[int], int] = int,
    ) -> None:
        """Of several processes, each reads its `part` (number, of how many) of every batch; `total` adds them up."""
        self.rows, self.encoders, self.batch, self.seed, self.workers = rows, encoders, batch, seed, workers
        self.known, self.parts, self.teacher = known or {}, parts, teacher or {}
        self._part, self._total = part, total
        self.failures = {source: why for supply in self.known.values() for source, why in supply.failures.items()}
        self._places = {m: [_places(row, m, supply) for row in rows] for m, supply in self.known.items()}
        groups = {name: i for i, name in enumerate(dict.fromkeys(row.group for row in rows))}
        self._group = [groups[row.group] for row in rows]
        self._kept: dict[Source, Tensor] = {}
        self._room = memory_mb * 1_000_000
        self._lock = Lock()
        self.kinds: dict[tuple[Modality, ...], list[int]] = {}
        for i, row in enumerate(rows):
            kind: tuple[Modality, ...] = tuple(m for m in encoders if m in row.modalities)
            if any(a in kind and b in kind for a, b in pairs):
                self.kinds.setdefault(kind, []).append(i)
        self.kinds = {kind: members for kind, members in self.kinds.items() if len(members) >= 2}
        self._times = _times(self.kinds, weights or {})
        if not self.kinds:
            wanted = ", ".join(f"{a}–{b}" for a, b in pairs)
            raise TrainingError(
                f"of {len(rows)} rows no two of a kind give a pair to learn from ({wanted}); "
                "`triptych check` shows what is there"
            )

    @property
    def steps(self) -> int:
        """Batches in an epoch; what does not fill a last batch waits for another epoch's shuffle."""
        return sum(self._count(kind) for kind in self.kinds)

    def _count(self, kind: tuple[Modality, ...]) -> int:
        """Batches of a kind of rows in an epoch."""
        return max(1, int(len(self.kinds[kind]) * self._times[kind]) // self.batch)

    def nothing_read(self) -> str:
        """What to say when an epoch had no batch at all."""
        first = next(iter(self.failures.values()), "")
        return f"nothing could be read: {len(self.failures)} files failed; the first: {first}"

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch: the same for the same seed and number, whatever came before."""
        rng = np.random.default_rng([self.seed, number])
        captions = rng.integers(0, 1 << 30, len(self.rows))
        plan = []
        for kind, members in self.kinds.items():
            count = self._count(kind)
            times = max(1, math.ceil(self._times[kind]))
            order = np.concatenate([rng.permutation(members) for _ in range(times)])
            plan += [(kind, order[i * self.batch : (i + 1) * self.batch].tolist()) for i in range(count)]
        with _threads(self.workers) as pool:
            waiting: deque[tuple[tuple[Modality, ...], list[int], dict[Modality, list[Wanted]]]] = deque()
            for place in rng.permutation(len(plan)):
                kind, members = plan[place][0], self._own(plan[place][1])
                wanted: dict[Modality, list[Wanted]] = {
                    m: [self._place(i, m, int(captions[i])) for i in members]
                    if m in self.known
                    else [pool.submit(self._input, i, m, int(captions[i])) for i in members]
                    for m in kind
                }
                waiting.append((kind, members, wanted))
                if len(waiting) > AHEAD:
                    yield from self._assemble(*waiting.popleft())
            while waiting:
                yield from self._assemble(*waiting.popleft())

    def _assemble(
        self, kind: tuple[Modality, ...], members: list[int], wanted: dict[Modality, list[Wanted]]
    ) -> Iterator[Batch]:
        """One batch of the rows of which everything could be read; none if fewer than two are left in all parts."""
        found = {m: [x.result() if isinstance(x, Future) else x for x in wanted[m]] for m in kind}
        whole = [i for i in range(len(members)) if all(found[m][i] is not None for m in kind)]
        if self._total(len(whole)) < 2:
            return
        padded = {}
        for m in kind:
            some: list[Any] = [found[m][i] for i in whole]
            if not some:  # other processes have rows of this batch, this one has none
                padded[m] = torch.zeros(0, 1), torch.zeros(0, 1, dtype=torch.bool)
            else:
                padded[m] = self.known[m].inputs(some, self.parts) if m in self.known else collate(some)
        yield Batch(
            inputs={m: padded[m][0] for m in kind},
            masks={m: padded[m][1] for m in kind},
            group=torch.tensor([self._group[members[i]] for i in whole], dtype=torch.long),
            teacher=self._taught([members[i] for i in whole]) if "image" in kind else None,
            given={m: "parts" if self.parts else "pooled" for m in kind if m in self.known},
            rows=tuple(self.rows[members[i]].id for i in whole),
        )

    def _own(self, members: list[int]) -> list[int]:
        """This process's part of a batch: a run of neighbours, so that all parts in order are the batch."""
        number, parts = self._part
        return members[len(members) * number // parts : len(members) * (number + 1) // parts]

    def _taught(self, members: list[int]) -> Tensor | None:
        """What the teacher says of the rows' pictures; None where there is no teacher."""
        if not self.teacher:
            return None
        classes = next(iter(self.teacher.values())).shape
        said = [self.teacher[source_of(self.rows[i], "image")] for i in members]
        return torch.stack(said).float() if said else torch.zeros(0, *classes)

    def _place(self, index: int, modality: Modality, caption: int) -> int | None:
        """Where the features of a row are; None where there are none."""
        places = self._places[modality][index]
        return places[caption % len(places)] if places else None

    def _input(self, index: int, modality: Modality, caption: int) -> Tensor | None:
        """A row's prepared input, kept while there is room; None where the file cannot be read, which is noted."""
        source = source_of(self.rows[index], modality, caption)
        if source in self.failures:
            return None
        if source not in self._kept:
            tensor = _prepare(self.encoders[modality], source)
            if isinstance(tensor, MediaError):
                self.failures[source] = str(tensor)
                return None
            size = tensor.numel() * tensor.element_size()
            with self._lock:
                if size > self._room:
                    return tensor
                self._room -= size
                self._kept[source] = tensor
        return self._kept[source]


def _times(kinds: Collection[tuple[Modality, ...]], weights: Mapping[str, float]) -> dict[tuple[Modality, ...], float]:
    """How many times the rows of each kind are gone through in an epoch."""
    names = {"-".join(kind): kind for kind in kinds}
    for name in weights:
        if name not in names:
            raise TrainingError(f"data.weights: {unknown('kind of row', name, names)}")
    return {kind: weights.get(name, 1.0) for name, kind in names.items()}


def _places(row: Row, modality: Modality, known: Known) -> list[int | None]:
    return [known.place.get(s) for s in sources_of(row, modality)] if modality in row.modalities else []


@contextmanager
def _threads(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A pool that drops what is still waiting when its user stops early."""
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
