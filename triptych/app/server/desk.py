"""What the routes share: the collection, the encoder's batches, threads for the rest, and how a query is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from triptych.app.server.batches import Batches
from triptych.app.server.described import Roots
from triptych.app.server.limits import Limits
from triptych.app.server.metrics import Metrics
from triptych.app.server.problems import Refusal
from triptych.app.server.reviews import Review
from triptych.app.server.shapes import Conditions, QueryPart
from triptych.app.server.uploads import Upload, named, renamed, sources
from triptych.contracts import Source
from triptych.errors import MediaError, TriptychError, UsageError
from triptych.search.collection import Collection
from triptych.search.entry import Entry
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
        self.report, self.review, self.roots = report, review, Roots()
        self.batches = Batches(collection.space, self.limits, self.metrics)
        # One thread reads the collection: its answers take milliseconds, and its caches need no locks then.
        self.reading = Room(1, 4 * self.limits.waiting)
        self.drawing = Room(2, self.limits.previews)  # thumbnails, outlines, spectrograms, files' headers
        self.thinking = Room(1, self.limits.explanations)  # those, and maps

    def close(self) -> None:
        """Stop every thread."""
        self.batches.close()
        for room in (self.reading, self.drawing, self.thinking):
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

    async def own_file(self, entry: Entry) -> Path:
        """The file of an item, if it still is the one that was indexed: by its date, else by its content."""
        path = entry.item.source.content
        if not isinstance(path, Path):
            raise Refusal(404, f"{entry.id}: is a text of a manifest; it has no file")

        def check() -> bool:
            try:
                if path.is_file() and not path.is_symlink() and path.stat().st_mtime == entry.date:
                    return True
            except OSError:
                return False
            (key,) = self.collection.cache.keys([entry.item.source])
            return not isinstance(key, MediaError) and key.hex() == entry.content

        if not await self.run(self.drawing, check):
            raise Refusal(410, f"{path.name}: has gone or changed since it was indexed; run `triptych index` again")
        return path

    async def pieces(self, asked: Sequence[QueryPart], files: Mapping[str, Upload]) -> list[Piece]:
        """The parts of a query, embedded: texts and files here, items by what the collection has kept of them."""
        given = [await self._sources(part, files) for part in asked]
        fresh = [s for part, some in zip(asked, given, strict=True) if part.item is None for s in some]
        try:
            features = iter(await self.batches.embed(fresh)) if fresh else iter(())
        except TriptychError as error:
            raise renamed(error, list(files.values())) from error
        pieces: list[Piece] = []
        for number, (part, some) in enumerate(zip(asked, given, strict=True)):
            for source in some:
                what = part.item or Ready(next(features), source.modality)
                pieces.append(Piece(source, Part(what, part.weight / len(some)), number))
        return pieces

    async def _sources(self, part: QueryPart, files: Mapping[str, Upload]) -> list[Source]:
        if part.item is not None:
            return [(await self.entry(part.item)).item.source]
        if part.text is not None:
            if "text" not in self.collection.space.modalities:
                raise Refusal(422, "this space knows no text; ask with a file or an item")
            return [Source("text", part.text)]
        upload, known = named(files, part.file or ""), self.collection.space.modalities
        return await self.run(self.drawing, lambda: sources(upload, known, self.limits))


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
