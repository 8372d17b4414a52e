"""The manifest: a table whose rows say which sound, picture, film and words belong together.

`read` takes it apart and collects everything that is wrong with it; `require` insists that nothing is.
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

from triptych.data.columns import KNOWN, RowReader, is_known, meant
from triptych.data.folder import Folder
from triptych.data.problems import Problem, group_by_kind, shown
from triptych.data.tables import SUFFIXES, Table, read_table
from triptych.errors import ManifestError, unknown

if TYPE_CHECKING:  # contracts loads torch, which reading a table should not wait for
    from triptych.contracts import Modality

FOLDER_NAMES = tuple(f"{stem}{suffix}" for stem in ("manifest", "metadata") for suffix in SUFFIXES)
MANY_ROWS = 20  # with one caption, for a warning …
MANY_SHARE = 0.1  # … which are also this share of all rows that have captions
FEW_CAPTIONS = 0.2  # different sets of captions for each row, for a warning
CLOTHO_SPLITS = {"development": "train", "validation": "valid", "evaluation": "test"}


@dataclass(frozen=True)
class Row:
    """Things that belong together. Files exist; texts are not empty."""

    id: str
    audio: Path | None
    image: Path | None
    video: Path | None
    texts: tuple[str, ...]
    group: str  # rows of one group are right answers to each other
    split: str | None
    label: str | None
    start: float | None  # seconds: the moment of the sound or film that is meant
    end: float | None
    number: int  # as a person counts: spreadsheet row of a CSV (the header is row 1), line of a JSONL file
    others: tuple[tuple[str, str], ...] = ()  # columns that mean nothing to us: name and value

    @property
    def columns(self) -> dict[str, str]:
        """What the table says of the row beside its files, captions and moment, by name of the column."""
        known = {"id": self.id, "group": self.group, "split": self.split, "label": self.label, **dict(self.others)}
        return {name: value for name, value in known.items() if value is not None}

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """What the row can be embedded as; a film is both sound and pictures."""
        found: list[Modality] = []
        if self.audio or self.video:
            found.append("audio")
        if self.image or self.video:
            found.append("image")
        if self.texts:
            found.append("text")
        return tuple(found)


@dataclass(frozen=True)
class Counts:
    """How much there is of everything, in the usable rows; `unusable` counts the rows that errors left out."""

    rows: int
    unusable: int
    modalities: dict[str, int]  # rows that have it; "video" counts the films, which are in "audio" and "image" too
    pairs: dict[str, int]  # rows that have both, such as "audio-text"
    captions: int
    different_captions: int
    files: int  # different ones
    groups: int
    splits: dict[str, int]
    labels: dict[str, int]


@dataclass(frozen=True)
class Manifest:
    """The usable rows of a table, and everything that is wrong with it."""

    path: Path
    rows: tuple[Row, ...]
    problems: tuple[Problem, ...]

    def split(self, name: str) -> Manifest:
        """Only the rows of one split; the problems stay, as a row with an error may have belonged to it."""
        rows = tuple(row for row in self.rows if row.split == name)
        if not rows and not self.counts.splits:
            raise ManifestError(f"{self.path}: no row names a split; add a split column, or use --split all")
        if not rows:
            raise ManifestError(f"{self.path}: {unknown('split', name, self.counts.splits)}")
        return replace(self, rows=rows)

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that make a row unusable."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The problems somebody should look at."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    @cached_property
    def counts(self) -> Counts:
        """How much there is of everything."""
        modalities: Counter[str] = Counter({"audio": 0, "image": 0, "video": 0, "text": 0})
        pairs: Counter[str] = Counter({"audio-image": 0, "audio-text": 0, "image-text": 0})
        for row in self.rows:
            modalities.update(row.modalities)
            modalities["video"] += row.video is not None
            pairs.update("-".join(pair) for pair in combinations(row.modalities, 2))
        return Counts(
            rows=len(self.rows),
            unusable=len({problem.row for problem in self.errors}),
            modalities=dict(modalities),
            pairs=dict(pairs),
            captions=sum(len(row.texts) for row in self.rows),
            different_captions=len({text for row in self.rows for text in row.texts}),
            files=len({path for row in self.rows for path in files_of(row).values()}),
            groups=len({row.group for row in self.rows}),
            splits=dict(Counter(row.split for row in self.rows if row.split is not None)),
            labels=dict(Counter(row.label for row in self.rows if row.label is not None)),
        )


def files_of(row: Row) -> dict[str, Path]:
    """The files of a row by their columns."""
    columns = {"audio": row.audio, "image": row.image, "video": row.video}
    return {column: path for column, path in columns.items() if path is not None}


def read(path: str | Path, allow_outside: bool = False) -> Manifest:
    """Read and diagnose a manifest, or the one in a folder. ManifestError only where no table can be read at all."""
    file = _find(Path(path))
    table = read_table(file, wanted=is_known)
    if table.columns and not any(is_known(name) for name in table.columns):
        found = ", ".join(shown(name, 30) for name in table.columns[:8])
        raise ManifestError(
            f"{file}: no column is known (found: {found}); known, in small letters: {', '.join(KNOWN)}. "
            "Is the header row missing?"
        )
    if not table.rows and not table.problems:
        raise ManifestError(f"{file}: the table has no rows")

    clotho_split, media = _clotho(file, table)
    reader = RowReader(table.columns, Folder(file.parent, media, allow_outside), table.only_strings)
    problems = [*table.problems, *_unknown_columns(table.columns)]
    rows: list[Row] = []
    strange = [name for name in table.columns if not is_known(name)]
    for number, cells in table.rows:
        content = reader.read(number, cells)
        if content is not None:
            own = f"row-{number}"
            rows.append(
                Row(
                    id=content.words.get("id") or own,
                    group=content.words.get("group") or f"({own})",  # in brackets: a user's own group may be "row-5"
                    split=content.words.get("split") or clotho_split,
                    label=content.words.get("label"),
                    texts=content.texts,
                    start=content.start,
                    end=content.end,
                    number=number,
                    others=tuple((name, said) for name in strange if (said := _plain(cells.get(name)))),
                    **content.files,
                )
            )
    rows, repeated = _distinct_ids(rows)
    problems += [*reader.problems, *repeated, *_same_files(rows), *_split_groups(rows), *_lonely(rows)]
    problems += _shared_captions(rows)
    problems.sort(key=lambda problem: problem.row or 0)
    return Manifest(file, tuple(rows), tuple(problems))


def require(manifest: Manifest, first: int = 5) -> Manifest:
    """The same manifest, if every row of it can be used; else a ManifestError with the first errors."""
    errors = manifest.errors
    if not errors:
        return manifest
    lines = [f"  {problem}" for problem in errors[:first]]
    if len(errors) > first:
        lines.append(f"  … and {len(errors) - first:,} more")
    total = f"{len(errors):,} error{'s' if len(errors) > 1 else ''}"
    listed = "\n".join(lines)
    raise ManifestError(
        f"{manifest.path}: {total}\n{listed}\nrun `triptych check {shlex.quote(str(manifest.path))}` for all"
    )


def summary(manifest: Manifest, first: int = 5) -> dict[str, Any]:
    """The whole diagnosis as plain data: counts, and the problems by kind with the first few of each."""
    return {
        "path": str(manifest.path),
        "counts": asdict(manifest.counts),
        "errors": len(manifest.errors),
        "warnings": len(manifest.warnings),
        "problems": group_by_kind(manifest.problems, first),
    }


def _find(path: Path) -> Path:
    try:
        if path.is_dir():
            found = next((path / name for name in FOLDER_NAMES if (path / name).is_file()), None)
            if found is None:
                raise ManifestError(f"{path}: no manifest in this folder; looked for {', '.join(FOLDER_NAMES)}")
            return found
        exists = path.is_file()
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from error
    if not exists:
        raise ManifestError(f"{path}: no such file")
    return path


def _clotho(file: Path, table: Table) -> tuple[str | None, Path]:
    """Split and audio folder of a table in Clotho's style, which names neither but has them in its file name."""
    here = file.parent
    part = next((part for part in CLOTHO_SPLITS if part in file.stem.lower()), None)
    if part is None or not {"file_name", "caption_1"} <= set(table.columns):
        return None, here
    # The first rows decide; more than one, as a file may be missing.
    names = [str(cells.get("file_name")) for _, cells in table.rows[:20]]
    folders = [here, here / part, here / f"clotho_audio_{part}", here / f"clotho_audio_{part}" / part]
    readable = [folder for folder in folders if folder.is_dir() and os.access(folder, os.R_OK)]
    there = {folder: {entry.name for entry in folder.iterdir()} for folder in readable}
    best = max(there, key=lambda folder: sum(name in there[folder] for name in names), default=here)
    return CLOTHO_SPLITS[part], best


