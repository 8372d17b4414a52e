"""A study from end to end: read the data, fit, and write the page."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from triptych.contracts import Modality
from triptych.data.loader import sources_of
from triptych.errors import UsageError, unknown
from triptych.progress import progress
from triptych.studies import STUDIES, views
from triptych.studies.book import Book, write_page
from triptych.studies.lab import Lab, check_encoders

FROZEN: dict[Modality, str] = {"image": "efficientnet_lite0", "audio": "yamnet", "text": "minilm"}


@dataclass(frozen=True)
class Request:
    """What to study, on which rows, with which frozen encoders."""

    name: str
    manifest: Path
    rows: int = 0  # at most so many training rows; 0 = all
    allow_outside: bool = False
    encoders: Mapping[Modality, str] | None = None


def study(request: Request, folder: Path, command: str, restart: bool = False) -> Path:
    """Run a study into a folder, or go on with one that was interrupted; returns its page."""
    if request.name not in STUDIES:
        raise UsageError(unknown("study", request.name, STUDIES))
    asked = STUDIES[request.name]
    names = request.encoders or FROZEN
    check_encoders(names)
    numbers = folder / "numbers" / f"{request.name}.jsonl"
    if restart:
        numbers.unlink(missing_ok=True)
    about = {
        "data": hashlib.sha256(request.manifest.read_bytes()).hexdigest()[:16],
        "rows": request.rows,
        "encoders": dict(names),
    }
    Book(numbers, about)  # a folder with other numbers is refused before the features are read
    sources = views.frames_of if asked is views else sources_of
    lab = Lab.open(request.manifest, names, request.rows, request.allow_outside, sources)
    with progress(request.name, asked.cells()) as bar:
        found = asked.run(lab, Book(numbers, about, bar))
    return write_page(folder, request.name, asked.QUESTION, asked.HOW, command, found)
