"""Rows to batches: prepared on worker threads, in an order that only the seed decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from triptych.contracts import Batch, Encoder, Modality, Source
from triptych.data.manifest import Row
from triptych.errors import MediaError, TrainingError, UsageError

AHEAD = 2  # batches that are being prepared while one is used


def source_of(row: Row, modality: Modality, caption: int = 0) -> Source:
    """What a row has of a modality; of several captions, the given one."""
    if modality not in row.modalities:
        raise UsageError(f"row {row.number} has no {modality}; it has {', '.join(row.modalities)}")
    if modality == "text":
        return Source("text", row.texts[caption % len(row.texts)])
    path = (row.audio if modality == "audio" else row.image) or row.video or Path()
    return Source(modality, path, row.start, row.end) if modality == "audio" else Source(modality, path)


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
    ) -> None:
        self.rows, self.encoders, self.batch, self.seed, self.workers = rows, encoders, batch, seed, workers
        self.failures: dict[Source, str] = {}
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
        if not self.kinds:
            wanted = ", ".join(f"{a}–{b}" for a, b in pairs)
            raise TrainingError(
                f"of {len(rows)} rows no two of a kind give a pair to learn from ({wanted}); "
                "`triptych check` shows what is there"
            )

    @property
    def steps(self) -> int:
        """Batches in an epoch; what does not fill a last batch waits for another epoch's shuffle."""
        return sum(max(1, len(members) // self.batch) for members in self.kinds.values())

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
            order = rng.permutation(members)
            count = max(1, len(order) // self.batch)
            plan += [(kind, order[i * self.batch : (i + 1) * self.batch].tolist()) for i in range(count)]
        with _threads(self.workers) as pool:
            waiting: deque[tuple[tuple[Modality, ...], list[int], dict[Modality, list[Future]]]] = deque()
            for place in rng.permutation(len(plan)):
                kind, members = plan[place]
                wanted = {m: [pool.submit(self._input, i, m, int(captions[i])) for i in members] for m in kind}
                waiting.append((kind, members, wanted))
                if len(waiting) > AHEAD:
                    yield from self._assemble(*waiting.popleft())
            while waiting:
                yield from self._assemble(*waiting.popleft())

    def _assemble(
        self, kind: tuple[Modality, ...], members: list[int], wanted: dict[Modality, list[Future]]
    ) -> Iterator[Batch]:
        """One batch of the rows of which everything could be read; none if fewer than two are left."""
        found = {m: [future.result() for future in wanted[m]] for m in kind}
        whole = [i for i in range(len(members)) if all(found[m][i] is not None for m in kind)]
        if len(whole) < 2:
            return
        padded = {m: collate([found[m][i] for i in whole]) for m in kind}
        yield Batch(
            inputs={m: padded[m][0] for m in kind},
            masks={m: padded[m][1] for m in kind},
            group=torch.tensor([self._group[members[i]] for i in whole]),
        )

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
