"""Hugging Face datasets: save_to_disk folders, Parquet files with embedded audio and images, datasets in memory."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.data.datasets.archive import expansion_error, max_unpacked_bytes
from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, clean_captions
from triptych.data.datasets.local_copy import LocalCopy
from triptych.data.datasets.manifest_writer import sidecar_path
from triptych.data.datasets.splits import SPLIT_ALIASES, find_connected_groups
from triptych.data.manifest_problems import to_printable
from triptych.data.media_folder import MediaFolder
from triptych.data.row_parser import (
    MEDIA_EXTENSIONS,
    METADATA_COLUMNS,
    SEGMENT_COLUMNS,
    MediaType,
    media_type_from_suffix,
)
from triptych.errors import ManifestError, UsageError

if TYPE_CHECKING:
    import pyarrow

CAPTION_COLUMN = re.compile(r"(text|texts|captions?|sentences?|description|transcription|caption_?\d+)")
LABEL_COLUMNS = ("label", "labels", "category", "class")
BATCH_ROWS = 16  # number of rows in memory at a time; each row may contain a video


@dataclass(frozen=True)
class ColumnRoles:
    """The roles of the columns of a dataset."""

    media: tuple[str, ...]
    texts: tuple[str, ...]
    label: str | None
    label_names: tuple[str, ...]  # names of integer labels (ClassLabel)


def read(copy: LocalCopy, *, text: str | None = None) -> ManifestDraft:
    """Extract embedded audio and images to files beside the manifest. Rows with the same file share a group.

    text: the caption columns, comma-separated. Default: columns named text, caption or similar.
    """
    tables = _find_tables(copy)
    if not tables:
        raise copy.missing_error("dataset_info.json with *.arrow (save_to_disk), or *.parquet")
    items: list[DraftItem] = []
    skip_counts, counts = Counter[str](), Counter[str | None]()
    for path in tables:
        split, roles = _split_from_path(path, copy), None
        media = MediaFolder(copy.unpack_folder, path)
        for batch in _iter_batches(path):
            roles = roles or infer_roles(batch.schema, str(path), text)
            for row in batch.select([*roles.media, *roles.texts, *([roles.label] if roles.label else [])]).to_pylist():
                counts[split] += 1
                name = f"{split or 'row'}-{counts[split]:07d}"
                items.append(_build_item(row, roles, name, split, media, skip_counts))
    groups = find_connected_groups({item.id: item.files.values() for item in items})
    sizes = Counter(groups.values())
    items = [replace(item, group=groups[item.id]) if sizes[groups[item.id]] > 1 else item for item in items]
    return ManifestDraft(items, skip_counts, [f"files were written to {copy.unpack_folder}"], split_units={})


def _find_tables(copy: LocalCopy) -> list[Path]:
    """Find the files with rows, except caches of the `datasets` library and manifests that triptych wrote."""
    if copy.path.is_file():
        return [copy.path]
    arrow = [path for path in copy.find_files("*.arrow") if not path.name.startswith("cache-")]
    return arrow or [path for path in copy.find_files("*.parquet") if not sidecar_path(path).exists()]


def _split_from_path(path: Path, copy: LocalCopy) -> str | None:
    """Return the split in the file name (train-00000-of-00002.parquet) or folder (train/data-00000-of-00001.arrow)."""
    parent_names = path.relative_to(copy.path).parts[:-1] if copy.path.is_dir() else ()
    words = [re.split(r"[-_.]", path.name)[0], *reversed(parent_names)]
    return next((SPLIT_ALIASES[word.lower()] for word in words if word.lower() in SPLIT_ALIASES), None)


def _iter_batches(path: Path) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow
    from pyarrow import ipc, parquet

    try:
        if path.suffix == ".parquet":
            with parquet.ParquetFile(path) as file:
                groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
                if sum(group.total_byte_size for group in groups) > max_unpacked_bytes(path):
                    raise expansion_error(path)
                yield from file.iter_batches(BATCH_ROWS)
        else:
            with pyarrow.memory_map(str(path)) as source, ipc.open_stream(source) as stream:
                for batch in stream:
                    yield from (batch.slice(start, BATCH_ROWS) for start in range(0, batch.num_rows, BATCH_ROWS))
    except (pyarrow.ArrowException, OSError) as error:
        raise ManifestError(f"{path}: cannot be read: {to_printable(error)}") from error


def find_media_columns(schema: pyarrow.Schema) -> tuple[str, ...]:
    """Return the columns with audio or images: structs with the field "bytes"."""
    from pyarrow import types

    return tuple(f.name for f in schema if types.is_struct(f.type) and f.type.get_field_index("bytes") >= 0)


def infer_roles(schema: pyarrow.Schema, table: str, text: str | None = None) -> ColumnRoles:
    """Infer the roles of the columns from their types and names. `table` is the name of the table in messages."""
    features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    media = find_media_columns(schema)
    if not media:
        raise ManifestError(f"{table}: no column contains audio or images; found: {', '.join(schema.names)}")
    text_columns = [name.strip() for name in text.split(",")] if text else []
    for name in text_columns:
        if name not in schema.names:
            raise UsageError(f"--text {name}: {table} has no such column; found: {', '.join(schema.names)}")
    text_fields = [f.name for f in schema if f.name not in media and _is_text(f.type)]
    caption_columns = [name for name in text_fields if CAPTION_COLUMN.fullmatch(name.lower())]
    label = next((name for name in schema.names if features.get(name, {}).get("_type") == "ClassLabel"), None)
    label = label or next((name for name in LABEL_COLUMNS if name in schema.names and name not in media), None)
    label_names = tuple(features.get(label or "", {}).get("names", ()))
    return ColumnRoles(media, tuple(text_columns or caption_columns), label, label_names)


def _is_text(data_type: pyarrow.DataType) -> bool:
    from pyarrow import types

    if types.is_list(data_type) or types.is_large_list(data_type):
        data_type = data_type.value_type
    return types.is_string(data_type) or types.is_large_string(data_type)


def _build_item(
    row: dict[str, Any],
    roles: ColumnRoles,
    name: str,
    split: str | None,
    media: MediaFolder,
    skip_counts: Counter[str],
) -> DraftItem:
    files: dict[MediaType, Path] = {}
    for column in roles.media:
        cell = row[column] or {}
        path = media.add_bytes(cell["bytes"], cell.get("path") or "") if cell.get("bytes") else None
        media_type = media_type_from_suffix(path) if path else None
        if path is None or media_type is None:
            skip_counts[f"cells of {column} without content of a known format"] += 1
        elif media_type in files:
            skip_counts[f"second {media_type} files of a row"] += 1
        else:
            files[media_type] = path
    return DraftItem(
        name, files, clean_captions(*_read_captions(row, roles)), split=split, label=_read_label(row, roles)
    )


def to_manifest_row(row: Mapping[str, Any], roles: ColumnRoles) -> dict[str, Any]:
    """Convert a row of a dataset in memory to a row with the columns of a manifest."""
    media = {name if name in MEDIA_EXTENSIONS else f"{name}_file_name": row[name] for name in roles.media}
    metadata = {name: row[name] for name in (*METADATA_COLUMNS, *SEGMENT_COLUMNS) if name in row}
    return {**metadata, **media, "text": _read_captions(row, roles), "label": _read_label(row, roles)}


def _read_captions(row: Mapping[str, Any], roles: ColumnRoles) -> list[str]:
    cells = [row[column] for column in roles.texts]
    captions = [caption for cell in cells for caption in (cell if isinstance(cell, list) else [cell])]
    return [caption for caption in captions if isinstance(caption, str)]


def _read_label(row: Mapping[str, Any], roles: ColumnRoles) -> str | None:
    label = row[roles.label] if roles.label else None
    if isinstance(label, int) and 0 <= label < len(roles.label_names):
        label = roles.label_names[label]
    return None if label is None or isinstance(label, list | dict) else str(label)


DATASET = Dataset(
    title="Hugging Face datasets on disk",
    modalities="any",
    expected_files=(
        "a save_to_disk folder (dataset_info.json, *.arrow, optionally in train/ and test/),",
        "or Parquet files with embedded audio or images, such as data/train-00000-of-00001.parquet",
    ),
    licence="that of the dataset",
    read=read,
)
