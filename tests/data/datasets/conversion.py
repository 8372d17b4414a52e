"""Convert replicas and real copies of datasets in tests."""

from pathlib import Path

import pytest

from tests.data.dataset_replicas import WAV
from tests.real_data import find_dataset_or_skip
from triptych.data import manifest
from triptych.data.datasets import DATASETS
from triptych.data.datasets.convert import convert
from triptych.data.datasets.draft import ManifestDraft
from triptych.data.datasets.manifest_writer import WrittenManifest


def convert_copy(root: Path, source: str, output: Path | None = None, **options) -> tuple[manifest.Manifest, dict]:
    """Convert a copy. Return the manifest, read back, and the content of the sidecar."""
    written, _ = convert(source, DATASETS[source], root, output, options, show_progress=False)
    return manifest.read(written.path, allow_outside=written.needs_allow_outside), written.summary


def convert_with_notes(
    root: Path, source: str, output: Path | None = None
) -> tuple[manifest.Manifest, WrittenManifest, ManifestDraft]:
    """Convert a copy. Return the manifest, read back, what was written, and the draft with its notes."""
    written, draft = convert(source, DATASETS[source], root, output, show_progress=False)
    return manifest.read(written.path), written, draft


def convert_real(source: str, tmp_path: Path, **options) -> manifest.Manifest:
    """Convert a real copy, or skip the test if there is none. Return the manifest, which has no problems."""
    folder = find_dataset_or_skip(source) if source != "tuxpaint" else DATASETS["tuxpaint"].installed_path
    if folder is None or not folder.is_dir():
        pytest.skip("tuxpaint-stamps-default is not installed")
    written, _ = convert(source, DATASETS[source], folder, tmp_path / "m.csv", options, show_progress=False)
    table = manifest.read(written.path, allow_outside=True)
    assert table.problems == ()
    return table


def rows_by_id(table: manifest.Manifest) -> dict[str, manifest.Row]:
    return {row.id: row for row in table.rows}


def comparable_rows(table: manifest.Manifest) -> list[tuple]:
    """Return the rows without row numbers and groups named after them, which depend on the format of the table."""
    groups = [None if row.group.startswith("(row-") else row.group for row in table.rows]
    return [
        (r.id, r.audio, r.image, r.texts, group, r.split, r.label) for r, group in zip(table.rows, groups, strict=True)
    ]


def unique_wav(number):
    """Return a WAV file with unique content."""
    return WAV + number.to_bytes(4, "big")
