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

from triptych.app.server.batches import Batches
from triptych.app.server.described import Roots
from triptych.app.server.limits import Limits
from triptych.app.server.metrics import Metrics
from triptych.app.server.problems import Refusal
from triptych.app.server.reviews import Review
from triptych.app.server.served_files import IndexedFiles, UnknownContentError, changed, decodable, path_of
from triptych.app.server.shapes import Conditions, QueryPart
from triptych.app.server.uploads import Load, RequestLoad, Upload, contents_of, named, renamed, sources
from triptych.contracts import Source
from triptych.errors import TriptychError, UsageError
from triptych.search.collection import Collection
from triptych.search.entry import Entry
from triptych.search.items import contents_of_query
from triptych.search.query import Part, Ready, Where

Found = TypeVar("Found")
BUSY = "{count} requests of this kind are being worked on already; try again in {retry} s"


@dataclass(frozen=True)
class Piece:
    """One part of a query, as it goes to the search: where it came from, and what it weighs."""

    source: Source
    part: Part
    number: int  # of the part as it was asked: a film becomes two pieces of one number


@dataclass
class Room:
    """A few threads, and how many may wait for them."""

    threads: int
    most: int
    count: int = 0
    pool: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.pool = ThreadPoolExecutor(self.threads, "room")


class Desk:
    """Everything a route needs."""

    def __init__(
        self,
        collection: Collection,
        limits: Limits | None = None,
        report: Path | None = None,
        review: Review | None = None,
    ) -> None:
        self.collection, self.limits, self.metrics = collection, limits or Limits(), Metrics()
        self.report, self.review, self.roots = report.resolve() if report else None, review, Roots()
        self.files = IndexedFiles(collection.cache)
        self.items = len(collection)  # when it was last asked
        self.batches = Batches(collection.space, self.limits, self.metrics)
        self.load = Load(self.limits)
        # One thread reads the collection: its answers take milliseconds, and its caches need no locks then.
        self.reading = Room(1, 4 * self.limits.waiting)
        self.drawing = Room(2, self.limits.previews)  # thumbnails, outlines, spectrograms, files' headers
        self.hashing = Room(1, self.limits.previews)  # contents of files that were touched since they were indexed
        self.thinking = Room(1, self.limits.explanations)  # those, and maps

    def close(self) -> None:
        """Stop every thread."""
        self.batches.close()
        for room in (self.reading, self.drawing, self.hashing, self.thinking):
            room.pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, room: Room, work: Callable[[], Found]) -> Found:
        """Do something on the threads of a room; a Refusal where too many wait already, or it takes too long."""
        if room.count >= room.most:
            retry = self.limits.retry_seconds
            raise Refusal(503, BUSY.format(count=room.count, retry=retry), retry)
        room.count += 1
        try:
            async with asyncio.timeout(self.limits.work_seconds):
                return await asyncio.get_running_loop().run_in_executor(room.pool, work)
        except TimeoutError:
            late = f"not done within {self.limits.work_seconds:g} s; try again"
            raise Refusal(503, late, self.limits.retry_seconds) from None
        finally:
            room.count -= 1

    async def read(self, work: Callable[[Collection], Found]) -> Found:
        """Ask the collection something."""
        return await self.run(self.reading, lambda: work(self.collection))

    async def entry(self, name: str) -> Entry:
        """An item by its id; 404 where there is none."""
        try:
            return await self.read(lambda collection: collection.item(name))
        except UsageError as error:
            raise Refusal(404, str(error)) from None

    async def open_file(self, entry: Entry) -> BufferedReader:
        """The file of an item, open; 410 where it is no longer what was indexed. Whoever asks closes it."""
        return await self._verified([entry], self.drawing, lambda: self.files.open(entry))

    async def use_file(self, room: Room, entry: Entry, work: Callable[[Path], Found]) -> Found:
        """Do something with the file of an item on the threads of a room; 410 where it is not what was indexed."""
        return await self.use_files(room, [entry], lambda paths: work(paths[0]))

    async def use_files(self, room: Room, entries: Sequence[Entry], work: Callable[[list[Path]], Found]) -> Found:
        """The same with several. The paths lead to open files, and to nothing else, until the work is done."""

        def opened() -> Found:
            # Opened and closed by the thread that works: a request that is given up must not take files from it.
            with ExitStack() as stack:
                files = [stack.enter_context(self.files.open(entry)) for entry in entries]
                pairs = zip(files, entries, strict=True)
                return work([stack.enter_context(decodable(file, path_of(entry))) for file, entry in pairs])

        return await self._verified(entries, room, opened)

    async def _verified(self, entries: Sequence[Entry], room: Room, work: Callable[[], Found]) -> Found:
        """Do something that opens the files of items; contents that are not known are hashed first."""
        try:
            return await self.run(room, work)
        except UnknownContentError:
            for entry in entries:
                await self.run(self.hashing, lambda entry=entry: self.files.learn(entry))
        try:
            return await self.run(room, work)
        except UnknownContentError as error:  # it changes all the time
            raise changed(error.entry) from None

    async def pieces(self, asked: Sequence[QueryPart], files: Mapping[str, Upload]) -> list[Piece]:
        """The parts of a query, embedded: texts and files here, items by what the collection has kept of them."""
        with self.load.request() as load:
            given = [await self._sources(part, files, load) for part in asked]
            fresh = [s for part, some in zip(asked, given, strict=True) if part.item is None for s in some]
            try:
                features = iter(await self.batches.embed(fresh)) if fresh else iter(())
            except TriptychError as error:
                raise renamed(error, list(files.values())) from error
        pieces: list[Piece] = []
        for number, (part, some) in enumerate(zip(asked, given, strict=True)):
            for source in some:
                contents = await self._contents(source, files.get(part.file or ""))
                what = part.item or Ready(next(features), source.modality, contents)
                pieces.append(Piece(source, Part(what, part.weight / len(some)), number))
        return pieces

    async def _contents(self, source: Source, upload: Upload | None) -> frozenset[str]:
        """The contents under which the collection would hold an uploaded file."""
        if upload is None:
            return frozenset()
        file, space = Source(source.modality, upload.path), self.collection.space  # of a text, the source has the words
        return await self.run(self.drawing, lambda: contents_of_query(file, space))

    async def _sources(self, part: QueryPart, files: Mapping[str, Upload], load: RequestLoad) -> list[Source]:
        if part.item is not None:
            return [(await self.entry(part.item)).item.source]
        if part.text is not None:
            if "text" not in self.collection.space.modalities:
                raise Refusal(422, "this space knows no text; ask with a file or an item")
            return [Source("text", part.text)]
        upload = named(files, part.file or "")
        contents = await self.batches.inspect(lambda: contents_of(upload))
        load.add(upload, contents)
        return sources(upload, contents, self.collection.space.modalities)


def where_of(conditions: Conditions, roots: Sequence[Path]) -> Where:
    """Conditions as the collection takes them; a folder is named as items name theirs, and lies in what was indexed."""
    given = conditions.model_dump(exclude={"folder"})
    if conditions.folder is None:
        return Where(**given)
    name = PurePosixPath(conditions.folder)
    for root in roots:
        if name.parts[:1] == (root.name,) and ".." not in name.parts:
            return Where(**given, folder=root.joinpath(*name.parts[1:]))
    known = ", ".join(sorted({root.name for root in roots}))
    raise Refusal(422, f"folder {conditions.folder[:80]!r} is none of this collection; its folders start with {known}")


async def _desk(request: Request) -> Desk:  # a plain function would be run on a thread, each time
    return request.app.state.desk


At = Annotated[Desk, Depends(_desk)]
