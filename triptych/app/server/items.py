"""Routes for items: metadata, similar items, media files and previews; conversion of items to responses."""

import io
import time
import wave
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi import Path as InPath
from fastapi.responses import Response

from triptych.app.server.errors import HTTPError, error_responses
from triptych.app.server.schemas import ID_PATTERN, HitResponse, ItemResponse, MediaKind, PeaksResponse, SearchResponse
from triptych.app.server.served_files import OpenFileResponse, item_path
from triptych.app.server.state import AppState, StateDep
from triptych.interfaces import Modality
from triptych.media import VIDEO_EXTENSIONS, audio, image, modalities_of, preview
from triptych.search.collection import Collection
from triptych.search.item import METADATA_COLUMNS, Hit, Item, item_from_row
from triptych.search.query import quote_sql
from triptych.search.ranking import RELEVANCE_THRESHOLD

router = APIRouter(prefix="/v1/items", tags=["items"])
ItemId = Annotated[str, InPath(pattern=ID_PATTERN, description="id of an item", examples=["0123456789abcdef"])]
Seconds = Annotated[float | None, Query(ge=0, le=1e6, allow_inf_nan=False)]
MIME_SUBTYPES = {  # extensions that differ from the MIME subtype of the format
    ".mp3": "mpeg", ".oga": "ogg", ".opus": "ogg", ".m4a": "mp4", ".m4b": "mp4", ".weba": "webm", ".mka": "x-matroska",
    ".m4v": "mp4", ".mkv": "x-matroska", ".mov": "quicktime", ".ogv": "ogg", ".jpg": "jpeg", ".tif": "tiff",
}  # fmt: skip
CONTEXT_SEGMENTS = 1.0  # context on each side of a segment in previews, as a multiple of the segment's duration
WHOLE_FILE_SECONDS = 60.0  # a preview shows a file up to this duration completely
WAV_SAMPLE_RATE, WAV_MAX_SECONDS = 32_000, 120.0  # in Hz and s, of the audio converted for browsers
CACHE_HEADERS = {"Cache-Control": "private, max-age=3600"}


def _binary_responses(media_type: str) -> dict[int | str, dict[str, Any]]:
    return {**error_responses(404, 410), 200: {"content": {media_type: {}}}}


@router.get("/{item}", responses=error_responses(404))
async def read_item(state: StateDep, item: ItemId) -> ItemResponse:
    """Return an item and its siblings: other items of the same manifest row or video segment."""
    entry = await state.find_item(item)

    def work(collection: Collection) -> ItemResponse:
        others = [make_item_response(other) for other in find_siblings(collection, entry)]
        return make_item_response(entry).model_copy(update={"siblings": others})

    return await state.run_with_collection(work)


@router.get("/{item}/similar", responses=error_responses(404))
async def search_similar(
    state: StateDep,
    item: ItemId,
    modality: Annotated[list[Modality], Query(max_length=3)] = [],  # noqa: B006 - FastAPI copies it
    k: Annotated[int, Query(ge=1, le=200)] = 20,
) -> SearchResponse:
    """Return the items most similar to an item."""
    await state.find_item(item)
    started = time.perf_counter()

    def work(collection: Collection) -> list[HitResponse]:
        hits = collection.search_similar(item, list(dict.fromkeys(modality)), k)
        return make_hit_responses(hits)

    hits = await state.run_with_collection(work)
    seconds = time.perf_counter() - started
    return SearchResponse(hits=hits, relevance_threshold=RELEVANCE_THRESHOLD, seconds=seconds, notes=[])


@router.get(
    "/{item}/media",
    responses=error_responses(416) | _binary_responses("*/*") | {206: {"description": "the requested range"}},
    response_class=Response,
)
async def read_media(state: StateDep, item: ItemId, request: Request) -> Response:
    """Return the file of an item, or a range of its bytes."""
    entry = await state.find_item(item)
    if request.headers.get("range", "bytes=0-").count(",") > 8:
        raise HTTPError(416, "the Range header has more than nine ranges; request one range at a time")
    path, file = item_path(entry), await state.open_file(entry)
    return OpenFileResponse(file, path, infer_mime_type(path), {"Cache-Control": "no-cache"})


@router.get("/{item}/audio.wav", responses=_binary_responses("audio/wav"), response_class=Response)
async def read_audio_wav(state: StateDep, item: ItemId) -> Response:
    """Return the audio of an item as WAV, for browsers that cannot play the file."""
    entry = await _find_audio(state, item)
    start, end = entry.source.start, entry.source.end
    wav_end = min(end or 1e9, (start or 0.0) + WAV_MAX_SECONDS)
    wav = await state.run_with_file(state.preview_executor, entry, lambda path: _encode_wav(path, start, wav_end))
    return Response(wav, media_type="audio/wav", headers=CACHE_HEADERS)


@router.get("/{item}/thumbnail", responses=_binary_responses("image/jpeg"), response_class=Response)
async def read_thumbnail(state: StateDep, item: ItemId, size: Annotated[int, Query(ge=16, le=1024)] = 512) -> Response:
    """Return an image, or the video frame of a segment, as a small JPEG."""
    entry = await state.find_item(item)
    if entry.source.modality != "image":
        raise HTTPError(404, f"item {item} is {entry.source.modality}; only images and videos have a thumbnail")

    def work(path: Path) -> bytes:
        return preview.render_thumbnail(path, size, image.frame_time(replace(entry.source, content=path)))

    jpeg = await state.run_with_file(state.preview_executor, entry, work)
    return Response(jpeg, media_type="image/jpeg", headers=CACHE_HEADERS)


