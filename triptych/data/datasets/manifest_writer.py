"""Write a manifest, and a sidecar with its origin, licence, counts and hashes of the exact test set."""

import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from triptych.csv_files import write_rows
from triptych.data import manifest
from triptych.data.datasets.draft import DraftItem, ManifestDraft
from triptych.data.datasets.duplicates import hash_file
from triptych.data.datasets.splits import separate_groups_by_split
from triptych.data.tables import TABLE_EXTENSIONS
from triptych.errors import ManifestError, UsageError
from triptych.files import atomic_write, write_text

SIDECAR_SUFFIX = ".source.json"
COLUMNS = ("id", "image", "audio", "video", "text", "group", "split", "label", "start", "end")
MAX_CELL_LENGTH = 131_072  # the field size limit of Python's csv module
HASH_VERSION = 1  # increment this version if a change of the code gives the same rows another hash


@dataclass(frozen=True)
class Origin:
    """The origin of a manifest, as recorded in the sidecar."""

    source: str
    options: Mapping[str, Any]
    licence: str


@dataclass(frozen=True)
class WrittenManifest:
    """A manifest that was written and read back."""

    path: Path
    sidecar: Path
    summary: dict[str, Any]  # the content of the sidecar
    needs_allow_outside: bool  # whether commands that read the manifest need --allow-outside
    num_errors: int
    num_warnings: int


def sidecar_path(path: Path) -> Path:
    """Return the path of the sidecar of a manifest."""
    return path.with_name(path.stem + SIDECAR_SUFFIX)


