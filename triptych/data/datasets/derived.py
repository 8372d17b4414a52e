"""Derive a manifest from another manifest: convert rows to draft items, and write changed draft items."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triptych.data.datasets import manifest_writer
from triptych.data.datasets.draft import DraftItem, ManifestDraft
from triptych.data.manifest import Manifest, Row, files_of
from triptych.errors import UsageError


def resolve_derived_path(output: Path, table: Manifest) -> Path:
    """Resolve the output path of a manifest derived from `table`. Raise if the output would replace `table`."""
    output = manifest_writer.resolve_output_path(output)
    if output.resolve() == table.path.resolve():
        raise UsageError(f"-o {output}: is the manifest to be read; choose another name for the new manifest")
    return output


def item_from_row(row: Row) -> DraftItem:
    """Convert a row of a manifest to a draft item. A group that only repeats the row number is dropped."""
    group = None if row.group == f"(row-{row.number})" else row.group
    return DraftItem(row.id, files_of(row), row.texts, group, row.split, row.label, row.start, row.end)


def write_derived_manifest(
    table: Manifest,
    items: list[DraftItem],
    output: Path,
    source: str,
    options: Mapping[str, Any],
    skip_counts: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
) -> tuple[manifest_writer.WrittenManifest, ManifestDraft]:
    """Write a manifest derived from `table`. It has the licence of `table`; the sidecar counts rows with errors."""
    counts = Counter({"rows with an error": table.counts.unusable}) + Counter(skip_counts or {})
    draft = ManifestDraft(items, counts, list(notes))
    origin = manifest_writer.Origin(
        source, {"manifest": table.path.name, **options}, manifest_writer.read_licence(table.path)
    )
    return manifest_writer.write_manifest(draft, output, origin), draft
