"""Files to arrays: what a user has on disk, decoded within limits. This page knows file endings and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triptych.contracts import Modality

# Endings choose which files of a folder are tried; how a file is decoded is decided by what is in it.
AUDIO_ENDINGS = frozenset(
    {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aiff", ".aif", ".aifc", ".au", ".caf", ".w64"}
    | {".m4a", ".m4b", ".aac", ".mka", ".weba", ".wma", ".ac3", ".amr", ".mp2", ".wv", ".tta", ".ape"}
)
IMAGE_ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
TEXT_ENDINGS = frozenset({".txt", ".md"})
VIDEO_ENDINGS = frozenset(
    {".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v", ".mpg", ".mpeg", ".m2ts", ".3gp", ".wmv", ".flv", ".ogv"}
)


def modality_of(path: Path) -> Modality | None:
    """What a file is by its ending; None where we cannot read such files, and for films, which are two things."""
    found = modalities_of(path)
    return found[0] if len(found) == 1 else None


def modalities_of(path: Path) -> tuple[Modality, ...]:
    """Everything a file can be embedded as, by its ending: a film as image and audio, a file we cannot read as none."""
    ending = path.suffix.lower()
    if ending in VIDEO_ENDINGS:
        return ("image", "audio")
    if ending in AUDIO_ENDINGS:
        return ("audio",)
    if ending in IMAGE_ENDINGS:
        return ("image",)
    return ("text",) if ending in TEXT_ENDINGS else ()
