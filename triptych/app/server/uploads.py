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

from triptych.app.server.limits import Limits
from triptych.app.server.problems import Refusal, sentence
from triptych.contracts import Modality, Source
from triptych.errors import MediaError, TriptychError
from triptych.media import modalities_of
from triptych.media.contents import Contents, inspect
from triptych.media.limits import check_pixels

Asked = TypeVar("Asked", bound=BaseModel)
ENDING = re.compile(r"\.[A-Za-z0-9]{1,5}$")
BLOCK = 1 << 20
QUERY = "query"  # the form's field that holds the request itself, as JSON


@dataclass(frozen=True)
class Upload:
    """A file as it came: what the visitor calls it, and where it lies while the request lasts."""

    name: str
    path: Path


@asynccontextmanager
async def received(
    request: Request, model: type[Asked], limits: Limits
) -> AsyncIterator[tuple[Asked, dict[str, Upload]]]:
    """The request as the model, and its files by their names in the form; the files are gone when the block ends."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        with tempfile.TemporaryDirectory(prefix="triptych-upload-") as folder:
            async with request.form(
                max_files=limits.parts, max_fields=limits.parts, max_part_size=limits.json_bytes
            ) as form:
                written = form.get(QUERY)
                if not isinstance(written, str):
                    raise Refusal(400, f"the form has no field {QUERY!r} with the request as JSON")
                files = {n: f for n, f in form.multi_items() if isinstance(f, UploadFile)}
                uploads = {n: await _kept(f, Path(folder), i) for i, (n, f) in enumerate(files.items())}
            yield _parsed(written, model), uploads
    elif kind in {"application/json", ""}:
        yield _parsed(await request.body(), model), {}
    else:
        raise Refusal(415, f"Content-Type {kind[:60]!r}; send application/json, or multipart/form-data with files")


def _parsed(written: str | bytes, model: type[Asked]) -> Asked:
    try:
        return model.model_validate_json(written)
    except ValidationError as error:
        raise Refusal(422, sentence(error.errors(include_url=False, include_context=False))) from None
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the request is no JSON ({error})") from None


async def _kept(file: UploadFile, folder: Path, number: int) -> Upload:
    """A file on the disk under a name of ours: the visitor's is only for messages, but for its ending."""
    name = Path((file.filename or "file").replace("\\", "/")).name[:80] or "file"
    ending = ENDING.search(name)
    path = folder / f"{number}{ending.group().lower() if ending else ''}"
    with path.open("xb") as kept:
        while block := await file.read(BLOCK):
            kept.write(block)
    return Upload(name, path)


def contents_of(upload: Upload) -> Contents:
    """What an uploaded file holds, by its content; called away from the event loop, within `Workers.sandbox`."""
    try:
        return inspect(upload.path, modalities_of(upload.path))
    except TriptychError as error:
        raise renamed(error, [upload]) from error


def sources(upload: Upload, contents: Contents, modalities: Sequence[Modality]) -> list[Source]:
    """An uploaded file as what it is of what the space knows: a film is a picture and a sound."""
    known: list[Modality] = [modality for modality in contents.modalities if modality in modalities]
    if not known:
        kinds = " and ".join(contents.modalities)
        raise Refusal(415, f"{upload.name}: is {kinds}; this space knows {', '.join(modalities)}")
    return [Source(modality, contents.words if modality == "text" else upload.path) for modality in known]


@dataclass
class Load:
    """How many pixels and seconds of uploads are being worked on; counted on the event loop alone."""

    limits: Limits
    pixels: int = 0
    seconds: float = 0.0

    @contextmanager
    def request(self) -> Iterator[RequestLoad]:
        """What one request adds to it while it lasts."""
        share = RequestLoad(self)
        try:
            yield share
        finally:
            self.pixels -= share.pixels
            self.seconds -= share.seconds


@dataclass
class RequestLoad:
    """The pixels and seconds of the files of one request."""

    load: Load
    pixels: int = 0
    seconds: float = 0.0

    def add(self, upload: Upload, contents: Contents) -> None:
        """Count a file before it is decoded; a Refusal where that is too much for the request, or for all of them."""
        limits, pixels = self.load.limits, contents.width * contents.height
        self._check_request(upload, contents)
        if self.load.pixels + pixels > limits.all_pixels or self.load.seconds + contents.seconds > limits.all_seconds:
            retry = limits.retry_seconds
            raise Refusal(503, f"{upload.name}: too many other files are being read; try again in {retry} s", retry)
        for total in (self, self.load):
            total.pixels += pixels
            total.seconds += contents.seconds

    def _check_request(self, upload: Upload, contents: Contents) -> None:
        limits, name = self.load.limits, upload.name
        width, height, seconds = contents.width, contents.height, contents.seconds
        before = " with the files before it" if self.pixels or self.seconds else ""
        if self.pixels + width * height > limits.upload_pixels:
            most = f"at most {limits.upload_pixels / 1e6:g} million pixels here{before}"
            raise Refusal(413, f"{name}: {width} × {height} pixels; {most}: scale it down")
        if self.seconds + seconds > limits.upload_seconds:
            most = f"at most {limits.upload_seconds:g} s here{before}"
            raise Refusal(413, f"{name}: {seconds:,.0f} s long; {most}: cut it")
        if len(contents.words) > limits.characters:
            most = f"at most {limits.characters:,} here"
            raise Refusal(413, f"{name}: {len(contents.words):,} characters; {most}: cut it")
        if width and height:
            try:
                check_pixels(upload.path, width, height)
            except MediaError as error:
                raise Refusal(413, str(renamed(error, [upload]))) from None


def renamed(error: TriptychError | Refusal, uploads: Sequence[Upload]) -> Exception:
    """An error that speaks of files by the visitor's names for them, not by ours."""
    message = str(error)
    for upload in uploads:
        message = message.replace(str(upload.path), upload.name)
    return Refusal(error.status, message) if isinstance(error, Refusal) else type(error)(message)


def named(files: Mapping[str, Upload], name: str) -> Upload:
    """The file under a name in the form."""
    if name not in files:
        raise Refusal(400, f"no file {name!r} in the form; it has {json.dumps(sorted(files))}")
    return files[name]
