"""Files to arrays: what a user has on disk, decoded within limits. This page knows file endings and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triptych.contracts import Modality

AUDIO_ENDINGS = frozenset({".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aiff", ".aif", ".au"})
IMAGE_ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
TEXT_ENDINGS = frozenset({".txt", ".md"})
VIDEO_ENDINGS = frozenset({".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v"})


def modality_of(path: Path) -> Modality | None:
    """What a file is by its ending; None where we cannot read such files."""
    ending = path.suffix.lower()
    if ending in AUDIO_ENDINGS:
        return "audio"
    if ending in IMAGE_ENDINGS:
        return "image"
    return "text" if ending in TEXT_ENDINGS else None