@router.get("/{item}/peaks", responses=error_responses(404, 410))
async def read_peaks(state: StateDep, item: ItemId, count: Annotated[int, Query(ge=1, le=2000)] = 240) -> PeaksResponse:
    """Return the waveform outline of an item: the complete file up to 60 s, otherwise the segment with context."""
    entry = await _find_audio(state, item)
    start, end = entry.source.start, entry.source.end

    def work(path: Path) -> PeaksResponse:
        length = audio.read_duration(path)
        first, last = _preview_range(start, end, length)
        outline = preview.compute_peaks(path, count, first, last)
        duration = min(end or length, length) - (start or 0.0)
        return PeaksResponse(start=first, end=last, duration=max(0.0, duration), peaks=outline.round(4).tolist())

    return await state.run_with_file(state.preview_executor, entry, work)


@router.get("/{item}/spectrogram", responses=_binary_responses("image/png"), response_class=Response)
async def read_spectrogram(
    state: StateDep,
    item: ItemId,
    width: Annotated[int, Query(ge=16, le=2000)] = 512,
    start: Seconds = None,
    end: Seconds = None,
) -> Response:
    """Return a spectrogram as PNG between two times in seconds. The default is the range that /peaks returns."""
    entry = await _find_audio(state, item)
    first, last = entry.source.start, entry.source.end

    def work(path: Path) -> bytes:
        if start is not None and end is not None:
            return preview.render_spectrogram(path, width, start, end)
        return preview.render_spectrogram(path, width, *_preview_range(first, last, audio.read_duration(path)))

    png = await state.run_with_file(state.preview_executor, entry, work)
    return Response(png, media_type="image/png", headers=CACHE_HEADERS)


async def _find_audio(state: AppState, item: str) -> Item:
    entry = await state.find_item(item)
    if entry.source.modality != "audio":
        raise HTTPError(404, f"item {item} is {entry.source.modality}; only audio has a waveform and can be played")
    return entry


def _preview_range(start: float | None, end: float | None, length: float) -> tuple[float, float]:
    """Return the range of a preview: the complete file up to 60 s, otherwise the segment with context."""
    if length <= WHOLE_FILE_SECONDS:
        return 0.0, length
    first, last = start or 0.0, min(length if end is None else end, length)
    margin = CONTEXT_SEGMENTS * (last - first)
    return max(0.0, first - margin), min(length, last + margin, first + preview.MAX_RENDERED_SECONDS)


def _encode_wav(path: Path, start: float | None, end: float) -> bytes:
    samples = audio.read(path, WAV_SAMPLE_RATE, start, end)
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(WAV_SAMPLE_RATE)
        file.writeframes((samples.clip(-1, 1) * 32767).astype("<i2").tobytes() if len(samples) else b"")
    return data.getvalue()


def find_siblings(collection: Collection, entry: Item) -> list[Item]:
    """Return the other items of the same manifest row, and the other modality of the same video segment."""
    source, row_ids = entry.source, entry.columns.get("id", ())
    conditions = [f"array_has(columns, {quote_sql(f'id={row_id}')})" for row_id in row_ids[:1]]
    if isinstance(source.content, Path):
        conditions.append(f"file = {quote_sql(entry.location or '')}")
    if not conditions or collection.store is None:
        return []
    rows = collection.store.select_rows(METADATA_COLUMNS, " OR ".join(conditions), limit=50)
    candidates = [item_from_row(row, collection.store.roots) for row in rows.to_pylist()]
    related = [other for other in candidates if other.id != entry.id and _is_same_segment(other, entry)]
    return sorted(related, key=lambda other: other.identity)


def _is_same_segment(a: Item, b: Item) -> bool:
    segments = [(e.source.start, e.source.end) for e in (a, b)]
    return segments[0] == segments[1] or (None, None) in segments


def make_item_response(item: Item) -> ItemResponse:
    """Convert an item of the collection to a response."""
    return ItemResponse(**item.to_dict() | _display_fields(item))


def make_hit_responses(hits: Sequence[Hit]) -> list[HitResponse]:
    """Convert search results to responses."""
    return [HitResponse(**hit.to_dict() | _display_fields(hit.item)) for hit in hits]


def _display_fields(item: Item) -> dict[str, Any]:
    """Return the response fields that are not stored in the collection."""
    source, path = item.source, item.source.content
    if not isinstance(path, Path):
        return {"media_kind": infer_media_kind(source.modality, None), "name": "", "folder": ""}
    return {
        "media_kind": infer_media_kind(source.modality, path),
        "name": path.name,
        "folder": str(PurePosixPath(item.location or path.name).parent),
        # Use the excerpt stored at indexing, because the file may have changed since then.
        "text": (item.excerpt or path.name) if source.modality == "text" else None,
    }


def infer_mime_type(path: Path) -> str:
    """Return the MIME type of a media file by its extension, or application/octet-stream for unknown extensions."""
    extension, modalities = path.suffix.lower(), modalities_of(path)
    if not modalities:
        return "application/octet-stream"
    if modalities == ("text",):
        return "text/plain; charset=utf-8"
    return f"{infer_media_kind(modalities[0], path)}/{MIME_SUBTYPES.get(extension, extension[1:])}"


def infer_media_kind(modality: Modality, path: Path | None) -> MediaKind:
    """Return the modality, or "video" for an image or audio item of a video file."""
    if path is not None and path.suffix.lower() in VIDEO_EXTENSIONS:
        return "video"
    return modality
