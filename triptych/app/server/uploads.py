"""Requests with files: received within limits, judged by what is in the file, forgotten once they are answered."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile

from triptych.app.server.errors import HTTPError, format_validation_errors
from triptych.app.server.limits import Limits
from triptych.errors import MediaError, TriptychError
from triptych.interfaces import Modality, Source
from triptych.media import modalities_of
from triptych.media.inspection import MediaInfo, inspect_file
from triptych.media.limits import check_pixels

RequestModel = TypeVar("RequestModel", bound=BaseModel)
SUFFIX_PATTERN = re.compile(r"\.[A-Za-z0-9]{1,5}$")
BLOCK_BYTES = 1 << 20
QUERY_FIELD = "query"  # the form's field that holds the request itself, as JSON


@dataclass(frozen=True)
class Upload:
    """A file as it came: what the visitor calls it, and where it lies while the request lasts."""

    name: str
    path: Path


@asynccontextmanager
async def receive_request(
    request: Request, model: type[RequestModel], limits: Limits
) -> AsyncIterator[tuple[RequestModel, dict[str, Upload]]]:
    """The request as the model, and its files by their names in the form; the files are gone when the block ends."""
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
        raise HTTPError(
            415, f"Content-Type {content_type[:60]!r}; send application/json, or multipart/form-data with files"
        )


def _parse_request(payload: str | bytes, model: type[RequestModel]) -> RequestModel:
    try:
        return model.model_validate_json(payload)
    except ValidationError as error:
        raise HTTPError(422, format_validation_errors(error.errors(include_url=False, include_context=False))) from None
    except (ValueError, RecursionError) as error:
        raise HTTPError(400, f"the request is no JSON ({error})") from None


async def _save_upload(file: UploadFile, folder: Path, index: int) -> Upload:
    """A file on the disk under a name of ours: the visitor's is only for messages, but for its ending."""
    name = Path((file.filename or "file").replace("\\", "/")).name[:80] or "file"
    suffix = SUFFIX_PATTERN.search(name)
    path = folder / f"{index}{suffix.group().lower() if suffix else ''}"
    with path.open("xb") as target:
        while block := await file.read(BLOCK_BYTES):
            target.write(block)
    return Upload(name, path)


def inspect_upload(upload: Upload) -> MediaInfo:
    """What an uploaded file holds, by its content; called away from the event loop, within `Workers.sandbox`."""
    try:
        return inspect_file(upload.path, modalities_of(upload.path))
    except TriptychError as error:
        raise use_client_names(error, [upload]) from error


def make_sources(upload: Upload, contents: MediaInfo, modalities: Sequence[Modality]) -> list[Source]:
    """An uploaded file as what it is of what the space knows: a film is a picture and a sound."""
    supported: list[Modality] = [modality for modality in contents.modalities if modality in modalities]
    if not supported:
        found_modalities = " and ".join(contents.modalities)
        raise HTTPError(415, f"{upload.name}: is {found_modalities}; this space knows {', '.join(modalities)}")
    return [Source(modality, contents.text if modality == "text" else upload.path) for modality in supported]


@dataclass
class UploadBudget:
    """How many pixels and seconds of uploads are being worked on; counted on the event loop alone."""

    limits: Limits
    pixels: int = 0
    seconds: float = 0.0

    @contextmanager
    def open_request(self) -> Iterator[RequestBudget]:
        """What one request adds to it while it lasts."""
        request_budget = RequestBudget(self)
        try:
            yield request_budget
        finally:
            self.pixels -= request_budget.pixels
            self.seconds -= request_budget.seconds


@dataclass
class RequestBudget:
    """The pixels and seconds of the files of one request."""

    shared: UploadBudget
    pixels: int = 0
    seconds: float = 0.0

    def reserve(self, upload: Upload, contents: MediaInfo) -> None:
        """Count a file before it is decoded; a Refusal where that is too much for the request, or for all of them."""
        limits, pixels = self.shared.limits, contents.width * contents.height
        self._check_request(upload, contents)
        if (
            self.shared.pixels + pixels > limits.max_concurrent_pixels
            or self.shared.seconds + contents.duration > limits.max_concurrent_seconds
        ):
            retry_after = limits.retry_after
            raise HTTPError(
                503, f"{upload.name}: too many other files are being read; try again in {retry_after} s", retry_after
            )
        for budget in (self, self.shared):
            budget.pixels += pixels
            budget.seconds += contents.duration

    def _check_request(self, upload: Upload, contents: MediaInfo) -> None:
        limits, name = self.shared.limits, upload.name
        width, height, seconds = contents.width, contents.height, contents.duration
        before = " with the files before it" if self.pixels or self.seconds else ""
        if self.pixels + width * height > limits.max_upload_pixels:
            limit = f"at most {limits.max_upload_pixels / 1e6:g} million pixels here{before}"
            raise HTTPError(413, f"{name}: {width} × {height} pixels; {limit}: scale it down")
        if self.seconds + seconds > limits.max_upload_seconds:
            limit = f"at most {limits.max_upload_seconds:g} s here{before}"
            raise HTTPError(413, f"{name}: {seconds:,.0f} s long; {limit}: cut it")
        if len(contents.text) > limits.max_characters:
            limit = f"at most {limits.max_characters:,} here"
            raise HTTPError(413, f"{name}: {len(contents.text):,} characters; {limit}: cut it")
        if width and height:
            try:
                check_pixels(upload.path, width, height)
            except MediaError as error:
                raise HTTPError(413, str(use_client_names(error, [upload]))) from None


def use_client_names(error: TriptychError | HTTPError, uploads: Sequence[Upload]) -> Exception:
    """An error that speaks of files by the visitor's names for them, not by ours."""
    message = str(error)
    for upload in uploads:
        message = message.replace(str(upload.path), upload.name)
    return HTTPError(error.status, message) if isinstance(error, HTTPError) else type(error)(message)


def find_upload(files: Mapping[str, Upload], name: str) -> Upload:
    """The file under a name in the form."""
    if name not in files:
        raise HTTPError(400, f"no file {name!r} in the form; it has {json.dumps(sorted(files))}")
    return files[name]
