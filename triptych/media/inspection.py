"""Detect whether an untrusted file is an image, a text, a video or audio. The bytes decide, not the extension."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.errors import MediaError
from triptych.media import audio, image, limits, sandbox, text, video
from triptych.media.container import open_container, select_stream

if TYPE_CHECKING:  # interfaces imports torch, which takes seconds
    from triptych.interfaces import Modality

SUPPORTED_FORMATS = "an image (png, jpg …), audio (wav, mp3 …), a video (mp4, webm …) or a text (txt, md)"
HEAD_BYTES = 4096  # bytes searched for a signature
# Signatures of formats that are not supported: offset, bytes, name of the format. The first match counts.
SIGNATURES: tuple[tuple[int, bytes | tuple[bytes, ...], str], ...] = (
    (0, b"%PDF-", "a PDF document"),
    (0, b"%!PS", "a PostScript document"),
    (0, b"{\\rtf", "an RTF document"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Office document (doc, xls, ppt)"),
    (0, b"PK\x03\x04", "a ZIP archive, or a document that is one (docx, xlsx, odt, epub)"),
    (0, b"PK\x05\x06", "an empty ZIP archive"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"BZh", "a bzip2 archive"),
    (0, b"\xfd7zXZ\x00", "an xz archive"),
    (0, b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!\x1a\x07", "a RAR archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"MZ", "a Windows program"),
    (0, b"\x7fELF", "a Linux program or library"),
    (0, b"\xcf\xfa\xed\xfe", "a macOS program or library"),
    (0, b"\xca\xfe\xba\xbe", "a macOS program, or a Java class"),
    (0, b"SQLite format 3\x00", "an SQLite database"),
    (0, b"PAR1", "a Parquet table"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (0, b"MThd", "a MIDI file, which has notes and no audio"),
    (0, b"8BPS", "a Photoshop image"),
    (0, b"gimp xcf", "a GIMP image"),
    (4, b"ftypcrx ", "a raw image (CR3)"),
    (0, (b"\x00\x00\x00\x0cJXL ", b"\xff\x0a"), "a JPEG XL image"),
    (0, b"\x00\x00\x00\x0cjP  ", "a JPEG 2000 image"),
    (0, b"\x00\x00\x01\x00", "an icon"),
    (0, (b"wOFF", b"wOF2", b"OTTO", b"\x00\x01\x00\x00\x00"), "a font"),
)
UNSUPPORTED_TEXT = "text, which is read from .txt and .md files only"
MARKUP_TAGS = ((b"<svg", "an SVG drawing"), (b"<!doctype html", "an HTML page"), (b"<html", "an HTML page"))


@dataclass(frozen=True)
class MediaInfo:
    """The modalities of a file, its size in pixels and its duration, as far as they apply."""

    modalities: tuple[Modality, ...]
    width: int = 0  # pixels of an image or of a video's frames
    height: int = 0
    duration: float = 0.0  # seconds of a video or of audio
    text: str = ""  # content of a text file


def _validate_info(reply: Any, arguments: Mapping[str, Any]) -> MediaInfo:
    if not isinstance(reply, dict) or reply.keys() != {field.name for field in fields(MediaInfo)}:
        raise ValueError("no contents")
    modalities = reply["modalities"]
    if modalities not in (["image"], ["audio"], ["text"], ["image", "audio"]):
        raise ValueError("no contents")
    sizes = (sandbox.validate_seconds(reply[name], arguments) for name in ("width", "height", "duration"))
    width, height, duration = sizes
    content = sandbox.validate_text(reply["text"], arguments)
    return MediaInfo(tuple(modalities), int(width), int(height), duration, content)


@sandbox.decoder(_validate_info)
def inspect_file(path: Path, expected_modalities: Sequence[Modality]) -> MediaInfo:
    """Return the MediaInfo of a file, from the header if possible. `expected_modalities` are those of the extension."""
    limits.check_file(path, "uploaded")
    try:
        return _read_headers(path, expected_modalities)
    except MediaError as error:
        format_name = detect_unsupported_format(path)
        # If a text has the extension of another format, the error of the first attempt is more precise.
        if format_name is None or (format_name == UNSUPPORTED_TEXT and expected_modalities):
            raise
        raise MediaError(f"{path}: is {format_name}; give {SUPPORTED_FORMATS}") from error


def _read_headers(path: Path, expected_modalities: Sequence[Modality]) -> MediaInfo:
    size = image.read_size(path)
    if size is not None:
        return MediaInfo(("image",), *size)
    if "text" in expected_modalities:  # text has no signature
        return MediaInfo(("text",), text=text.read(path))
    info = _read_video_info(path, has_video_extension=len(expected_modalities) > 1)
    if info is not None:
        modalities: tuple[Modality, ...] = ("image", "audio") if info.has_audio else ("image",)
        return MediaInfo(modalities, info.width, info.height, info.duration)
    try:
        return MediaInfo(("audio",), duration=audio.read_duration(path))
    except MediaError as error:
        if expected_modalities:
            raise
        raise MediaError(f"{path}: unknown format; give {SUPPORTED_FORMATS}") from error


def _read_video_info(path: Path, has_video_extension: bool) -> video.VideoInfo | None:
    """Return the properties of a video; None if the container has no video stream, only audio."""
    if not has_video_extension and not video.is_video(path):
        return None
    with open_container(path, "video") as file:
        if select_stream(file, "video") is None:
            return None
    return video.read_info(path)


def detect_unsupported_format(path: Path) -> str | None:
    """Return the name of an unsupported format, recognised by its signature; None if no signature matches.

    Call this only for files that could not be read: a text may start with any signature.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise MediaError(f"{path}: cannot be read ({error.strerror})") from error
    for offset, signatures, name in SIGNATURES:
        if head.startswith(signatures, offset):
            return name
    tag_name = next((name for tag, name in MARKUP_TAGS if tag in head.lower()), UNSUPPORTED_TEXT)
    return tag_name if _is_text(head) else None


def _is_text(head: bytes) -> bool:
    """Return whether the bytes are the beginning of a UTF-8 text; the last character may be incomplete."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        return False
    return bool(text) and not any(c < " " and c not in "\t\n\r\f" for c in text)
