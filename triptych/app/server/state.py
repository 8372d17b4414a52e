"""State shared by the routes: the collection, worker threads, micro-batching for the encoders, and metrics."""

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Annotated, TypeVar

import torch
from fastapi import Depends, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from triptych.app.server.errors import HTTPError, make_busy_error
from triptych.app.server.limits import Limits
from triptych.app.server.served_files import (
    ContentNotHashedError,
    IndexedFiles,
    ReviewFiles,
    decodable_path,
    file_changed_error,
    item_path,
)
from triptych.data.loader import collate
from triptych.errors import UsageError
from triptych.interfaces import Features, Source
from triptych.media.sandbox import WorkerPool
from triptych.search.collection import Collection
from triptych.search.item import Item
from triptych.space import Space

Result = TypeVar("Result")


class Metrics:
    """Prometheus metrics of one server, in their own registry so that one process can run several servers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter(
            "triptych_requests_total", "Requests by route and status", ["route", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "triptych_request_seconds", "Response time in seconds by route", ["route"], registry=registry
        )
        buckets = (1, 2, 4, 8, 16, 32, 64)
        self.batch_size = Histogram("triptych_batch_size", "Inputs per batch", buckets=buckets, registry=registry)
        self.queue_length = Gauge("triptych_queue_length", "Inputs waiting for the encoder", registry=registry)
        self.items = Gauge("triptych_items", "Items in the collection", registry=registry)

    def format_prometheus(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)


class MetricsMiddleware:
    """Records every response by route, not by URL: clients could request an unlimited number of URLs."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_record)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.request_seconds.labels(route).observe(time.perf_counter() - started)


@asynccontextmanager
async def limit_time(limits: Limits, problem: str, advice: str = "") -> AsyncIterator[None]:
    """Raise an HTTPError (503) if the body of the `async with` statement exceeds `limits.request_timeout`."""
    try:
        async with asyncio.timeout(limits.request_timeout):
            yield
    except TimeoutError:
        message = f"{problem} within {limits.request_timeout:g} s; try again{advice}"
        raise HTTPError(503, message, limits.retry_after) from None


@dataclass(frozen=True)
class EmbedRequest:
    """A preprocessed input, and the future that will contain its features."""

    source: Source
    tensor: Tensor
    future: Future[Features]


class MicroBatcher:
    """Prepares inputs on worker threads and embeds concurrent requests in shared batches.

    Uploaded files are decoded in worker processes. Two threads wait for these processes. A third thread prepares texts,
    so that a slow video never delays a text. The event loop is never blocked. The first request is encoded at once.
    Requests that arrive while the encoder is busy form the next batch. All inputs get the model's prompt for queries.
    """

    def __init__(self, space: Space, limits: Limits, metrics: Metrics) -> None:
        self.space, self.limits, self.metrics = space.eval(), limits, metrics
        self.workers = WorkerPool(limits.decode_timeout, limits.max_decode_bytes)
        self._decode_executor, self._text_executor = ThreadPoolExecutor(2, "decode"), ThreadPoolExecutor(1, "text")
        self._queue: queue.SimpleQueue[EmbedRequest | None] = queue.SimpleQueue()
        self._queue_length = 0  # changed only on the event loop
        self._thread = threading.Thread(target=self._run_loop, name="encode", daemon=True)
        self._thread.start()

    @property
    def queue_length(self) -> int:
        """The number of inputs that are being encoded or are waiting to be encoded."""
        return self._queue_length

    async def embed(self, sources: list[Source]) -> list[Features]:
        """Return one row of features per source. Raise the error of a source, or an HTTPError if the queue is full."""
        if self._queue_length + len(sources) > self.limits.max_queue_length:
            raise make_busy_error(f"{self._queue_length} inputs are waiting for the encoder", self.limits.retry_after)
        self._queue_length += len(sources)
        try:
            async with limit_time(self.limits, "the query was not embedded", ", or use a shorter file"):
                return list(await asyncio.gather(*(self._embed_one(source) for source in sources)))
        finally:
            self._queue_length -= len(sources)

    async def run_sandboxed(self, work: Callable[[], Result]) -> Result:
        """Run a function on a decoding thread. Its decoders run in worker processes."""
        loop = asyncio.get_running_loop()
        async with limit_time(self.limits, "the file was not read", ", or use a shorter file"):
            return await loop.run_in_executor(self._decode_executor, self._call_in_sandbox, work)

    def _call_in_sandbox(self, work: Callable[[], Result]) -> Result:
        with self.workers.sandbox():
            return work()

    async def _embed_one(self, source: Source) -> Features:
        def prepare() -> Tensor:
            encoder = self.space.encoder(source.modality)
            return encoder.prepare(encoder.with_prompt(source, "query"))

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
            while len(batch) < self.limits.max_batch_size and not self._queue.empty() and not is_last:
                if (request := self._queue.get()) is not None:
                    batch.append(request)
                else:
                    is_last = True
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
    """Return one row of features without padding."""
    length = int(features.mask[row].nonzero().max()) + 1
    selected = features.take(slice(row, row + 1))
    return replace(selected, parts=selected.parts[:, :length], mask=selected.mask[:, :length])


