"""Derive a manifest from another one: convert its rows to draft items, and write the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triptych.data.manifest import Manifest, Row
from triptych.data.row_parser import MediaType
from triptych.data.sources.draft import DraftItem, ManifestDraft
from triptych.data.sources.manifest_writer import (
    Origin,
    WrittenManifest,
    read_licence,
    resolve_output_path,
    write_manifest,
)
from triptych.errors import UsageError


def resolve_derived_path(output: Path, table: Manifest) -> Path:
    """Resolve the output path of a manifest derived from `table`. Raise if it is the path of `table`."""
    output = resolve_output_path(output)
    if output.resolve() == table.path.resolve():
        raise UsageError(f"-o {output}: is the manifest to be read; choose another name for the new one")
    return output


def item_from_row(row: Row) -> DraftItem:
    """Convert a row of a manifest to a draft item. A group that only repeats the row number is dropped."""
    paths = {"image": row.image, "audio": row.audio, "video": row.video}
    files: dict[MediaType, Path] = {column: path for column, path in paths.items() if path}  # pyright: ignore[reportAssignmentType]
    group = None if row.group == f"(row-{row.number})" else row.group
    return DraftItem(row.id, files, row.texts, group, row.split, row.label, row.start, row.end)


def write_derived_manifest(
    table: Manifest,
    items: list[DraftItem],
    output: Path,
    source: str,
    options: Mapping[str, Any],
    skip_counts: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
) -> tuple[WrittenManifest, ManifestDraft]:
    """Write a manifest derived from `table`, with its licence; the sidecar counts rows of `table` that have errors."""
    counts = Counter({"rows with an error": table.counts.unusable}) + Counter(skip_counts or {})
    draft = ManifestDraft(items, counts, list(notes))
    origin = Origin(source, {"manifest": table.path.name, **options}, read_licence(table.path))
    return write_manifest(draft, output, origin), draft
