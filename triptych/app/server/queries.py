"""Conversion of HTTP requests to search queries: parse JSON or forms, check uploaded files, embed query parts."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile

from triptych.app.server.errors import HTTPError, format_validation_errors, make_busy_error
from triptych.app.server.limits import Limits
from triptych.app.server.schemas import FilterRequest, QueryPartRequest
from triptych.app.server.state import AppState, UploadUsage
from triptych.errors import MediaError, TriptychError
from triptych.interfaces import Modality, Source
from triptych.media import modalities_of
from triptych.media.inspection import MediaInfo, inspect_file
from triptych.media.limits import check_pixels
from triptych.search.collection import Collection
from triptych.search.query import EmbeddedQuery, Filter, QueryPart, StoredItem
from triptych.search.scan import query_content_hashes

RequestModel = TypeVar("RequestModel", bound=BaseModel)
SUFFIX_PATTERN = re.compile(r"\.[A-Za-z0-9]{1,5}$")
BLOCK_BYTES = 1 << 20  # bytes of an upload that are copied at once
QUERY_FIELD = "query"  # form field that contains the request as JSON


@dataclass(frozen=True)
class Upload:
    """An uploaded file: the file name that the client sent, and the temporary path on the server."""

    name: str
    path: Path


@dataclass(frozen=True)
class ResolvedPart:
    """One part of a query, ready for the search."""

    source: Source
    part: QueryPart
    part_index: int  # position of the part in the request; a video becomes two resolved parts of equal index


def make_request_body(model: type[Any]) -> dict[str, Any]:
    """Return the OpenAPI description of a request: JSON, or a form with files and the JSON in field `query`."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    form = {
        "type": "object",
        "required": [QUERY_FIELD],
        "properties": {QUERY_FIELD: {"type": "string", "description": f"a {model.__name__} as JSON"}},
        "additionalProperties": {"type": "string", "format": "binary"},
    }
    content = {"application/json": {"schema": schema}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


@asynccontextmanager
async def receive_request(
    request: Request, model: type[RequestModel], limits: Limits
) -> AsyncIterator[tuple[RequestModel, dict[str, Upload]]]:
    """Yield the parsed request and its uploads by form field. The uploads are deleted on exit."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == "multipart/form-data":
        with tempfile.TemporaryDirectory(prefix="triptych-upload-") as folder:
            async with request.form(
                max_files=limits.max_parts, max_fields=limits.max_parts, max_part_size=limits.max_json_bytes
            ) as form:
                payload = form.get(QUERY_FIELD)
                if not isinstance(payload, str):
                    raise HTTPError(400, f"the form has no field {QUERY_FIELD!r} with the request as JSON")
                files = {n: f for n, f in form.multi_items() if isinstance(f, UploadFile)}
                uploads = {n: await _save_upload(f, Path(folder), i) for i, (n, f) in enumerate(files.items())}
            yield _parse_request(payload, model), uploads
    elif content_type in {"application/json", ""}:
        yield _parse_request(await request.body(), model), {}
    else:
        hint = "send application/json or multipart/form-data"
        raise HTTPError(415, f"unsupported Content-Type {content_type[:60]!r}; {hint}")


def _parse_request(payload: str | bytes, model: type[RequestModel]) -> RequestModel:
    try:
        return model.model_validate_json(payload)
    except ValidationError as error:
        raise HTTPError(422, format_validation_errors(error.errors(include_url=False, include_context=False))) from None
    except (ValueError, RecursionError) as error:
        raise HTTPError(400, f"the request is not valid JSON ({error})") from None


async def _save_upload(file: UploadFile, folder: Path, index: int) -> Upload:
    """Write an upload to disk. The path contains only the suffix of the client's file name."""
    name = Path((file.filename or "file").replace("\\", "/")).name[:80] or "file"
    suffix = SUFFIX_PATTERN.search(name)
    path = folder / f"{index}{suffix.group().lower() if suffix else ''}"
    with path.open("xb") as target:
        while block := await file.read(BLOCK_BYTES):
            target.write(block)
    return Upload(name, path)


async def resolve_parts(
    state: AppState, requested_parts: Sequence[QueryPartRequest], files: Mapping[str, Upload]
) -> list[ResolvedPart]:
    """Embed the texts and files of a query. The features of items are stored in the collection."""
    with UploadBudget.open(state.limits, state.upload_usage) as budget:
        sources_by_part = [await _resolve_sources(state, part, files, budget) for part in requested_parts]
        pairs = list(zip(requested_parts, sources_by_part, strict=True))
        sources_to_embed = [source for part, sources in pairs if part.item is None for source in sources]
        try:
            features = iter(await state.batcher.embed(sources_to_embed)) if sources_to_embed else iter(())
        except TriptychError as error:
            raise replace_temporary_paths(error, list(files.values())) from error
    resolved: list[ResolvedPart] = []
    for part_index, (part, sources) in enumerate(pairs):
        for source in sources:
            content_hashes = await _content_hashes(state, source, files.get(part.file or ""))
            query_input = StoredItem(part.item) if part.item else EmbeddedQuery(next(features), content_hashes)
            resolved.append(ResolvedPart(source, QueryPart(query_input, part.weight / len(sources)), part_index))
    return resolved


async def _content_hashes(state: AppState, source: Source, upload: Upload | None) -> frozenset[str]:
    """Return the content hashes that items of the uploaded file would have in the collection."""
    if upload is None:
        return frozenset()
    file, space = Source(source.modality, upload.path), state.collection.space  # a text source contains no path
    return await state.run(state.preview_executor, lambda: query_content_hashes(file, space))


async def _resolve_sources(
    state: AppState, part: QueryPartRequest, files: Mapping[str, Upload], budget: UploadBudget
) -> list[Source]:
    if part.item is not None:
        return [(await state.find_item(part.item)).source]
    if part.text is not None:
        if "text" not in state.collection.space.modalities:
            raise HTTPError(422, "this space has no text encoder; use a file or an item as query")
        return [Source("text", part.text)]
    upload = find_upload(files, part.file or "")
    contents = await state.batcher.run_sandboxed(lambda: inspect_upload(upload))
    budget.reserve(upload, contents)
    return make_sources(upload, contents, state.collection.space.modalities)


def make_filter(conditions: FilterRequest, collection: Collection) -> Filter:
    """Convert a filter request. Its `folder` starts with the name of a root, as in `ItemFields.folder`."""
    fields = conditions.model_dump(exclude={"folder"})
    if conditions.folder is None:
        return Filter(**fields)
    name = PurePosixPath(conditions.folder)
    root_names = sorted(collection.store.roots.paths) if collection.store else []
    if name.parts and name.parts[0] in root_names and ".." not in name.parts:
        return Filter(**fields, location=str(name))
    hint = f"the folders of the collection start with {', '.join(root_names)}"
    raise HTTPError(422, f"folder {conditions.folder[:80]!r} is not in this collection; {hint}")


def inspect_upload(upload: Upload) -> MediaInfo:
    """Detect the format and size of an upload from its bytes. Call this on a thread, within `WorkerPool.sandbox`."""
    try:
        return inspect_file(upload.path, modalities_of(upload.path))
    except TriptychError as error:
        raise replace_temporary_paths(error, [upload]) from error


def make_sources(upload: Upload, contents: MediaInfo, modalities: Sequence[Modality]) -> list[Source]:
    """Return one source for each modality of an upload that the space supports. A video has image and audio."""
    supported: list[Modality] = [modality for modality in contents.modalities if modality in modalities]
    if not supported:
        file_modalities = " and ".join(contents.modalities)
        raise HTTPError(415, f"{upload.name}: contains {file_modalities}; this space has {', '.join(modalities)}")
    return [Source(modality, contents.text if modality == "text" else upload.path) for modality in supported]


@dataclass
class UploadBudget:
    """The pixels and seconds in the uploads of one request. The usage of all requests includes both numbers."""

    limits: Limits
    usage: UploadUsage
    pixels: int = 0
    seconds: float = 0.0

    @staticmethod
    @contextmanager
    def open(limits: Limits, usage: UploadUsage) -> Iterator[UploadBudget]:
        """Yield the budget of one request. On exit, subtract its pixels and seconds from the usage of all requests."""
        budget = UploadBudget(limits, usage)
        try:
            yield budget
        finally:
            usage.pixels -= budget.pixels
            usage.seconds -= budget.seconds

    def reserve(self, upload: Upload, contents: MediaInfo) -> None:
        """Count a file before it is decoded. Raise an HTTPError if one request or all requests exceed a limit."""
        limits, usage = self.limits, self.usage
        pixels, seconds = contents.width * contents.height, contents.duration
        self._check_request(upload, contents)
        if (
            usage.pixels + pixels > limits.max_concurrent_pixels
            or usage.seconds + seconds > limits.max_concurrent_seconds
        ):
            raise make_busy_error(f"{upload.name}: too many other files are being read", limits.retry_after)
        for counter in (self, usage):
            counter.pixels += pixels
            counter.seconds += seconds

    def _check_request(self, upload: Upload, contents: MediaInfo) -> None:
        limits, name = self.limits, upload.name
        width, height, seconds = contents.width, contents.height, contents.duration
        total = " for all files of a request" if self.pixels or self.seconds else ""
        if self.pixels + width * height > limits.max_upload_pixels:
            limit = f"at most {limits.max_upload_pixels / 1e6:g} million pixels{total}"
            raise HTTPError(413, f"{name}: {width} × {height} pixels; {limit}; scale the image down")
        if self.seconds + seconds > limits.max_upload_seconds:
            limit = f"at most {limits.max_upload_seconds:g} s{total}"
            raise HTTPError(413, f"{name}: {seconds:,.0f} s long; {limit}; send a shorter file")
        if len(contents.text) > limits.max_characters:
            limit = f"at most {limits.max_characters:,}"
            raise HTTPError(413, f"{name}: {len(contents.text):,} characters; {limit}; send a shorter text")
        if width and height:
            try:
                check_pixels(upload.path, width, height)
            except MediaError as error:
                raise HTTPError(413, str(replace_temporary_paths(error, [upload]))) from None


def replace_temporary_paths(error: TriptychError | HTTPError, uploads: Sequence[Upload]) -> Exception:
    """Return an error whose message contains the client's file names instead of the temporary paths of uploads."""
    message = str(error)
    for upload in uploads:
        message = message.replace(str(upload.path), upload.name)
    return HTTPError(error.status, message) if isinstance(error, HTTPError) else type(error)(message)


def find_upload(files: Mapping[str, Upload], name: str) -> Upload:
    """Return the upload of a form field. Raise an HTTPError if the form has no such file."""
    if name not in files:
        raise HTTPError(400, f"the form has no file {name!r}; the files of the form are {json.dumps(sorted(files))}")
    return files[name]
