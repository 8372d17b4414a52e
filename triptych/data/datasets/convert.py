"""Convert a local copy of a dataset to a manifest."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from triptych.data.datasets import manifest_writer
from triptych.data.datasets.draft import Dataset, ManifestDraft
from triptych.data.datasets.local_copy import LocalCopy
from triptych.data.datasets.splits import assign_hash_splits
from triptych.errors import UsageError
from triptych.progress import track_progress


def default_output_path(dataset_name: str, dataset: Dataset, folder: Path) -> Path:
    """Return the default output: FOLDER/manifest.csv for datasets, FOLDER-manifest.csv beside a user's own folder.

    If the default folder is not writable, return a path in the working directory.
    """
    if not dataset.is_user_folder:
        return folder / "manifest.csv" if _is_writable(folder) else Path(dataset_name) / "manifest.csv"
    root, here = folder.resolve(), Path.cwd().resolve()
    name = f"{root.name or dataset_name}-manifest.csv"
    if here in root.parents:
        return Path(name)
    # Prefer a path beside the folder, because a manifest refers to files in its own folder and below.
    if _is_writable(root.parent) and root.parent != root:
        return root.parent / name
    if here == root or root in here.parents:
        reason = f"cannot write beside {folder}, and nothing is written into it by default"
        raise UsageError(f"{reason}; choose an output with -o")
    return Path(name)


def _is_writable(folder: Path) -> bool:
    # The mode is tested too: root can write anywhere, but a folder that is read-only for all should not change.
    return folder.is_dir() and bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)


def convert(
    dataset_name: str,
    dataset: Dataset,
    folder: Path | None,
    output: Path | None = None,
    options: Mapping[str, Any] | None = None,
    show_progress: bool = True,
) -> tuple[manifest_writer.WrittenManifest, ManifestDraft]:
    """Write the manifest and the sidecar of a copy. Return the written manifest, and the draft with its notes."""
    copy_path = folder or dataset.installed_path
    if copy_path is None:
        command = f"triptych data {dataset_name} FOLDER"
        raise UsageError(f"give the folder of your copy: {command}; expected: {dataset.expected_files[0]}")
    path = manifest_writer.resolve_output_path(output or default_output_path(dataset_name, dataset, copy_path))
    copy = LocalCopy(dataset_name, copy_path, manifest_writer.unpack_folder_for(path))
    draft = manifest_writer.drop_unusable(_drop_outside_files(dataset.build_draft(copy, options or {}), copy))
    draft = assign_missing_splits(draft, dataset_name)
    total = sum(len(item.files) for item in draft.items if (item.split or "").startswith("test"))
    with track_progress("hashing the test set", total, show_progress and total > 0) as bar:
        written = manifest_writer.write_manifest(
            draft, path, manifest_writer.Origin(dataset_name, options or {}, dataset.licence), bar.advance
        )
    return written, draft


def assign_missing_splits(draft: ManifestDraft, dataset_name: str) -> ManifestDraft:
    """Split the rows by hash if the dataset has no splits."""
    if draft.split_units is None or not draft.items:
        return draft
    num_without_split = sum(item.split is None for item in draft.items)
    if num_without_split < len(draft.items):
        note = [f"{num_without_split} rows are in no split folder and have no split"] if num_without_split else []
        return replace(draft, notes=[*draft.notes, *note])
    items = assign_hash_splits(draft.items, dataset_name, draft.split_units)
    counts = Counter(item.split for item in items)
    fractions = [f"{name} {counts[name]} ({counts[name] / len(items):.0%})" for name in ("train", "valid", "test")]
    note = f"the dataset has no splits; rows were split by a hash, the same in every run: {', '.join(fractions)}"
    return replace(draft, items=items, notes=[*draft.notes, note])


def _drop_outside_files(draft: ManifestDraft, copy: LocalCopy) -> ManifestDraft:
    """Drop files outside the copy: tables of a downloaded dataset are untrusted and must not refer to other files."""
    # abspath, not resolve: symbolic links of the user are allowed.
    roots = tuple(os.path.abspath(root) for root in (copy.path, copy.unpack_folder))  # noqa: PTH100
    skip_counts = Counter(draft.skip_counts)
    items = []
    for item in draft.items:
        files = {column: path for column, path in item.files.items() if _is_below(path, roots)}
        skip_counts.update(f"{column} files outside the copy" for column in item.files.keys() - files.keys())
        items.append(replace(item, files=files))
    return replace(draft, items=items, skip_counts=skip_counts)


def _is_below(path: Path, roots: tuple[str, ...]) -> bool:
    absolute = Path(os.path.abspath(path))  # noqa: PTH100
    return any(absolute.is_relative_to(root) for root in roots)
