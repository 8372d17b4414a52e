"""The manifest: a table whose rows list the audio, image, video and captions of one item.

`read` parses a manifest and collects all problems. `require_valid` raises if there are errors.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.data.manifest_problems import ManifestProblem, group_by_category, to_printable
from triptych.data.row_parser import (
    KNOWN_COLUMNS,
    METADATA_COLUMNS,
    FileResolver,
    MediaType,
    RowParser,
    describe_unknown_column,
    is_known_column,
)
from triptych.data.tables import TABLE_EXTENSIONS, RawTable, read_table
from triptych.errors import ManifestError, describe_unknown

if TYPE_CHECKING:  # interfaces imports torch, which takes seconds
    from triptych.interfaces import Modality

MANIFEST_NAMES = tuple(f"{stem}{suffix}" for stem in ("manifest", "metadata") for suffix in TABLE_EXTENSIONS)
# Warn if one caption is in at least MIN_SHARED_ROWS rows and in MIN_SHARED_FRACTION of the captioned rows, or if the
# number of distinct caption sets is below MIN_UNIQUE_FRACTION of the number of captioned rows.
MIN_SHARED_ROWS, MIN_SHARED_FRACTION, MIN_UNIQUE_FRACTION = 20, 0.1, 0.2
CLOTHO_SPLITS = {"development": "train", "validation": "valid", "evaluation": "test"}


@dataclass(frozen=True)
class Row:
    """The files and captions of one item. The files exist; the captions are not empty."""

    id: str
    audio: Path | None
    image: Path | None
    video: Path | None
    texts: tuple[str, ...]
    group: str  # rows of one group match each other: they are positives
    split: str | None
    label: str | None
    start: float | None  # segment of the audio or video, in seconds
    end: float | None
    number: int  # spreadsheet row of a CSV file (the header is row 1), line of a JSONL file
    extra_columns: tuple[tuple[str, str], ...] = ()  # name and value of unknown columns

    @property
    def columns(self) -> dict[str, str]:
        """The row's metadata by column: everything but files, captions and segment."""
        values = {name: getattr(self, name) for name in METADATA_COLUMNS} | dict(self.extra_columns)
        return {name: value for name, value in values.items() if value is not None}

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """The modalities of the row; a video counts as both audio and image."""
        modalities: tuple[Modality, ...] = ("audio", "image", "text")
        contents = (self.audio or self.video, self.image or self.video, self.texts)
        return tuple(modality for modality, content in zip(modalities, contents, strict=True) if content)


@dataclass(frozen=True)
class ManifestCounts:
    """Statistics of the usable rows; `unusable` counts the rows with errors."""

    rows: int
    unusable: int
    modalities: dict[str, int]  # rows by modality; rows with a "video" count in "audio" and "image" too
    pairs: dict[str, int]  # rows by pair of modalities, such as "audio-text"
    captions: int
    unique_captions: int
    files: int  # unique files
    groups: int
    splits: dict[str, int]
    labels: dict[str, int]


@dataclass(frozen=True)
class Manifest:
    """The usable rows of a table, and all problems of the table."""

    path: Path
    rows: tuple[Row, ...]
    problems: tuple[ManifestProblem, ...]

    def split(self, name: str) -> Manifest:
        """Return the rows of one split (all rows for "all"), together with the problems of all splits."""
        if name == "all":
            return self
        rows = tuple(row for row in self.rows if row.split == name)
        if not rows and not self.counts.splits:
            raise ManifestError(f"{self.path}: no row has a split; add a split column, or use --split all")
        if not rows:
            raise ManifestError(f"{self.path}: {describe_unknown('split', name, self.counts.splits)}")
        return replace(self, rows=rows)

    @property
    def errors(self) -> tuple[ManifestProblem, ...]:
        """Problems that make a row unusable."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[ManifestProblem, ...]:
        """Problems that leave the row usable."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    @cached_property
    def counts(self) -> ManifestCounts:
        """Statistics of the usable rows."""
        modalities: Counter[str] = Counter({"audio": 0, "image": 0, "video": 0, "text": 0})
        pairs: Counter[str] = Counter({"audio-image": 0, "audio-text": 0, "image-text": 0})
        for row in self.rows:
            modalities.update(row.modalities)
            modalities["video"] += row.video is not None
            pairs.update("-".join(pair) for pair in combinations(row.modalities, 2))
        return ManifestCounts(
            rows=len(self.rows),
            unusable=len({problem.row for problem in self.errors}),
            modalities=dict(modalities),
            pairs=dict(pairs),
            captions=sum(len(row.texts) for row in self.rows),
            unique_captions=len({text for row in self.rows for text in row.texts}),
            files=len({path for row in self.rows for path in files_of(row).values()}),
            groups=len({row.group for row in self.rows}),
            splits=dict(Counter(row.split for row in self.rows if row.split is not None)),
            labels=dict(Counter(row.label for row in self.rows if row.label is not None)),
        )