def read_licence(path: Path) -> str:
    """Read the licence of a manifest from its sidecar. Derived manifests inherit the licence."""
    try:
        return str(json.loads(sidecar_path(path).read_text(encoding="utf-8"))["licence"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"that of {path.name}"


def unpack_folder_for(path: Path) -> Path:
    """Return the folder for files that are unpacked for a manifest."""
    return path.with_name(f"{path.stem}_files")


def resolve_output_path(path: Path) -> Path:
    """Return the path to write; for a folder, add manifest.csv. Raise if another program wrote an existing file."""
    if path.is_dir():
        path = path / "manifest.csv"
    if path.suffix.lower() not in TABLE_EXTENSIONS:
        raise UsageError(f"-o {path}: the suffix of a manifest must be one of {', '.join(TABLE_EXTENSIONS)}")
    if path.exists() and not sidecar_path(path).exists():
        raise UsageError(
            f"{path} exists and was not written by this command (it has no {sidecar_path(path).name}); "
            "remove it or choose another path with -o"
        )
    return path


def write_manifest(
    draft: ManifestDraft, path: Path, origin: Origin, on_file_hashed: Callable[[int], None] | None = None
) -> WrittenManifest:
    """Write a manifest and its sidecar. The same copy and options give the same bytes.

    `on_file_hashed(1)` is called after each file of the test set.
    """
    draft = drop_unusable(draft)
    skip_counts, items = +draft.skip_counts, separate_groups_by_split(draft.items)
    if not items:
        reasons = "; ".join([*(f"{reason}: {count}" for reason, count in skip_counts.items()), *draft.notes])
        raise ManifestError(f"{origin.source}: no rows to write ({reasons or 'the dataset is empty'})")
    paths = _PathFormatter(path)
    _write_table(path, [_to_cells(item, paths) for item in items])
    table = manifest.read(path, allow_outside=paths.has_outside_paths)
    counts, sidecar = asdict(table.counts), sidecar_path(path)
    test_splits = sorted({item.split for item in items if item.split and item.split.startswith("test")})
    summary = {
        "manifest": path.name,
        "source": origin.source,
        "options": dict(origin.options),
        "licence": origin.licence,
        **{name: counts[name] for name in ("rows", "captions", "groups", "modalities", "pairs", "splits")},
        "labels": len(counts["labels"]),
        "skipped": dict(sorted(skip_counts.items())),
        "test": {name: hash_test_set(items, name, on_file_hashed) for name in test_splits},
    }
    write_text(sidecar, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return WrittenManifest(path, sidecar, summary, paths.has_outside_paths, len(table.errors), len(table.warnings))


def format_parquet(items: Iterable[DraftItem], path: Path, metadata: Mapping[str, str]) -> tuple[bytes, bool]:
    """Return the bytes of a Parquet manifest at `path`, and whether it refers to files outside the folder of `path`.

    `metadata` is stored in the schema of the table.
    """
    paths, stream = _PathFormatter(path), io.BytesIO()
    rows = [_to_cells(item, paths) for item in items]
    _write_parquet(stream, rows, _used_columns(rows), metadata)
    return stream.getvalue(), paths.has_outside_paths


def hash_test_set(
    items: Iterable[DraftItem], split: str, on_file_hashed: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Return two hashes that identify the exact test set: a hash of the rows and a hash of the files.

    `rows_hash` covers ids, captions, groups, labels and the media types of a row, but neither paths nor content: copies
    in different audio or image formats agree. `files_hash` covers the bytes of all files.
    """
    rows, files = hashlib.sha256(), hashlib.sha256()
    split_items = sorted((item for item in items if item.split == split), key=lambda item: item.id)
    for item in split_items:
        fields = [HASH_VERSION, item.id, item.texts, item.group, item.label, sorted(item.files)]
        rows.update(json.dumps(fields, ensure_ascii=True).encode() + b"\n")
        for column, path in sorted(item.files.items()):
            files.update(f"{item.id}\0{column}\0{hash_file(path)}\n".encode())
            if on_file_hashed:
                on_file_hashed(1)
    counts = {"rows": len(split_items), "captions": sum(len(item.texts) for item in split_items)}
    return {**counts, "rows_hash": rows.hexdigest(), "files_hash": files.hexdigest()}


def drop_unusable(draft: ManifestDraft) -> ManifestDraft:
    """Drop missing and empty files. Then drop rows with fewer than two modalities."""
    skip_counts = Counter(draft.skip_counts)
    items: list[DraftItem] = []
    for item in draft.items:
        if not _has_utf8_paths(item):
            skip_counts["rows whose file names are not UTF-8"] += 1
            continue
        existing = {column: path for column, path in item.files.items() if _has_content(path)}
        missing = item.files.keys() - existing.keys()
        skip_counts.update(f"{column} files that are missing or empty" for column in missing)
        if (usable_item := replace(item, files=existing)).has_pair:
            items.append(usable_item)
        elif not missing:
            skip_counts["rows with fewer than two modalities"] += 1
    return replace(draft, items=items, skip_counts=skip_counts)


def _has_content(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError:
        return False


def _has_utf8_paths(item: DraftItem) -> bool:
    try:
        return all(str(path).encode("utf-8") for path in item.files.values())
    except UnicodeEncodeError:
        return False


class _PathFormatter:
    """Formats paths for a manifest: relative paths for files below the manifest's folder, absolute paths otherwise."""

    def __init__(self, manifest_file: Path) -> None:
        self.root = manifest_file.parent.resolve()
        self.has_outside_paths = False
        self._resolved_parents: dict[Path, Path] = {}

    def format_path(self, path: Path) -> str:
        parent = self._resolved_parents.get(path.parent)
        if parent is None:
            parent = self._resolved_parents[path.parent] = path.parent.resolve()
        unresolved = parent / path.name  # a symbolic link keeps its name: its target may have another suffix
        if not parent.is_relative_to(self.root):
            self.has_outside_paths = True
            return str(unresolved)
        if path.is_symlink() and not Path(os.path.realpath(unresolved)).is_relative_to(self.root):
            self.has_outside_paths = True
        return unresolved.relative_to(self.root).as_posix()


def _to_cells(item: DraftItem, paths: _PathFormatter) -> dict[str, Any]:
    cells: dict[str, Any] = {**vars(item), "text": list(item.texts)}
    cells |= {column: paths.format_path(path) for column, path in item.files.items()}
    return {column: cells[column] for column in COLUMNS if cells.get(column) not in (None, "", [])}


def _used_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    used = {column for row in rows for column in row}
    return [column for column in COLUMNS if column in used]


def _write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = _used_columns(rows)
    with atomic_write(path) as temporary:
        if path.suffix.lower() == ".parquet":
            _write_parquet(temporary, rows, columns)
        elif path.suffix.lower() == ".jsonl":
            # A single caption is written as a string, several captions as a list.
            rows = [{**row, "text": row["text"][0]} if len(row.get("text", ())) == 1 else row for row in rows]
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            temporary.write_text("".join(lines), encoding="utf-8", newline="\n")
        else:
            with temporary.open("w", newline="", encoding="utf-8") as stream:
                write_rows(stream, columns, (_to_csv_row(path, row, columns) for row in rows))


def _to_csv_row(path: Path, row: Mapping[str, Any], columns: Sequence[str]) -> Mapping[str, Any]:
    if "text" not in columns:
        return row
    text = _format_captions(row.get("text", ()))
    if len(text) >= MAX_CELL_LENGTH:  # one character is reserved for the apostrophe of `write_rows`
        raise ManifestError(f"{path}: the captions of row {row['id']!r} are too long for CSV; write .jsonl instead")
    return {**row, "text": text}


def _format_captions(texts: Sequence[str]) -> str:
    """Format one caption as plain text; several, none, or one that starts with "[" as a JSON list."""
    if len(texts) == 1 and not texts[0].startswith("["):
        return texts[0]
    return json.dumps(list(texts), ensure_ascii=False)


def _write_parquet(
    file: Path | io.BytesIO,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    import pyarrow
    from pyarrow import parquet

    string, seconds = pyarrow.string(), pyarrow.float64()
    special_types = {"text": pyarrow.list_(string), "start": seconds, "end": seconds}
    schema = pyarrow.schema([(column, special_types.get(column, string)) for column in columns], dict(metadata or {}))
    content = {column: [row.get(column) for row in rows] for column in columns}
    parquet.write_table(pyarrow.table(content, schema=schema), file)
