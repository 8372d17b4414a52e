"""Concurrent requests through the encoder together: what arrives while one batch is at work is the next batch."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from triptych.app.server.limits import Limits
from triptych.app.server.metrics import Metrics
from triptych.app.server.problems import Refusal
from triptych.contracts import Features, Source
from triptych.data.loader import collate
from triptych.media.sandbox import Workers
from triptych.space import Space

Result = TypeVar("Result")
CROWDED = "{busy} requests are waiting at the encoder already; try again in {retry} s"
LATE = "not read within {seconds:g} s; try again, or give a shorter file"


@dataclass(frozen=True)
class Request:
    """One source that waits for its features, prepared already or quick to prepare."""

    source: Source
    tensor: Tensor
    done: Future[Features]


class Batches:
    """Prepares sources on threads of its own and embeds them on one more, several requests at a time.

    Files are uploads, decoded in worker processes; two threads wait for those and one prepares texts, so that a slow
    film never stands before a quick text, and the event loop waits for neither. A batch is not waited for: the first
    request starts at once, and those that come meanwhile go together next.
    """

    def __init__(self, space: Space, limits: Limits, metrics: Metrics) -> None:
        self.space, self.limits, self.metrics = space.eval(), limits, metrics
        self.workers = Workers(limits.decode_seconds, limits.decode_bytes)
        self._decoders, self._texts = ThreadPoolExecutor(2, "decode"), ThreadPoolExecutor(1, "text")
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._busy = 0  # counted on the event loop alone
        self._thread = threading.Thread(target=self._work, name="encode", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> int:
        """How many sources are being embedded or wait for it."""
        return self._busy

    async def embed(self, sources: list[Source]) -> list[Features]:
        """The features of each source, one row each; or the first one's error; or a Refusal where there is a crowd."""
        if self._busy + len(sources) > self.limits.waiting:
            retry = self.limits.retry_seconds
            raise Refusal(503, CROWDED.format(busy=self._busy, retry=retry), retry)
        self._busy += len(sources)
        try:
            async with asyncio.timeout(self.limits.work_seconds):
                return list(await asyncio.gather(*(self._embed(source) for source in sources)))
        except TimeoutError:
            late = f"not embedded within {self.limits.work_seconds:g} s; try again, or give a shorter file"
            raise Refusal(503, late, self.limits.retry_seconds) from None
        finally:
            self._busy -= len(sources)

    async def inspect(self, work: Callable[[], Result]) -> Result:
        """Look into an upload, as files are prepared: on a thread, the decoders in a worker process."""
        try:
            async with asyncio.timeout(self.limits.work_seconds):
                return await asyncio.get_running_loop().run_in_executor(self._decoders, self._in_sandbox, work)
        except TimeoutError:
            late = LATE.format(seconds=self.limits.work_seconds)
            raise Refusal(503, late, self.limits.retry_seconds) from None

    def _in_sandbox(self, work: Callable[[], Result]) -> Result:
        with self.workers.sandbox():
            return work()

    async def _embed(self, source: Source) -> Features:
        def prepare() -> Tensor:
            return self.space.encoder(source.modality).prepare(source)

        loop = asyncio.get_running_loop()
        if isinstance(source.content, str):
            tensor = await loop.run_in_executor(self._texts, prepare)
        else:
            tensor = await loop.run_in_executor(self._decoders, self._in_sandbox, prepare)
        request = Request(source, tensor, Future())
        self._queue.put(request)
        return await asyncio.wrap_future(request.done)

    def close(self) -> None:
        """Stop the threads and the worker processes."""
        self._queue.put(None)
        for pool in (self._decoders, self._texts):
            pool.shutdown(wait=False, cancel_futures=True)
        self.workers.close()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, is_last = [first], False
            while len(batch) < self.limits.batch and not self._queue.empty():
                another = self._queue.get()
                if another is None:
                    is_last = True
                    break
                batch.append(another)
            for modality in dict.fromkeys(request.source.modality for request in batch):
                self._run([request for request in batch if request.source.modality == modality])
            if is_last:
                return

    @torch.inference_mode()
    def _run(self, batch: list[Request]) -> None:
        batch = [request for request in batch if request.done.set_running_or_notify_cancel()]
        if not batch:
            return
        self.metrics.batch.observe(len(batch))
        try:
            inputs, mask = collate([request.tensor for request in batch])
            found = self.space(batch[0].source.modality, inputs, mask)
            for row, request in enumerate(batch):
                request.done.set_result(_row(found, row))
        except Exception as error:
            for request in batch:
                if not request.done.done():
                    request.done.set_exception(error)


def _row(features: Features, row: int) -> Features:
    """One row of features without its padding."""
    length = int(features.mask[row].nonzero().max()) + 1
    return Features(
        features.embedding[row : row + 1], features.parts[row : row + 1, :length], features.mask[row : row + 1, :length]
    )
