"""Concurrent requests through the encoder together: what arrives while one batch is at work is the next batch."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from triptych.app.server.errors import HTTPError
from triptych.app.server.limits import Limits
from triptych.app.server.metrics import Metrics
from triptych.data.loader import collate
from triptych.interfaces import Features, Source
from triptych.media.sandbox import WorkerPool
from triptych.space import Space

Result = TypeVar("Result")
QUEUE_FULL = "{busy} requests are waiting at the encoder already; try again in {retry} s"
READ_TIMED_OUT = "not read within {seconds:g} s; try again, or give a shorter file"


@dataclass(frozen=True)
class EmbedRequest:
    """One source that waits for its features, prepared already or quick to prepare."""

    source: Source
    tensor: Tensor
    future: Future[Features]


class MicroBatcher:
    """Prepares sources on threads of its own and embeds them on one more, several requests at a time.

    Files are uploads, decoded in worker processes; two threads wait for those and one prepares texts, so that a slow
    film never stands before a quick text, and the event loop waits for neither. A batch is not waited for: the first
    request starts at once, and those that come meanwhile go together next.
    """

    def __init__(self, space: Space, limits: Limits, metrics: Metrics) -> None:
        self.space, self.limits, self.metrics = space.eval(), limits, metrics
        self.workers = WorkerPool(limits.decode_timeout, limits.max_decode_bytes)
        self._decode_executor, self._text_executor = ThreadPoolExecutor(2, "decode"), ThreadPoolExecutor(1, "text")
        self._queue: queue.SimpleQueue[EmbedRequest | None] = queue.SimpleQueue()
        self._queue_length = 0  # counted on the event loop alone
        self._thread = threading.Thread(target=self._run_loop, name="encode", daemon=True)
        self._thread.start()

    @property
    def queue_length(self) -> int:
        """How many sources are being embedded or wait for it."""
        return self._queue_length

    async def embed(self, sources: list[Source]) -> list[Features]:
        """The features of each source, one row each; or the first one's error; or a Refusal where there is a crowd."""
        if self._queue_length + len(sources) > self.limits.max_queue_length:
            retry_after = self.limits.retry_after
            raise HTTPError(503, QUEUE_FULL.format(busy=self._queue_length, retry=retry_after), retry_after)
        self._queue_length += len(sources)
        try:
            async with asyncio.timeout(self.limits.request_timeout):
                return list(await asyncio.gather(*(self._embed_one(source) for source in sources)))
        except TimeoutError:
            message = f"not embedded within {self.limits.request_timeout:g} s; try again, or give a shorter file"
            raise HTTPError(503, message, self.limits.retry_after) from None
        finally:
            self._queue_length -= len(sources)

    async def run_sandboxed(self, work: Callable[[], Result]) -> Result:
        """Look into an upload, as files are prepared: on a thread, the decoders in a worker process."""
        try:
            async with asyncio.timeout(self.limits.request_timeout):
                return await asyncio.get_running_loop().run_in_executor(
                    self._decode_executor, self._call_in_sandbox, work
                )
        except TimeoutError:
            message = READ_TIMED_OUT.format(seconds=self.limits.request_timeout)
            raise HTTPError(503, message, self.limits.retry_after) from None

    def _call_in_sandbox(self, work: Callable[[], Result]) -> Result:
        with self.workers.sandbox():
            return work()

    async def _embed_one(self, source: Source) -> Features:
        def prepare() -> Tensor:
            return self.space.encoder(source.modality).prepare(source)

        loop = asyncio.get_running_loop()
        if isinstance(source.content, str):
            tensor = await loop.run_in_executor(self._text_executor, prepare)
        else:
            tensor = await loop.run_in_executor(self._decode_executor, self._call_in_sandbox, prepare)
        request = EmbedRequest(source, tensor, Future())
        self._queue.put(request)
        return await asyncio.wrap_future(request.future)

    def close(self) -> None:
        """Stop the threads and the worker processes."""
        self._queue.put(None)
        for pool in (self._decode_executor, self._text_executor):
            pool.shutdown(wait=False, cancel_futures=True)
        self.workers.close()

    def _run_loop(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, is_last = [first], False
            while len(batch) < self.limits.max_batch_size and not self._queue.empty():
                next_request = self._queue.get()
                if next_request is None:
                    is_last = True
                    break
                batch.append(next_request)
            for modality in dict.fromkeys(request.source.modality for request in batch):
                self._run_batch([request for request in batch if request.source.modality == modality])
            if is_last:
                return

    @torch.inference_mode()
    def _run_batch(self, batch: list[EmbedRequest]) -> None:
        batch = [request for request in batch if request.future.set_running_or_notify_cancel()]
        if not batch:
            return
        self.metrics.batch_size.observe(len(batch))
        try:
            inputs, mask = collate([request.tensor for request in batch])
            features = self.space(batch[0].source.modality, inputs, mask)
            for row, request in enumerate(batch):
                request.future.set_result(_select_row(features, row))
        except Exception as error:
            for request in batch:
                if not request.future.done():
                    request.future.set_exception(error)


def _select_row(features: Features, row: int) -> Features:
    """One row of features without its padding."""
    length = int(features.mask[row].nonzero().max()) + 1
    selected = features.take(slice(row, row + 1))
    return replace(selected, parts=selected.parts[:, :length], mask=selected.mask[:, :length])