def _unknown_columns(columns: Iterable[str]) -> list[Problem]:
    return [Problem("warning", "unknown column", None, name, meant(name)) for name in columns if not is_known(name)]


def _plain(cell: Any) -> str | None:
    """What a cell says, where it is a word or a number; lists and tables say nothing here."""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)  # pandas writes whole numbers so, where one is missing
    return shown(str(cell).strip()) or None if isinstance(cell, str | int | float) else None


def _distinct_ids(rows: list[Row]) -> tuple[list[Row], list[Problem]]:
    """An id names one row: later rows with the same one are errors."""
    first: dict[str, Row] = {}
    problems: list[Problem] = []
    for row in rows:
        earlier = first.setdefault(row.id, row)
        if earlier is not row:
            message = f"{shown(row.id)} is the id of row {earlier.number} too; rows that belong together share a group"
            problems.append(Problem("error", "duplicate id", row.number, "id", message))
    return list(first.values()), problems


def _same_files(rows: list[Row]) -> list[Problem]:
    """Rows with the same file (and moment) are right answers to each other, so they should say so by their group."""
    first: dict[tuple[Path, float | None, float | None], Row] = {}
    problems: list[Problem] = []
    for row in rows:
        for column, path in files_of(row).items():
            earlier = first.setdefault((path, row.start, row.end), row)
            if earlier.group != row.group:
                message = f"the same file as in row {earlier.number}: {shown(path.name)}; give both rows one group"
                problems.append(Problem("warning", "same file", row.number, column, message))
    return problems