def files_of(row: Row) -> dict[MediaType, Path]:
    """Return the files of a row by column."""
    columns: dict[MediaType, Path | None] = {"audio": row.audio, "image": row.image, "video": row.video}
    return {column: path for column, path in columns.items() if path is not None}


def read(path: str | Path, allow_outside: bool = False) -> Manifest:
    """Read and check a manifest file, or the manifest in a folder. Raise a ManifestError if no table can be read."""
    file = find_manifest_file(Path(path))
    table = read_table(file, is_wanted=is_known_column)
    if table.columns and not any(is_known_column(name) for name in table.columns):
        column_names = ", ".join(to_printable(name, 30) for name in table.columns[:8])
        raise ManifestError(
            f"{file}: no known column (found: {column_names}); known, in lower case: {', '.join(KNOWN_COLUMNS)}. "
            "Is the header row missing?"
        )
    if not table.rows and not table.problems:
        raise ManifestError(f"{file}: the table has no rows")

    clotho_split, media_root = _detect_clotho_layout(file, table)
    parser = RowParser(table.columns, FileResolver(file.parent, media_root, allow_outside), table.has_only_strings)
    problems = [*table.problems, *_check_unknown_columns(table.columns)]
    rows: list[Row] = []
    extra_columns = [name for name in table.columns if not is_known_column(name)]
    for number, cells in table.rows:
        parsed = parser.parse(number, cells)
        if parsed is not None:
            default_id = f"row-{number}"
            extras = ((name, _format_scalar(cells.get(name))) for name in extra_columns)
            rows.append(
                Row(
                    id=parsed.metadata.get("id") or default_id,
                    # The parentheses avoid a clash with a user's group, which may be called "row-5".
                    group=parsed.metadata.get("group") or f"({default_id})",
                    split=parsed.metadata.get("split") or clotho_split,
                    label=parsed.metadata.get("label"),
                    texts=parsed.texts,
                    start=parsed.start,
                    end=parsed.end,
                    number=number,
                    extra_columns=tuple((name, value) for name, value in extras if value),
                    **parsed.files,
                )
            )
    rows, id_problems = _drop_duplicate_ids(rows)
    problems += parser.problems + id_problems
    for check in (_check_shared_files, _check_groups_across_splits, _check_unpaired_rows, _check_shared_captions):
        problems += check(rows)
    problems.sort(key=lambda problem: problem.row or 0)
    return Manifest(file, tuple(rows), tuple(problems))


def require_valid(manifest: Manifest, max_errors: int = 5) -> Manifest:
    """Return the manifest if it has no errors; otherwise raise a ManifestError with the first `max_errors` errors."""
    errors = manifest.errors
    if not errors:
        return manifest
    lines = [f"{manifest.path}: {len(errors):,} error{'s' if len(errors) > 1 else ''}"]
    lines += [f"  {problem}" for problem in errors[:max_errors]]
    if len(errors) > max_errors:
        lines.append(f"  … and {len(errors) - max_errors:,} more")
    lines.append(f"run `triptych validate {shlex.quote(str(manifest.path))}` to list all errors")
    raise ManifestError("\n".join(lines))


def summarise(manifest: Manifest, max_examples: int = 5) -> dict[str, Any]:
    """Return counts and problems as JSON-serialisable data, with up to `max_examples` examples of each category."""
    return {
        "path": str(manifest.path),
        "counts": asdict(manifest.counts),
        "errors": len(manifest.errors),
        "warnings": len(manifest.warnings),
        "problems": group_by_category(manifest.problems, max_examples),
    }


def find_manifest_file(path: Path) -> Path:
    """Return a manifest file, or the manifest in a folder. Raise ManifestError if there is none."""
    try:
        if path.is_dir():
            file = next((path / name for name in MANIFEST_NAMES if (path / name).is_file()), None)
            if file is None:
                raise ManifestError(f"{path}: no manifest in this folder; looked for {', '.join(MANIFEST_NAMES)}")
            return file
        exists = path.is_file()
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from error
    if not exists:
        raise ManifestError(f"{path}: no such file")
    return path


