"""Decode every file of a manifest, to find those that cannot be used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from triptych.contracts import Source
from triptych.data.loader import source_of
from triptych.data.manifest import Manifest, Row, files_of
from triptych.data.problems import Problem, shown
from triptych.errors import MediaError
from triptych.media import audio, image

RATE = 16_000  # samples a second: decoding costs the same at any rate


def decode_files(manifest: Manifest, advance: Callable[[int], None] | None = None) -> Manifest:
    """The same manifest without the rows that have a file which cannot be decoded; each is an error of its own.

    Each file is decoded once, as training would: the whole sound or the given moment of it, the whole picture, and of a
    film its sound and the frame in the middle. `advance` is told of each of them.
    """
    rows_of: dict[Source, list[tuple[Row, str]]] = {}
    for row in manifest.rows:
        for column, source in _sources(row):
            rows_of.setdefault(source, []).append((row, column))
    reasons: dict[tuple[Row, str], list[str]] = {}
    for source, reason in _decode_all(rows_of):
        if reason is not None:
            for place in rows_of[source]:
                reasons.setdefault(place, []).append(reason)
        if advance:
            advance(1)
    problems = [_problem(row, column, found) for (row, column), found in reasons.items()]
    unusable = {problem.row for problem in problems if problem.severity == "error"}
    rows = tuple(row for row in manifest.rows if row.number not in unusable)
    every = sorted([*manifest.problems, *problems], key=lambda problem: problem.row or 0)
    return replace(manifest, rows=rows, problems=tuple(every))


def count_decodings(manifest: Manifest) -> int:
    """How many times `decode_files` advances."""
    return len({source for row in manifest.rows for _, source in _sources(row)})


def _sources(row: Row) -> Iterator[tuple[str, Source]]:
    for column, path in files_of(row).items():
        for modality in ("audio", "image"):
            source = source_of(row, modality) if modality in row.modalities else None
            if source is not None and source.content == path:
                yield column, source


def _decode_all(sources: Iterable[Source]) -> Iterator[tuple[Source, str | None]]:
    """Each source with the reason why it cannot be decoded, or None, in order."""
    sources = list(sources)
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        yield from zip(sources, pool.map(_decode, sources), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)  # what is waiting is dropped when the user interrupts


def _decode(source: Source) -> str | None:
    path = Path(source.content)
    try:
        if source.modality == "audio":
            audio.read(path, RATE, source.start, source.end)
        else:
            image.load(path, at=image.moment(source))
    except MediaError as error:
        return str(error).removeprefix(f"{path}: ")
    return None


def _problem(row: Row, column: str, reasons: list[str]) -> Problem:
    name = shown(files_of(row)[column].name)
    message = f"{name}: {shown('; '.join(dict.fromkeys(reasons)), 300)}"
    # A film is a sound and a picture: with one of them the row can still be used for the other.
    if len(reasons) < sum(own == column for own, _ in _sources(row)):
        return Problem("warning", "film decodes in part", row.number, column, message)
    return Problem("error", "undecodable file", row.number, column, message)