def _split_groups(rows: list[Row]) -> list[Problem]:
    first: dict[str, Row] = {}
    problems: list[Problem] = []
    for row in rows:
        if row.split is None:
            continue
        earlier = first.setdefault(row.group, row)
        if earlier.split != row.split:
            message = (
                f"group {shown(row.group)} is in split {shown(row.split)} here and in {shown(earlier.split)} in row "
                f"{earlier.number}: answers leak from one split to the other"
            )
            problems.append(Problem("warning", "group in two splits", row.number, "split", message))
    return problems


def _lonely(rows: list[Row]) -> list[Problem]:
    return [
        Problem("warning", "pairs with nothing", row.number, None, f"has only {row.modalities[0]}: pairs with nothing")
        for row in rows
        if len(row.modalities) == 1
    ]


def _shared_captions(rows: list[Row]) -> list[Problem]:
    """Captions that many rows share say too little: whoever learns from them cannot tell these rows apart."""
    worded = [row for row in rows if row.texts]
    if len(worded) < MANY_ROWS:
        return []
    rows_of = Counter(text for row in worded for text in set(row.texts))
    text, most = rows_of.most_common(1)[0]
    different = len({frozenset(row.texts) for row in worded})
    example = f"{shown(text, 60)!r} alone stands in {most:,} rows"
    problems: list[Problem] = []
    if different < FEW_CAPTIONS * len(worded):
        message = (
            f"{len(worded):,} rows have only {different:,} different captions ({example}): words cannot tell them apart"
        )
        problems.append(Problem("warning", "few captions", None, None, message))
    elif most >= max(MANY_ROWS, MANY_SHARE * len(worded)):
        message = f"{example} of {len(worded):,}: it cannot tell them apart"
        problems.append(Problem("warning", "shared caption", None, None, message))
    return problems
