"""Decode every file of a manifest to find damaged files."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

from triptych.data.loader import open_thread_pool, source_of
from triptych.data.manifest import Manifest, Row, files_of
from triptych.data.manifest_problems import ManifestProblem, to_printable
from triptych.data.row_parser import MediaType
from triptych.errors import MediaError
from triptych.interfaces import Source
from triptych.media import audio, image

SAMPLE_RATE = 16_000  # in Hz


def decode_files(manifest: Manifest, advance: Callable[[int], None] | None = None) -> Manifest:
    """Return the manifest without the rows whose files cannot be decoded, and add an error for each of these rows.

    Each source is decoded once, as in training: the image, the audio (or its segment), and the audio and the middle
    frame of a video. `advance(1)` is called after each source.
    """
    rows_of: dict[Source, list[tuple[Row, MediaType]]] = {}
    for row in manifest.rows:
        for column, source in _iter_sources(row):
            rows_of.setdefault(source, []).append((row, column))
    reasons: dict[tuple[Row, MediaType], list[str]] = {}
    with open_thread_pool(os.cpu_count() or 1) as pool:
        for users, reason in zip(rows_of.values(), pool.map(_find_decoding_error, rows_of), strict=True):
            if reason is not None:
                for row_column in users:
                    reasons.setdefault(row_column, []).append(reason)
            if advance:
                advance(1)
    problems = [_make_problem(row, column, row_reasons) for (row, column), row_reasons in reasons.items()]
    unusable = {problem.row for problem in problems if problem.severity == "error"}
    rows = tuple(row for row in manifest.rows if row.number not in unusable)
    all_problems = sorted([*manifest.problems, *problems], key=lambda problem: problem.row or 0)
    return replace(manifest, rows=rows, problems=tuple(all_problems))


def count_decodings(manifest: Manifest) -> int:
    """Return the number of sources that `decode_files` decodes."""
    return len({source for row in manifest.rows for _, source in _iter_sources(row)})


def _iter_sources(row: Row) -> Iterator[tuple[MediaType, Source]]:
    for column, path in files_of(row).items():
        for modality in ("audio", "image"):
            if modality in row.modalities and (source := source_of(row, modality)).content == path:
                yield column, source


def _find_decoding_error(source: Source) -> str | None:
    """Return the reason why a source cannot be decoded, or None."""
    path = source.path
    try:
        if source.modality == "audio":
            audio.read(path, SAMPLE_RATE, source.start, source.end)
        else:
            image.load(path, time=image.frame_time(source))
    except MediaError as error:
        return str(error).removeprefix(f"{path}: ")
    return None


def _make_problem(row: Row, column: MediaType, reasons: list[str]) -> ManifestProblem:
    name = to_printable(files_of(row)[column].name)
    message = f"{name}: {to_printable('; '.join(dict.fromkeys(reasons)), 300)}"
    # A video has audio and frames: if only one of them is damaged, the row is still usable.
    if len(reasons) < sum(source_column == column for source_column, _ in _iter_sources(row)):
        return ManifestProblem("warning", "partly undecodable video", row.number, column, message)
    return ManifestProblem("error", "undecodable file", row.number, column, message)
