"""What frozen encoders have made of a set of sources: filled in from the cache, computed where it is missing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from triptych.contracts import Encoder, Source
from triptych.data.cache import Cache, Record, Shelf
from triptych.data.loader import collate
from triptych.errors import InputError, MediaError
from triptych.progress import Bar

BATCH = 32
SORTED = 4  # batches to a block, whose sources are put in order of length first; a kill costs a block a worker


class Remembered:
    """Features of many sources of one modality: pooled in memory, parts by memory map."""

    def __init__(
        self, shelf: Shelf, records: dict[Source, Record], pooled: Tensor, failures: dict[Source, str]
    ) -> None:
        self.shelf, self.failures = shelf, failures
        self.place = {source: i for i, source in enumerate(records)}
        self.pooled = pooled  # (K, 2, width): mean and maximum
        self._records = list(records.values())

    def inputs(self, places: Sequence[int] | Tensor, parts: bool) -> tuple[Tensor, Tensor]:
        """Features of some places: with parts (N, P, width) float16, else mean and maximum (N, 2, width); the mask."""
        if not parts:
            pooled = self.pooled[torch.as_tensor(places)]
            return pooled, torch.ones(pooled.shape[:2], dtype=torch.bool)
        found = [self.shelf.parts(self._records[int(i)]) for i in places]
        whole = np.zeros((len(found), max(map(len, found)), self.shelf.width), np.float16)
        for row, some in zip(whole, found, strict=True):
            row[: len(some)] = some
        lengths = torch.tensor([len(some) for some in found])
        return torch.from_numpy(whole), torch.arange(whole.shape[1]) < lengths[:, None]


def remember(
    encoder: Encoder, sources: Sequence[Source], cache: Cache, workers: int = 2, bar: Bar | None = None
) -> Remembered:
    """The features of all sources that can be read; only what the cache lacks is computed, and kept as it is made."""
    sources = list(dict.fromkeys(sources))
    shelf, failures = cache.shelf(encoder), dict[Source, str]()
    keys: dict[Source, bytes] = {}
    for source, key in zip(sources, cache.keys(sources), strict=True):
        if isinstance(key, MediaError):
            failures[source] = str(key)
        else:
            keys[source] = key
    found, pooled = _sound(shelf, shelf.find(keys.values()))
    missing = list({key: source for source, key in keys.items() if key not in found}.values())
    if bar:
        bar.advance(len(sources) - len(missing))
    if missing:
        for block, failed in encoded(encoder, missing, workers):
            failures |= failed
            if block:
                shelf.add([(keys[source], parts) for source, parts in block])
            if bar:
                bar.advance(len(block) + len(failed))
        more, fresh = _sound(shelf, shelf.find(keys[source] for source in missing))
        found, pooled = found | more, pooled | fresh
    records = {source: found[key] for source, key in keys.items() if key in found}
    reasons = {keys[source]: reason for source, reason in failures.items() if source in keys}
    failures |= {source: reasons[key] for source, key in keys.items() if key in reasons}
    numbers = np.array([pooled[keys[s]] for s in records]) if records else np.empty((0, 2, encoder.width))
    return Remembered(shelf, records, torch.from_numpy(numbers).float(), failures)


def _sound(shelf: Shelf, found: dict[bytes, Record]) -> tuple[dict[bytes, Record], dict[bytes, np.ndarray]]:
    """The records whose numbers are as they were written, and those numbers."""
    pooled = {key: numbers for key, record in found.items() if (numbers := shelf.pooled(record)) is not None}
    return {key: found[key] for key in pooled}, pooled


def encoded(
    encoder: Encoder, sources: Sequence[Source], workers: int = 2
) -> Iterator[tuple[list[tuple[Source, Tensor]], dict[Source, str]]]:
    """Blocks of sources with their parts (P, width), and of what could not be read the reasons; in order of blocks.

    Each worker decodes a block and runs it on one core: on a CPU that beats one block after another on all cores.
    """
    was_training, threads = encoder.training, torch.get_num_threads()
    encoder.eval()
    blocks = [sources[i : i + BATCH * SORTED] for i in range(0, len(sources), BATCH * SORTED)]
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(max(1, threads // workers),))
    waiting: deque[Future[tuple[list[tuple[Source, Tensor]], dict[Source, str]]]] = deque()
    try:
        for block in blocks:
            waiting.append(pool.submit(_block, encoder, block))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # the workers' number has become that of new threads
        encoder.train(was_training)


@torch.inference_mode()
def _block(encoder: Encoder, sources: Sequence[Source]) -> tuple[list[tuple[Source, Tensor]], dict[Source, str]]:
    """The parts of a block, run in batches of about equal length: less padding."""
    failures: dict[Source, str] = {}
    read: list[tuple[Source, Tensor]] = []
    for source in sources:
        try:
            read.append((source, encoder.prepare(source)))
        except MediaError as error:
            failures[source] = str(error)
    read.sort(key=lambda pair: len(pair[1]))
    found: list[tuple[Source, Tensor]] = []
    home = next(encoder.parameters()).device
    for first in range(0, len(read), BATCH):
        some = read[first : first + BATCH]
        parts, mask = (x.cpu() for x in encoder(*(x.to(home) for x in collate([tensor for _, tensor in some]))))
        if not torch.isfinite(parts).all():
            raise InputError(f"{type(encoder).__name__} gave NaN or infinity; are its weights damaged?")
        found += [(source, p[m]) for (source, _), p, m in zip(some, parts, mask, strict=True)]
    return found, failures
