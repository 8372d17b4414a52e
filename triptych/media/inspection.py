"""What a file of a stranger holds, by its content: a picture, a text, a film or a sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.errors import MediaError
from triptych.media import audio, image, limits, sandbox, text, video
from triptych.media.container import open_container, select_stream
from triptych.media.signatures import UNSUPPORTED_TEXT, detect_unsupported_format

if TYPE_CHECKING:  # interfaces loads torch
    from triptych.interfaces import Modality


SUPPORTED_FORMATS = "a picture (png, jpg …), a sound (wav, mp3 …), a film (mp4, webm …) or a text (txt, md)"


@dataclass(frozen=True)
class MediaInfo:
    """What a file can be embedded as, and how much of it there is."""

    modalities: tuple[Modality, ...]
    width: int = 0  # pixels, of a picture or of a film's frames
    height: int = 0
    duration: float = 0.0  # of a film or a sound
    text: str = ""  # of a text


def _validate_info(reply: Any, arguments: Mapping[str, Any]) -> MediaInfo:
    if not isinstance(reply, dict) or reply.keys() != {field.name for field in fields(MediaInfo)}:
        raise ValueError("no contents")
    modalities = reply["modalities"]
    if modalities not in (["image"], ["audio"], ["text"], ["image", "audio"]):
        raise ValueError("no contents")
    width, height, duration = (
        sandbox.validate_seconds(reply[name], arguments) for name in ("width", "height", "duration")
    )
    return MediaInfo(
        tuple(modalities), int(width), int(height), duration, sandbox.validate_text(reply["text"], arguments)
    )


@sandbox.decoder(_validate_info)
def inspect_file(path: Path, expected_modalities: Sequence[Modality]) -> MediaInfo:
    """What a file holds; `by_ending` is what its name promises. Headers are read alone where those tell enough."""
    limits.check_file(path, "uploaded")
    try:
        return _read_headers(path, expected_modalities)
    except MediaError as error:
        format_name = detect_unsupported_format(path)
        if format_name is None or (
            format_name == UNSUPPORTED_TEXT and expected_modalities
        ):  # its name says what it should be, and the error what is wrong
            raise
        raise MediaError(f"{path}: is {format_name}; give {SUPPORTED_FORMATS}") from error


def _read_headers(path: Path, expected_modalities: Sequence[Modality]) -> MediaInfo:
    size = image.read_size(path)
    if size is not None:
        return MediaInfo(("image",), *size)
    if "text" in expected_modalities:  # any bytes may be one
        return MediaInfo(("text",), text=text.read(path))
    video_info = _read_video_info(path, has_video_extension=len(expected_modalities) > 1)
    if video_info is not None:
        return MediaInfo(
            ("image", "audio") if video_info.has_audio else ("image",),
            video_info.width,
            video_info.height,
            video_info.duration,
        )
    try:
        return MediaInfo(("audio",), duration=audio.read_duration(path))
    except MediaError as error:
        if expected_modalities:
            raise
        raise MediaError(f"{path}: is none of the files that can be read; give {SUPPORTED_FORMATS}") from error


def _read_video_info(path: Path, has_video_extension: bool) -> video.VideoInfo | None:
    """What a film holds; None where it has no moving pictures, such as a sound in a film's container."""
    if not has_video_extension and not video.is_video(path):
        return None
    with open_container(path, "a film") as file:
        if select_stream(file, "video") is None:
            return None
    return video.read_info(path)