class BoundedExecutor:
    """A thread pool with a limit on pending calls."""

    def __init__(self, num_threads: int, max_pending: int) -> None:
        self.max_pending, self.num_pending = max_pending, 0
        self.pool = ThreadPoolExecutor(num_threads, "worker")


class AppState:
    """The collection, and the executors, encoder queue and metrics that the routes share."""

    def __init__(
        self,
        collection: Collection,
        limits: Limits | None = None,
        report: Path | None = None,
        review: ReviewFiles | None = None,
    ) -> None:
        self.collection, self.limits, self.metrics = collection, limits or Limits(), Metrics()
        self.report, self.review = report.resolve() if report else None, review
        self.indexed_files = IndexedFiles(collection.cache)
        self.last_item_count = len(collection)  # reported by /healthz while the collection is busy
        self.batcher = MicroBatcher(collection.space, self.limits, self.metrics)
        self.upload_usage = UploadUsage()
        # A single thread reads the collection: calls take milliseconds, and the collection's caches need no locks.
        self.collection_executor = BoundedExecutor(1, 4 * self.limits.max_queue_length)
        self.preview_executor = BoundedExecutor(2, self.limits.max_previews)  # thumbnails, peaks, spectrograms
        self.hash_executor = BoundedExecutor(1, self.limits.max_previews)  # hashes of files modified since indexing
        self.explain_executor = BoundedExecutor(1, self.limits.max_explanations)  # explanations and maps

    def close(self) -> None:
        """Stop all threads."""
        self.batcher.close()
        for executor in (self.collection_executor, self.preview_executor, self.hash_executor, self.explain_executor):
            executor.pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, executor: BoundedExecutor, work: Callable[[], Result]) -> Result:
        """Run a function on an executor. Raise an HTTPError if too many calls are pending or the call times out."""
        if executor.num_pending >= executor.max_pending:
            problem = f"{executor.num_pending} requests of this kind are in progress"
            raise make_busy_error(problem, self.limits.retry_after)
        executor.num_pending += 1
        try:
            async with limit_time(self.limits, "the request was not processed"):
                return await asyncio.get_running_loop().run_in_executor(executor.pool, work)
        finally:
            executor.num_pending -= 1

    async def run_with_collection(self, work: Callable[[Collection], Result]) -> Result:
        """Call `work` with the collection, on the thread that reads the collection."""
        return await self.run(self.collection_executor, lambda: work(self.collection))

    async def find_item(self, item_id: str) -> Item:
        """Return an item by its id. Raise an HTTPError (404) if the collection has no such item."""
        try:
            return await self.run_with_collection(lambda collection: collection.load_item(item_id))
        except UsageError as error:
            raise HTTPError(404, str(error)) from None

    async def open_file(self, entry: Item) -> BufferedReader:
        """Open the file of an item. The caller closes the file. Raise an HTTPError (410) if the file changed."""
        return await self._run_verified([entry], self.preview_executor, lambda: self.indexed_files.open(entry))

    async def run_with_file(self, executor: BoundedExecutor, entry: Item, work: Callable[[Path], Result]) -> Result:
        """Call `work` with a path to an item's file. Raise an HTTPError (410) if the file changed since indexing."""
        return await self.run_with_files(executor, [entry], lambda paths: work(paths[0]))

    async def run_with_files(
        self, executor: BoundedExecutor, entries: Sequence[Item], work: Callable[[list[Path]], Result]
    ) -> Result:
        """Call `work` with paths to the files of several items. The files are open until `work` returns."""

        def open_and_work() -> Result:
            # The worker thread opens and closes the files: a request that times out must not close files in use.
            with ExitStack() as stack:
                files = [stack.enter_context(self.indexed_files.open(entry)) for entry in entries]
                pairs = zip(files, entries, strict=True)
                return work([stack.enter_context(decodable_path(file, item_path(entry))) for file, entry in pairs])

        return await self._run_verified(entries, executor, open_and_work)

    async def _run_verified(
        self, entries: Sequence[Item], executor: BoundedExecutor, work: Callable[[], Result]
    ) -> Result:
        """Run a function that opens files of items. If content hashes are missing, hash and run again."""
        try:
            return await self.run(executor, work)
        except ContentNotHashedError:
            for entry in entries:
                await self.run(self.hash_executor, lambda entry=entry: self.indexed_files.ensure_hashed(entry))
        try:
            return await self.run(executor, work)
        except ContentNotHashedError as error:  # the file changed again after it was hashed
            raise file_changed_error(error.entry) from None


@dataclass
class UploadUsage:
    """Number of pixels and seconds in all uploads that are being processed. Changed only on the event loop."""

    pixels: int = 0
    seconds: float = 0.0


async def _app_state(request: Request) -> AppState:  # async: FastAPI would run a synchronous function on a thread
    return request.app.state.app_state


StateDep = Annotated[AppState, Depends(_app_state)]
