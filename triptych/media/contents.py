"""What a file of a stranger holds, by its content: a picture, a text, a film or a sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.errors import MediaError
from triptych.media import audio, image, limits, sandbox, text, video
from triptych.media.container import opened, track
from triptych.media.signatures import TEXT, unread_format

if TYPE_CHECKING:  # contracts loads torch
    from triptych.contracts import Modality


READABLE = "a picture (png, jpg …), a sound (wav, mp3 …), a film (mp4, webm …) or a text (txt, md)"


@dataclass(frozen=True)
class Contents:
    """What a file can be embedded as, and how much of it there is."""

    modalities: tuple[Modality, ...]
    width: int = 0  # pixels, of a picture or of a film's frames
    height: int = 0
    seconds: float = 0.0  # of a film or a sound
    words: str = ""  # of a text


def _contents(answer: Any, arguments: Mapping[str, Any]) -> Contents:
    if not isinstance(answer, dict) or answer.keys() != {field.name for field in fields(Contents)}:
        raise ValueError("no contents")
    modalities = answer["modalities"]
    if modalities not in (["image"], ["audio"], ["text"], ["image", "audio"]):
        raise ValueError("no contents")
    width, height, seconds = (sandbox.seconds(answer[name], arguments) for name in ("width", "height", "seconds"))
    return Contents(tuple(modalities), int(width), int(height), seconds, sandbox.words(answer["words"], arguments))


@sandbox.decoder(_contents)
def inspect(path: Path, by_ending: Sequence[Modality]) -> Contents:
    """What a file holds; `by_ending` is what its name promises. Headers are read alone where those tell enough."""
    limits.check_file(path, "uploaded")
    try:
        return _read_headers(path, by_ending)
    except MediaError as error:
        name = unread_format(path)
        if name is None or (name == TEXT and by_ending):  # its name says what it should be, and the error what is wrong
            raise
        raise MediaError(f"{path}: is {name}; give {READABLE}") from error


def _read_headers(path: Path, by_ending: Sequence[Modality]) -> Contents:
    size = image.size(path)
    if size is not None:
        return Contents(("image",), *size)
    if "text" in by_ending:  # any bytes may be one
        return Contents(("text",), words=text.read(path))
    film = _film(path, is_named_film=len(by_ending) > 1)
    if film is not None:
        return Contents(("image", "audio") if film.has_sound else ("image",), film.width, film.height, film.duration)
    try:
        return Contents(("audio",), seconds=audio.duration(path))
    except MediaError as error:
        if by_ending:
            raise
        raise MediaError(f"{path}: is none of the files that can be read; give {READABLE}") from error


def _film(path: Path, is_named_film: bool) -> video.Info | None:
    """What a film holds; None where it has no moving pictures, such as a sound in a film's container."""
    if not is_named_film and not video.is_film(path):
        return None
    with opened(path, "a film") as container:
        if track(container, "video") is None:
            return None
    return video.info(path)
