"""Files to arrays: what a user has on disk, decoded within limits. This page knows file endings and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triptych.interfaces import Modality

# Endings choose which files of a folder are tried; how a file is decoded is decided by what is in it.
AUDIO_EXTENSIONS = frozenset(
    {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aiff", ".aif", ".aifc", ".au", ".caf", ".w64"}
    | {".m4a", ".m4b", ".aac", ".mka", ".weba", ".wma", ".ac3", ".amr", ".mp2", ".wv", ".tta", ".ape"}
)
IMAGE_EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
TEXT_EXTENSIONS = frozenset({".txt", ".md"})
VIDEO_EXTENSIONS = frozenset(
    {".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v", ".mpg", ".mpeg", ".m2ts", ".3gp", ".wmv", ".flv", ".ogv"}
)


def modality_of(path: Path) -> Modality | None:
    """What a file is by its ending; None where we cannot read such files, and for films, which are two things."""
    modalities = modalities_of(path)
    return modalities[0] if len(modalities) == 1 else None


def modalities_of(path: Path) -> tuple[Modality, ...]:
    """Everything a file can be embedded as, by its ending: a film as image and audio, a file we cannot read as none."""
    extension = path.suffix.lower()
    if extension in VIDEO_EXTENSIONS:
        return ("image", "audio")
    if extension in AUDIO_EXTENSIONS:
        return ("audio",)
    if extension in IMAGE_EXTENSIONS:
        return ("image",)
    return ("text",) if extension in TEXT_EXTENSIONS else ()
