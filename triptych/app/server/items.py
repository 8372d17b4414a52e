"""Items of the collection: what they are, their files, and what one sees of them. Only their own files are read."""

from __future__ import annotations

import io
import time
import wave
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi import Path as InPath
from fastapi.responses import Response

from triptych.app.server.described import hit_answers, item_answer
from triptych.app.server.desk import At, Desk
from triptych.app.server.problems import Refusal, answers
from triptych.app.server.served_files import OpenFileResponse, path_of
from triptych.app.server.shapes import ID, ItemAnswer, PeaksAnswer, SearchAnswer
from triptych.contracts import Modality
from triptych.media import audio, image, preview
from triptych.search.collection import Collection
from triptych.search.entry import Entry, entry_of
from triptych.search.query import quoted
from triptych.search.relevance import RELEVANT
from triptych.search.store import FACTS

router = APIRouter(prefix="/v1/items", tags=["items"])
Id = Annotated[str, InPath(pattern=ID, description="of an item, as hits have it", examples=["0123456789abcdef"])]
Seconds = Annotated[float | None, Query(ge=0, le=1e6, allow_inf_nan=False)]
KINDS = {  # what browsers are told a file is; anything else is bytes
    ".wav": "audio/wav", ".mp3": "audio/mpeg", ".flac": "audio/flac", ".ogg": "audio/ogg", ".oga": "audio/ogg",
    ".opus": "audio/ogg", ".m4a": "audio/mp4", ".aac": "audio/aac", ".weba": "audio/webm", ".mp4": "video/mp4",
    ".m4v": "video/mp4", ".webm": "video/webm", ".mkv": "video/x-matroska", ".mov": "video/quicktime",
    ".ogv": "video/ogg", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp",
    ".gif": "image/gif", ".bmp": "image/bmp", ".txt": "text/plain; charset=utf-8", ".md": "text/plain; charset=utf-8",
}  # fmt: skip
CONTEXT, WHOLE = 1.0, 60.0  # moments' lengths shown beside a moment; seconds up to which a file is shown whole
PLAYED_RATE, PLAYED = 32_000, 120.0  # of a sound made playable
KEPT = {"Cache-Control": "private, max-age=3600"}


@router.get("/{item}", responses=answers(404))
async def show(desk: At, item: Id) -> ItemAnswer:
    """One item, and what belongs to it."""
    entry = await desk.entry(item)

    def work(collection: Collection) -> ItemAnswer:
        others = [item_answer(other) for other in siblings(collection, entry)]
        return item_answer(entry).model_copy(update={"siblings": others})

    return await desk.read(work)


@router.get("/{item}/similar", responses=answers(404))
async def similar(
    desk: At,
    item: Id,
    want: Annotated[list[Modality], Query(max_length=3)] = [],  # noqa: B006 - FastAPI copies it
    k: Annotated[int, Query(ge=1, le=200)] = 20,
) -> SearchAnswer:
    """The items most like one of the collection."""
    await desk.entry(item)
    started = time.perf_counter()
    hits = await desk.read(lambda c: hit_answers(c.similar(item, list(dict.fromkeys(want)), k), desk.roots.of(c)))
    return SearchAnswer(hits=hits, line=RELEVANT, seconds=time.perf_counter() - started, notes=[])


@router.get(
    "/{item}/media",
    responses={**answers(404, 410, 416), 200: {"content": {"*/*": {}}}, 206: {"description": "the range asked for"}},
    response_class=Response,
)
async def media(desk: At, item: Id, request: Request) -> Response:
    """The file itself, whole or the range asked for."""
    entry = await desk.entry(item)
    if request.headers.get("range", "bytes=0-").count(",") > 8:
        raise Refusal(416, "more than nine ranges at once; ask for one")
    path, file = path_of(entry), await desk.open_file(entry)
    kind = KINDS.get(path.suffix.lower(), "application/octet-stream")
    return OpenFileResponse(file, path, kind, {"Cache-Control": "no-cache"})


@router.get(
    "/{item}/sound.wav", responses={**answers(404, 410), 200: {"content": {"audio/wav": {}}}}, response_class=Response
)
async def sound(desk: At, item: Id) -> Response:
    """The sound of an item as a WAV, for browsers that cannot play the file."""
    entry = await _heard(desk, item)
    start, end = entry.item.source.start, entry.item.source.end
    until = min(end or 1e9, (start or 0.0) + PLAYED)
    made = await desk.use_file(desk.drawing, entry, lambda path: _wav(path, start, until))
    return Response(made, media_type="audio/wav", headers=KEPT)


