"""Decode audio, image, video and text files within limits. This module maps file extensions to modalities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triptych.interfaces import Modality

# The extension decides whether a file of a folder is tried. The bytes of the file decide how it is decoded.
AUDIO_EXTENSIONS = frozenset(
    {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aiff", ".aif", ".aifc", ".au", ".caf", ".w64"}
    | {".m4a", ".m4b", ".aac", ".mka", ".weba", ".wma", ".ac3", ".amr", ".mp2", ".wv", ".tta", ".ape"}
)
IMAGE_EXTENSIONS = frozenset(
    {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".hif", ".avif"}
)
TEXT_EXTENSIONS = frozenset({".txt", ".md"})
VIDEO_EXTENSIONS = frozenset(
    {".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v", ".mpg", ".mpeg", ".m2ts", ".3gp", ".wmv", ".flv", ".ogv"}
)


def modalities_of(path: Path) -> tuple[Modality, ...]:
    """Return all modalities that a file's extension implies: image and audio for a video, () if it is unknown."""
    extension = path.suffix.lower()
    if extension in VIDEO_EXTENSIONS:
        return ("image", "audio")
    if extension in AUDIO_EXTENSIONS:
        return ("audio",)
    if extension in IMAGE_EXTENSIONS:
        return ("image",)
    return ("text",) if extension in TEXT_EXTENSIONS else ()
