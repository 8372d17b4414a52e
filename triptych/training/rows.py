"""Which rows a recipe learns from, and by which rows its best epoch is chosen."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from triptych.data import manifest
from triptych.data.manifest import Row
from triptych.errors import MediaError, TrainingError
from triptych.media.audio import duration, windows
from triptych.progress import tell
from triptych.recipe import Recipe


@dataclass(frozen=True)
class Rows:
    """The rows of a run, what could not be used, and the manifests with their hashes as they are."""

    train: Sequence[Row]
    valid: Sequence[Row]
    unusable: Sequence[str]
    digests: dict[str, str]  # SHA-256 of each manifest, by its name

    @property
    def hash(self) -> str:
        """One hash of all manifests."""
        first, *others = self.digests.values()
        return hashlib.sha256("".join([first, *others]).encode()).hexdigest() if others else first


def learnable(recipe: Recipe, show: bool) -> Rows:
    """The rows of all of a recipe's manifests."""
    paths = [Path(path) for path in (recipe.data.manifest, *recipe.data.also) if path]
    if not paths:
        raise TrainingError("the recipe names no manifest; add data.manifest, or give --data MANIFEST")
    tables = [manifest.read(path, recipe.data.allow_outside) for path in paths]
    train, valid, unusable = list[Row](), list[Row](), list[str]()
    for i, table in enumerate(tables):
        # Groups of different manifests may have the same name, and have nothing to do with each other.
        mark = f"{i} " if i else ""
        train += [replace(row, group=mark + row.group) for row in _of_split(table, recipe, show)]
        if recipe.data.valid in table.counts.splits and recipe.data.valid != recipe.data.train:
            valid += [replace(row, group=mark + row.group) for row in table.split(recipe.data.valid).rows]
        unusable += map(str, table.errors)
    digests: dict[str, str] = {}
    for i, table in enumerate(tables):
        # Only the name: a run may be shown to others, and where its files lay is nobody's business.
        name = f"{table.path.name} ({i + 1})" if table.path.name in digests else table.path.name
        digests[name] = hashlib.sha256(table.path.read_bytes()).hexdigest()
    return Rows(train, valid, unusable, digests)


def windowed(rows: Sequence[Row], seconds: float, hop: float) -> list[Row]:
    """Rows whose sound or film lasts longer than `seconds` as one row a window, of one group; others as they are."""
    found: list[Row] = []
    for row in rows:
        path = row.audio or row.video
        try:
            length = duration(path) if path else 0.0
        except MediaError:
            length = 0.0  # reading it will say what is wrong, once
        start, end = row.start or 0.0, min(row.end or length, length)
        if end - start <= seconds:
            found.append(row)
            continue
        for number, (first, last) in enumerate(windows(end - start, seconds, hop or seconds)):
            found.append(replace(row, id=f"{row.id} {number}", start=start + first, end=start + last))
    return found


def _of_split(table: manifest.Manifest, recipe: Recipe, show: bool) -> Sequence[Row]:
    """The rows of the training split, or all where no row names a split; what is left out is said."""
    counts = table.counts
    if counts.unusable:
        rows = f"{counts.unusable} of {counts.rows + counts.unusable} rows"
        message = f"{rows} cannot be used; `triptych check {shlex.quote(str(table.path))}` says why"
        if not table.rows:
            raise TrainingError(message)
        tell(message, show)
    if counts.splits:
        return table.split(recipe.data.train).rows
    tell(f"{table.path}: no row names a split; all {counts.rows} are used to train", show)
    return table.rows
