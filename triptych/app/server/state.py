"""What the routes share: the collection, the encoder's batches, threads for the rest, and how a query is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from triptych.app.server.errors import HTTPError
from triptych.app.server.limits import Limits
from triptych.app.server.metrics import Metrics
from triptych.app.server.micro_batching import MicroBatcher
from triptych.app.server.review import ReviewFiles
from triptych.app.server.schemas import FilterRequest, QueryPartRequest
from triptych.app.server.serializers import RootCache
from triptych.app.server.served_files import (
    ContentNotHashedError,
    IndexedFiles,
    decodable_path,
    file_changed_error,
    item_path,
)
from triptych.app.server.uploads import (
    RequestBudget,
    Upload,
    UploadBudget,
    find_upload,
    inspect_upload,
    make_sources,
    use_client_names,
)
from triptych.errors import TriptychError, UsageError
from triptych.interfaces import Source
from triptych.search.collection import Collection
from triptych.search.entry import StoredItem
from triptych.search.items import query_content_hashes
from triptych.search.query import EmbeddedQuery, Filter, QueryPart

Result = TypeVar("Result")
EXECUTOR_FULL = "{count} requests of this kind are being worked on already; try again in {retry} s"


@dataclass(frozen=True)
class ResolvedPart:
    """One part of a query, as it goes to the search: where it came from, and what it weighs."""

    source: Source
    part: QueryPart
    part_index: int  # of the part as it was asked: a film becomes two pieces of one number


@dataclass
class BoundedExecutor:
    """A few threads, and how many may wait for them."""

    num_threads: int
    max_pending: int
    num_pending: int = 0
    pool: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.pool = ThreadPoolExecutor(self.num_threads, "room")


class AppState:
    """Everything a route needs."""

    def __init__(
        self,
        collection: Collection,
        limits: Limits | None = None,
        report: Path | None = None,
        review: ReviewFiles | None = None,
    ) -> None:
        self.collection, self.limits, self.metrics = collection, limits or Limits(), Metrics()
        self.report, self.review, self.root_cache = report.resolve() if report else None, review, RootCache()
        self.indexed_files = IndexedFiles(collection.cache)
        self.last_item_count = len(collection)  # when it was last asked
        self.batcher = MicroBatcher(collection.space, self.limits, self.metrics)
        self.upload_budget = UploadBudget(self.limits)
        # One thread reads the collection: its answers take milliseconds, and its caches need no locks then.
        self.collection_executor = BoundedExecutor(1, 4 * self.limits.max_queue_length)
        self.preview_executor = BoundedExecutor(
            2, self.limits.max_previews
        )  # thumbnails, outlines, spectrograms, files' headers
        self.hash_executor = BoundedExecutor(
            1, self.limits.max_previews
        )  # contents of files that were touched since they were indexed
        self.explain_executor = BoundedExecutor(1, self.limits.max_explanations)  # those, and maps

    def close(self) -> None:
        """Stop every thread."""
        self.batcher.close()
        for executor in (self.collection_executor, self.preview_executor, self.hash_executor, self.explain_executor):
            executor.pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, executor: BoundedExecutor, work: Callable[[], Result]) -> Result:
        """Do something on the threads of a room; a Refusal where too many wait already, or it takes too long."""
        if executor.num_pending >= executor.max_pending:
            retry_after = self.limits.retry_after
            raise HTTPError(503, EXECUTOR_FULL.format(count=executor.num_pending, retry=retry_after), retry_after)
        executor.num_pending += 1
        try:
            async with asyncio.timeout(self.limits.request_timeout):
                return await asyncio.get_running_loop().run_in_executor(executor.pool, work)
        except TimeoutError:
            message = f"not done within {self.limits.request_timeout:g} s; try again"
            raise HTTPError(503, message, self.limits.retry_after) from None
        finally:
            executor.num_pending -= 1

    async def read_collection(self, work: Callable[[Collection], Result]) -> Result:
        """Ask the collection something."""
        return await self.run(self.collection_executor, lambda: work(self.collection))

    async def find_item(self, item_id: str) -> StoredItem:
        """An item by its id; 404 where there is none."""
        try:
            return await self.read_collection(lambda collection: collection.load_item(item_id))
        except UsageError as error:
            raise HTTPError(404, str(error)) from None

    async def open_file(self, entry: StoredItem) -> BufferedReader:
        """The file of an item, open; 410 where it is no longer what was indexed. Whoever asks closes it."""
        return await self._run_verified([entry], self.preview_executor, lambda: self.indexed_files.open(entry))

    async def run_with_file(
        self, executor: BoundedExecutor, entry: StoredItem, work: Callable[[Path], Result]
    ) -> Result:
        """Do something with the file of an item on the threads of a room; 410 where it is not what was indexed."""
        return await self.run_with_files(executor, [entry], lambda paths: work(paths[0]))

    async def run_with_files(
        self, executor: BoundedExecutor, entries: Sequence[StoredItem], work: Callable[[list[Path]], Result]
    ) -> Result:
        """The same with several. The paths lead to open files, and to nothing else, until the work is done."""

        def open_and_work() -> Result:
            # Opened and closed by the thread that works: a request that is given up must not take files from it.
            with ExitStack() as stack:
                files = [stack.enter_context(self.indexed_files.open(entry)) for entry in entries]
                pairs = zip(files, entries, strict=True)
                return work([stack.enter_context(decodable_path(file, item_path(entry))) for file, entry in pairs])

        return await self._run_verified(entries, executor, open_and_work)

    async def _run_verified(
        self, entries: Sequence[StoredItem], executor: BoundedExecutor, work: Callable[[], Result]
    ) -> Result:
        """Do something that opens the files of items; contents that are not known are hashed first."""
        try:
            return await self.run(executor, work)
        except ContentNotHashedError:
            for entry in entries:
                await self.run(self.hash_executor, lambda entry=entry: self.indexed_files.ensure_hashed(entry))
        try:
            return await self.run(executor, work)
        except ContentNotHashedError as error:  # it changes all the time
            raise file_changed_error(error.entry) from None

    async def resolve_parts(
        self, requested_parts: Sequence[QueryPartRequest], files: Mapping[str, Upload]
    ) -> list[ResolvedPart]:
        """The parts of a query, embedded: texts and files here, items by what the collection has kept of them."""
        with self.upload_budget.open_request() as budget:
            sources_by_part = [await self._resolve_sources(part, files, budget) for part in requested_parts]
            sources_to_embed = [
                s
                for part, part_sources in zip(requested_parts, sources_by_part, strict=True)
                if part.item is None
                for s in part_sources
            ]
            try:
                features = iter(await self.batcher.embed(sources_to_embed)) if sources_to_embed else iter(())
            except TriptychError as error:
                raise use_client_names(error, list(files.values())) from error
        resolved: list[ResolvedPart] = []
        for part_index, (part, some) in enumerate(zip(requested_parts, sources_by_part, strict=True)):
            for source in some:
                content_hashes = await self._content_hashes(source, files.get(part.file or ""))
                query_input = part.item or EmbeddedQuery(next(features), source.modality, content_hashes)
                resolved.append(ResolvedPart(source, QueryPart(query_input, part.weight / len(some)), part_index))
        return resolved

    async def _content_hashes(self, source: Source, upload: Upload | None) -> frozenset[str]:
        """The contents under which the collection would hold an uploaded file."""
        if upload is None:
            return frozenset()
        file, space = Source(source.modality, upload.path), self.collection.space  # of a text, the source has the words
        return await self.run(self.preview_executor, lambda: query_content_hashes(file, space))

    async def _resolve_sources(
        self, part: QueryPartRequest, files: Mapping[str, Upload], budget: RequestBudget
    ) -> list[Source]:
        if part.item is not None:
            return [(await self.find_item(part.item)).item.source]
        if part.text is not None:
            if "text" not in self.collection.space.modalities:
                raise HTTPError(422, "this space knows no text; ask with a file or an item")
            return [Source("text", part.text)]
        upload = find_upload(files, part.file or "")
        contents = await self.batcher.run_sandboxed(lambda: inspect_upload(upload))
        budget.reserve(upload, contents)
        return make_sources(upload, contents, self.collection.space.modalities)


def make_filter(conditions: FilterRequest, roots: Sequence[Path]) -> Filter:
    """Conditions as the collection takes them; a folder is named as items name theirs, and lies in what was indexed."""
    fields = conditions.model_dump(exclude={"folder"})
    if conditions.folder is None:
        return Filter(**fields)
    name = PurePosixPath(conditions.folder)
    for root in roots:
        if name.parts[:1] == (root.name,) and ".." not in name.parts:
            return Filter(**fields, folder=root.joinpath(*name.parts[1:]))
    root_names = ", ".join(sorted({root.name for root in roots}))
    raise HTTPError(
        422, f"folder {conditions.folder[:80]!r} is none of this collection; its folders start with {root_names}"
    )


async def _app_state(request: Request) -> AppState:  # a plain function would be run on a thread, each time
    return request.app.state.app_state


StateDep = Annotated[AppState, Depends(_app_state)]
