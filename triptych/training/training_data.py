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
from triptych.media.audio import read_duration, sliding_windows
from triptych.progress import notify
from triptych.recipe import Recipe


@dataclass(frozen=True)
class TrainingData:
    """The rows of a run, what could not be used, and the manifests with their hashes as they are."""

    train: Sequence[Row]
    valid: Sequence[Row]
    row_errors: Sequence[str]
    manifest_hashes: dict[str, str]  # SHA-256 of each manifest, by its name

    @property
    def data_hash(self) -> str:
        """One hash of all manifests."""
        first, *others = self.manifest_hashes.values()
        return hashlib.sha256("".join([first, *others]).encode()).hexdigest() if others else first


def load_training_data(recipe: Recipe, show_progress: bool) -> TrainingData:
    """The rows of all of a recipe's manifests."""
    paths = [Path(path) for path in (recipe.data.manifest, *recipe.data.extra_manifests) if path]
    if not paths:
        raise TrainingError("the recipe names no manifest; add data.manifest, or give --data MANIFEST")
    tables = [manifest.read(path, recipe.data.allow_outside) for path in paths]
    train, valid, row_errors = list[Row](), list[Row](), list[str]()
    for i, table in enumerate(tables):
        # Groups of different manifests may have the same name, and have nothing to do with each other.
        group_prefix = f"{i} " if i else ""
        train += [
            replace(row, group=group_prefix + row.group) for row in _select_training_rows(table, recipe, show_progress)
        ]
        if recipe.data.valid_split in table.counts.splits and recipe.data.valid_split != recipe.data.train_split:
            valid += [replace(row, group=group_prefix + row.group) for row in table.split(recipe.data.valid_split).rows]
        row_errors += map(str, table.errors)
    manifest_hashes: dict[str, str] = {}
    for i, table in enumerate(tables):
        # Only the name: a run may be shown to others, and where its files lay is nobody's business.
        name = f"{table.path.name} ({i + 1})" if table.path.name in manifest_hashes else table.path.name
        manifest_hashes[name] = hashlib.sha256(table.path.read_bytes()).hexdigest()
    return TrainingData(train, valid, row_errors, manifest_hashes)


def split_into_windows(rows: Sequence[Row], window_seconds: float, hop_seconds: float) -> list[Row]:
    """Rows whose sound or film lasts longer than `seconds` as one row a window, of one group; others as they are."""
    window_rows: list[Row] = []
    for row in rows:
        path = row.audio or row.video
        try:
            media_seconds = read_duration(path) if path else 0.0
        except MediaError:
            media_seconds = 0.0  # reading it will say what is wrong, once
        start, end = row.start or 0.0, min(row.end or media_seconds, media_seconds)
        if end - start <= window_seconds:
            window_rows.append(row)
            continue
        for index, (window_start, window_end) in enumerate(
            sliding_windows(end - start, window_seconds, hop_seconds or window_seconds)
        ):
            window_rows.append(replace(row, id=f"{row.id} {index}", start=start + window_start, end=start + window_end))
    return window_rows


def _select_training_rows(table: manifest.Manifest, recipe: Recipe, show_progress: bool) -> Sequence[Row]:
    """The rows of the training split, or all where no row names a split; what is left out is said."""
    counts = table.counts
    if counts.unusable:
        unusable = f"{counts.unusable} of {counts.rows + counts.unusable} rows"
        message = f"{unusable} cannot be used; `triptych validate {shlex.quote(str(table.path))}` says why"
        if not table.rows:
            raise TrainingError(message)
        notify(message, show_progress)
    if counts.splits:
        return table.split(recipe.data.train_split).rows
    notify(f"{table.path}: no row names a split; all {counts.rows} are used to train", show_progress)
    return table.rows