@router.get(
    "/{item}/thumbnail", responses={**answers(404, 410), 200: {"content": {"image/jpeg": {}}}}, response_class=Response
)
async def thumbnail(desk: At, item: Id, size: Annotated[int, Query(ge=16, le=1024)] = 512) -> Response:
    """A picture, or a film's frame at the moment, as a small JPEG."""
    entry = await desk.entry(item)
    if entry.item.source.modality != "image":
        raise Refusal(404, f"{item}: is {entry.item.source.modality}; only pictures and films have a thumbnail")

    def work(path: Path) -> bytes:
        return preview.thumbnail(path, size, image.moment(replace(entry.item.source, content=path)))

    made = await desk.use_file(desk.drawing, entry, work)
    return Response(made, media_type="image/jpeg", headers=KEPT)


@router.get("/{item}/peaks", responses=answers(404, 410))
async def peaks(desk: At, item: Id, count: Annotated[int, Query(ge=1, le=2000)] = 240) -> PeaksAnswer:
    """The outline of a sound: the whole file where it is short, else the moment and what is around it."""
    entry = await _heard(desk, item)
    start, end = entry.item.source.start, entry.item.source.end

    def work(path: Path) -> PeaksAnswer:
        length = audio.duration(path)
        first, last = _shown(start, end, length)
        found = preview.peaks(path, count, first, last)
        lasts = min(end or length, length) - (start or 0.0)
        return PeaksAnswer(start=first, end=last, seconds=max(0.0, lasts), peaks=found.round(4).tolist())

    return await desk.use_file(desk.drawing, entry, work)


@router.get(
    "/{item}/spectrogram", responses={**answers(404, 410), 200: {"content": {"image/png": {}}}}, response_class=Response
)
async def spectrogram(
    desk: At, item: Id, width: Annotated[int, Query(ge=16, le=2000)] = 512, start: Seconds = None, end: Seconds = None
) -> Response:
    """The spectrogram of a sound, as a PNG: of what /peaks shows, or between two seconds of the file."""
    entry = await _heard(desk, item)
    first, last = entry.item.source.start, entry.item.source.end

    def work(path: Path) -> bytes:
        if start is not None and end is not None:
            return preview.spectrogram(path, width, start, end)
        return preview.spectrogram(path, width, *_shown(first, last, audio.duration(path)))

    return Response(await desk.use_file(desk.drawing, entry, work), media_type="image/png", headers=KEPT)


async def _heard(desk: Desk, item: str) -> Entry:
    entry = await desk.entry(item)
    if entry.item.source.modality != "audio":
        raise Refusal(404, f"{item}: is {entry.item.source.modality}; only sounds can be heard")
    return entry


def _shown(start: float | None, end: float | None, length: float) -> tuple[float, float]:
    """What is drawn of a file: all of it where it is short, else the moment with as much again on either side."""
    if length <= WHOLE:
        return 0.0, length
    first, last = start or 0.0, min(length if end is None else end, length)
    room = CONTEXT * (last - first)
    return max(0.0, first - room), min(length, last + room, first + preview.LONGEST)


def _wav(path: Path, start: float | None, end: float) -> bytes:
    samples = audio.read(path, PLAYED_RATE, start, end)
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(PLAYED_RATE)
        file.writeframes((samples.clip(-1, 1) * 32767).astype("<i2").tobytes() if len(samples) else b"")
    return data.getvalue()


def siblings(collection: Collection, entry: Entry) -> list[Entry]:
    """What belongs to an item: the rest of its row of the manifest, or the other side of the same moment of a film."""
    source, rows = entry.item.source, entry.item.columns.get("id", ())
    condition = [f"array_has(columns, {quoted(f'id={row}')})" for row in rows[:1]]
    if isinstance(source.content, Path):
        condition.append(f"file = {quoted(str(source.content))}")
    if not condition or collection.store is None:
        return []
    found = map(entry_of, collection.store.rows(FACTS, " OR ".join(condition), limit=50).to_pylist())
    same = [other for other in found if other.id != entry.id and _same_moment(other, entry)]
    return sorted(same, key=lambda other: other.item.key)


def _same_moment(one: Entry, other: Entry) -> bool:
    times = [(e.item.source.start, e.item.source.end) for e in (one, other)]
    return times[0] == times[1] or (None, None) in times