def _detect_clotho_layout(file: Path, table: RawTable) -> tuple[str | None, Path]:
    """Return the split and the audio folder of a Clotho captions file, derived from the name of the file."""
    root = file.parent
    subset = next((subset for subset in CLOTHO_SPLITS if subset in file.stem.lower()), None)
    if subset is None or not {"file_name", "caption_1"} <= set(table.columns):
        return None, root
    # Several rows are tested, because some audio files may be missing.
    names = [str(cells.get("file_name")) for _, cells in table.rows[:20]]
    folders = [root, root / subset, root / f"clotho_audio_{subset}", root / f"clotho_audio_{subset}" / subset]
    readable = [folder for folder in folders if folder.is_dir() and os.access(folder, os.R_OK)]
    names_by_folder = {folder: {entry.name for entry in folder.iterdir()} for folder in readable}
    counts = {folder: sum(name in existing for name in names) for folder, existing in names_by_folder.items()}
    return CLOTHO_SPLITS[subset], max(counts, key=lambda folder: counts[folder], default=root)


def _check_unknown_columns(columns: Iterable[str]) -> list[ManifestProblem]:
    return [
        ManifestProblem("warning", "unknown column", None, name, describe_unknown_column(name))
        for name in columns
        if not is_known_column(name)
    ]


def _format_scalar(cell: Any) -> str | None:
    """Return a string or number as text; None for lists and dicts."""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)  # pandas writes integers as floats if a column has missing values
    return to_printable(str(cell).strip()) or None if isinstance(cell, str | int | float) else None


def _drop_duplicate_ids(rows: list[Row]) -> tuple[list[Row], list[ManifestProblem]]:
    """Drop rows that repeat the id of an earlier row, and return an error for each dropped row."""
    first: dict[str, Row] = {}
    problems: list[ManifestProblem] = []
    for row in rows:
        earlier = first.setdefault(row.id, row)
        if earlier is not row:
            message = f"{to_printable(row.id)} is the id of row {earlier.number} too; to link rows, use the same group"
            problems.append(ManifestProblem("error", "duplicate id", row.number, "id", message))
    return list(first.values()), problems


def _check_shared_files(rows: list[Row]) -> list[ManifestProblem]:
    """Warn of rows with the same file and segment but different groups: such rows should share a group."""
    first: dict[tuple[Path, float | None, float | None], Row] = {}
    problems: list[ManifestProblem] = []
    for row in rows:
        for column, path in files_of(row).items():
            earlier = first.setdefault((path, row.start, row.end), row)
            if earlier.group != row.group:
                message = f"the same file as in row {earlier.number}: {to_printable(path.name)}; use the same group"
                problems.append(ManifestProblem("warning", "same file", row.number, column, message))
    return problems


def _check_groups_across_splits(rows: list[Row]) -> list[ManifestProblem]:
    first: dict[str, Row] = {}
    problems: list[ManifestProblem] = []
    for row in rows:
        if row.split is None:
            continue
        earlier = first.setdefault(row.group, row)
        if earlier.split != row.split:
            message = (
                f"group {to_printable(row.group)} is in split {to_printable(row.split)} here and in "
                f"{to_printable(earlier.split)} in row {earlier.number}: data leaks between the splits"
            )
            problems.append(ManifestProblem("warning", "group in two splits", row.number, "split", message))
    return problems


def _check_unpaired_rows(rows: list[Row]) -> list[ManifestProblem]:
    return [
        ManifestProblem("warning", "unpaired row", row.number, None, f"has {row.modalities[0]} only, so no pair")
        for row in rows
        if len(row.modalities) == 1
    ]


def _check_shared_captions(rows: list[Row]) -> list[ManifestProblem]:
    """Warn of captions that many rows share, because these captions do not distinguish the rows."""
    captioned_rows = [row for row in rows if row.texts]
    if len(captioned_rows) < MIN_SHARED_ROWS:
        return []
    row_counts = Counter(text for row in captioned_rows for text in set(row.texts))
    text, max_rows = row_counts.most_common(1)[0]
    unique_count = len({frozenset(row.texts) for row in captioned_rows})
    total = f"{len(captioned_rows):,}"
    example = f"{to_printable(text, 60)!r} is in {max_rows:,} rows"
    problems: list[ManifestProblem] = []
    if unique_count < MIN_UNIQUE_FRACTION * len(captioned_rows):
        message = f"{total} rows have only {unique_count:,} distinct captions ({example}): too few to tell rows apart"
        problems.append(ManifestProblem("warning", "few captions", None, None, message))
    elif max_rows >= max(MIN_SHARED_ROWS, MIN_SHARED_FRACTION * len(captioned_rows)):
        message = f"{example} of {total}: this caption does not distinguish the rows"
        problems.append(ManifestProblem("warning", "shared caption", None, None, message))
    return problems
