"""Load the features of frozen encoders from the cache, and compute the features that the cache lacks."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from triptych.data.cache import Cache, FeatureRecord, FeatureStore
from triptych.data.loader import collate
from triptych.errors import InputError, MediaError
from triptych.interfaces import Encoder, Source
from triptych.progress import ProgressBar, track_progress

BATCH_SIZE = 32  # on a CPU; on a GPU, a batch is a whole block
BATCHES_PER_BLOCK = 4  # a block is sorted by length, encoded and stored as one unit
EncodedBlock = tuple[list[tuple[Source, Tensor]], dict[Source, str]]  # sources with parts, and failed sources


class CachedFeatures:
    """Features of many sources of one modality: pooled features in memory, parts memory-mapped."""

    def __init__(
        self, store: FeatureStore, records: dict[Source, FeatureRecord], pooled: Tensor, failures: dict[Source, str]
    ) -> None:
        self.store, self.failures = store, failures
        self.index_of = {source: i for i, source in enumerate(records)}
        self.pooled = pooled  # (K, 2, feature_dim): mean and maximum
        self._records = list(records.values())

    def load_batch(self, indices: Sequence[int] | Tensor, with_parts: bool) -> tuple[Tensor, Tensor]:
        """Return features and their mask (N, P): parts (N, P, feature_dim), or mean and maximum (N, 2, feature_dim)."""
        if not with_parts:
            pooled = self.pooled[torch.as_tensor(indices)]
            return pooled, torch.ones(pooled.shape[:2], dtype=torch.bool)
        item_parts = [self.store.read_parts(self._records[int(i)]) for i in indices]
        padded = np.zeros((len(item_parts), max(map(len, item_parts)), self.store.feature_dim), np.float16)
        for row, parts in zip(padded, item_parts, strict=True):
            row[: len(parts)] = parts
        lengths = torch.tensor([len(parts) for parts in item_parts])
        return torch.from_numpy(padded), torch.arange(padded.shape[1]) < lengths[:, None]


def compute_or_load(
    encoder: Encoder,
    sources: Sequence[Source],
    cache: Cache,
    workers: int = 2,
    progress: ProgressBar | str | None = None,
    shard: tuple[int, int] = (0, 1),
    barrier: Callable[[], None] | None = None,
) -> CachedFeatures:
    """Load the features of all sources from the cache; compute and store the features that the cache lacks.

    Sources that cannot be read are listed in `failures`. `progress` is a progress bar, or the title of a new bar.
    With several processes, each first computes its `shard` (rank, world size); `barrier` waits for all processes.
    """
    sources = list(dict.fromkeys(sources))
    with track_progress(progress, len(sources)) if isinstance(progress, str) else nullcontext(progress) as bar:
        rank, world_size = shard
        if world_size > 1 and barrier:
            _compute_or_load(encoder, sources[rank::world_size], cache, workers, None)
            barrier()
        return _compute_or_load(encoder, sources, cache, workers, bar)


def _compute_or_load(
    encoder: Encoder, sources: Sequence[Source], cache: Cache, workers: int, bar: ProgressBar | None
) -> CachedFeatures:
    store, failures = cache.feature_store(encoder), dict[Source, str]()
    keys: dict[Source, bytes] = {}
    for source, key in zip(sources, cache.content_keys(sources), strict=True):
        if isinstance(key, MediaError):
            failures[source] = str(key)
        else:
            keys[source] = key
    records, pooled = _read_intact(store, store.find(keys.values()))
    missing = list({key: source for source, key in keys.items() if key not in records}.values())
    if bar:
        bar.advance(len(sources) - len(missing))
    if missing:
        for block, failed in encode_blocks(encoder, missing, workers):
            failures |= failed
            if block:
                store.add([(keys[source], parts) for source, parts in block])
            if bar:
                bar.advance(len(block) + len(failed))
        new_records, new_pooled = _read_intact(store, store.find(keys[source] for source in missing))
        records, pooled = records | new_records, pooled | new_pooled
    records_by_source = {source: records[key] for source, key in keys.items() if key in records}
    reasons = {keys[source]: reason for source, reason in failures.items() if source in keys}
    failures |= {source: reasons[key] for source, key in keys.items() if key in reasons}
    rows = [pooled[keys[source]] for source in records_by_source]
    pooled_rows = np.array(rows) if rows else np.empty((0, 2, encoder.feature_dim))
    return CachedFeatures(store, records_by_source, torch.from_numpy(pooled_rows).float(), failures)


def _read_intact(
    store: FeatureStore, records: dict[bytes, FeatureRecord]
) -> tuple[dict[bytes, FeatureRecord], dict[bytes, np.ndarray]]:
    """Return the records whose checksum matches, and the pooled features of these records."""
    pooled = {key: numbers for key, record in records.items() if (numbers := store.read_pooled(record)) is not None}
    return {key: records[key] for key in pooled}, pooled


def encode_blocks(encoder: Encoder, sources: Sequence[Source], workers: int = 2) -> Iterator[EncodedBlock]:
    """Yield, in order, a list of (source, parts (P, feature_dim)) for each block, and the sources that failed.

    Failed sources are mapped to the reason why they could not be read. Each worker decodes and encodes a block on its
    share of the cores. On a CPU, this is faster than encoding one block after another on all cores.
    """
    was_training, threads = encoder.training, torch.get_num_threads()
    encoder.eval()
    size = BATCH_SIZE * BATCHES_PER_BLOCK
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(max(1, threads // workers),))
    pending: deque[Future[EncodedBlock]] = deque()
    try:
        for first in range(0, len(sources), size):
            pending.append(pool.submit(_encode_block, encoder, sources[first : first + size]))
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # reset the default for new threads, which the workers changed
        encoder.train(was_training)


@torch.inference_mode()
def _encode_block(encoder: Encoder, sources: Sequence[Source]) -> EncodedBlock:
    """Encode a block in batches of sources with similar length, to reduce padding."""
    failures: dict[Source, str] = {}
    prepared: list[tuple[Source, Tensor]] = []
    for source in sources:
        try:
            prepared.append((source, encoder.prepare(source)))
        except MediaError as error:
            failures[source] = str(error)
    prepared.sort(key=lambda pair: len(pair[1]))
    encoded: list[tuple[Source, Tensor]] = []
    device = next(encoder.parameters()).device
    batch_size = BATCH_SIZE if device.type == "cpu" else max(1, len(prepared))
    for first in range(0, len(prepared), batch_size):
        batch = prepared[first : first + batch_size]
        parts, mask = (x.cpu() for x in encoder(*(x.to(device) for x in collate([tensor for _, tensor in batch]))))
        if not torch.isfinite(parts).all():
            raise InputError(f"{type(encoder).__name__} returned NaN or infinity; its weights may be damaged")
        encoded += [(source, p[m]) for (source, _), p, m in zip(batch, parts, mask, strict=True)]
    return encoded, failures
