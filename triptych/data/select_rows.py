"""Select the rows of a manifest, or of Python data, on which a space is evaluated."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

from triptych.data import manifest
from triptych.data.cache import TABLES_FOLDER, Cache
from triptych.data.manifest import Row
from triptych.data.materialise import materialise
from triptych.data.tables_in_memory import DataLike, is_manifest_path
from triptych.progress import notify


def select_rows(
    data: DataLike,
    split: str | None = None,
    test_split: str = "test",
    *,
    training_hashes: Collection[str] = (),
    allow_outside: bool = False,
    cache: Cache | None = None,
    show_progress: bool = True,
) -> Sequence[Row]:
    """Return the rows of one split. Media in memory are written to the cache.

    Args:
        data: The path of a manifest, Python data, or a list of rows of a manifest.
        split: The split; "all" for every row. Default: the test split if the data has splits. Otherwise, every row; but
            if the data is the table on which the space was trained, the rows that training held out as "test".
        test_split: The name of the test split.
        training_hashes: Hashes of the manifests on which the space was trained.
        allow_outside: Whether a manifest may list files outside its folder.
        cache: The cache; the user's cache by default.
        show_progress: Whether to print which rows are used.

    Raises:
        ManifestError: The data is invalid, or has no such split.
    """
    if isinstance(data, Sequence) and len(data) and all(isinstance(row, Row) for row in data):
        rows = cast(Sequence[Row], data)
        return [row for row in rows if split in (None, "all", row.split)]
    split_note = ""
    if is_manifest_path(data):
        table = manifest.read(str(data), allow_outside)
        has_splits = bool(table.counts.splits)
    else:
        written = materialise(data, (cache or Cache.default()).folder / TABLES_FOLDER, "", show_progress=show_progress)
        table, split_note = manifest.read(written.path, allow_outside=True), written.split_note
        has_splits = not written.has_assigned_splits or written.manifest_hash in training_hashes
    counts = table.counts
    if counts.unusable:
        notify(f"{counts.unusable} of {counts.rows + counts.unusable} rows of the data are unusable", show_progress)
    if split is None and not has_splits:
        notify(f'the data has no splits; using all {counts.rows} rows, as with split="all"', show_progress)
    elif split_note and split != "all":
        notify(split_note, show_progress)
    return table.split(split or (test_split if has_splits else "all")).rows
