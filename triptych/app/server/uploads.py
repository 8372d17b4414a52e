"""Requests with files: received within limits, judged by what is in the file, forgotten once they are answered."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fastapi import Request
from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile

from triptych.app.server.limits import Limits
from triptych.app.server.problems import Refusal, sentence
from triptych.contracts import Modality, Source
from triptych.errors import MediaError, TriptychError
from triptych.media import TEXT_ENDINGS, VIDEO_ENDINGS, audio, image, text, video
from triptych.media.container import opened, track

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


def sources(upload: Upload, modalities: Sequence[Modality], limits: Limits) -> list[Source]:
    """What an uploaded file is, by its content: a picture, a sound, a text; a film is a picture and a sound.

    Reads headers alone where those tell enough; runs away from the event loop.
    """
    try:
        found = _sources(upload.path, limits)
    except (TriptychError, Refusal) as error:
        raise renamed(error, [upload]) from error
    known = [source for source in found if source.modality in modalities]
    if not known:
        kinds = " and ".join(source.modality for source in found)
        raise Refusal(415, f"{upload.name}: is {kinds}; this space knows {', '.join(modalities)}")
    return known


def _sources(path: Path, limits: Limits) -> list[Source]:
    if path.stat().st_size == 0:
        raise MediaError(f"{path}: the file is empty (0 bytes)")
    size = _picture_size(path, limits)
    if size is not None:
        _check_pixels(path, size, limits)
        return [Source("image", path)]
    if path.suffix.lower() in TEXT_ENDINGS:
        return [Source("text", text.read(path))]
    film = _film(path)
    if film is not None:
        _check_seconds(path, film.duration, limits)
        _check_pixels(path, (film.width, film.height), limits)
        return [Source("image", path), *([Source("audio", path)] if film.has_sound else [])]
    _check_seconds(path, audio.duration(path), limits)
    return [Source("audio", path)]


def _picture_size(path: Path, limits: Limits) -> tuple[int, int] | None:
    try:
        with Image.open(path, formats=image.FORMATS) as picture:
            return picture.size
    except UnidentifiedImageError:
        return None
    except Image.DecompressionBombError as error:
        most = f"at most {limits.upload_pixels / 1e6:g} million pixels here"
        raise Refusal(413, f"{path}: far more pixels than are unpacked ({most}): scale it down") from error
    except Exception as error:  # a decoder may fail in any way at all on damaged data
        raise MediaError(f"{path}: broken picture data ({error}); give another file") from error


def _film(path: Path) -> video.Info | None:
    """What a film holds; None where it has no moving pictures, such as a sound in a film's container."""
    if path.suffix.lower() not in VIDEO_ENDINGS and not video.is_film(path):
        return None
    with opened(path, "a film") as container:
        if track(container, "video") is None:
            return None
    return video.info(path)


def _check_pixels(path: Path, size: tuple[int, int], limits: Limits) -> None:
    if size[0] * size[1] > limits.upload_pixels:
        most = f"at most {limits.upload_pixels / 1e6:g} million pixels here"
        raise Refusal(413, f"{path}: {size[0]} × {size[1]} pixels; {most}: scale it down")


def _check_seconds(path: Path, seconds: float, limits: Limits) -> None:
    if seconds > limits.upload_seconds:
        raise Refusal(413, f"{path}: {seconds:,.0f} s long; at most {limits.upload_seconds:g} s here: cut it")


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
