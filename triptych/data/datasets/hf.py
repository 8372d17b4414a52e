"""Hugging Face datasets on disk: save_to_disk folders, and Parquet files with embedded audio and images."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.data.datasets.archive import expansion_error, max_unpacked_bytes
from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, clean_captions
from triptych.data.datasets.local_copy import LocalCopy
from triptych.data.datasets.manifest_writer import sidecar_path
from triptych.data.datasets.splits import SPLIT_ALIASES, find_connected_groups
from triptych.data.manifest_problems import to_printable
from triptych.data.row_parser import MediaType, media_type_from_suffix
from triptych.errors import ManifestError, UsageError
from triptych.files import atomic_write

if TYPE_CHECKING:
    import pyarrow

CAPTION_COLUMN = re.compile(r"(text|texts|captions?|sentences?|description|transcription|caption_?\d+)")
LABEL_COLUMNS = ("label", "labels", "category", "class")
BATCH_ROWS = 16  # number of rows in memory at a time; each row may contain a video
MAGIC_BYTES: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89PNG", 0, ".png"),
    (b"\xff\xd8\xff", 0, ".jpg"),
    (b"GIF8", 0, ".gif"),
    (b"WEBP", 8, ".webp"),
    (b"WAVE", 8, ".wav"),
    (b"AIFF", 8, ".aiff"),
    (b"fLaC", 0, ".flac"),
    (b"OggS", 0, ".ogg"),
    (b"ID3", 0, ".mp3"),
    (b"\xff\xfb", 0, ".mp3"),
    (b"ftyp", 4, ".mp4"),
    (b"\x1aE\xdf\xa3", 0, ".mkv"),
    (b"II*\0", 0, ".tif"),
    (b"BM", 0, ".bmp"),
)


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
        media_writer = _MediaWriter(path, copy.unpack_folder)
        for batch in _iter_batches(path):
            roles = roles or _infer_roles(batch.schema, path, text)
            for row in batch.select([*roles.media, *roles.texts, *([roles.label] if roles.label else [])]).to_pylist():
                counts[split] += 1
                name = f"{split or 'row'}-{counts[split]:07d}"
                items.append(_build_item(row, roles, name, split, media_writer, skip_counts))
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


def _infer_roles(schema: pyarrow.Schema, path: Path, text: str | None) -> ColumnRoles:
    from pyarrow import types

    features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    media = tuple(f.name for f in schema if types.is_struct(f.type) and f.type.get_field_index("bytes") >= 0)
    if not media:
        raise ManifestError(f"{path}: no column contains audio or images; found: {', '.join(schema.names)}")
    text_columns = [name.strip() for name in text.split(",")] if text else []
    for name in text_columns:
        if name not in schema.names:
            raise UsageError(f"--text {name}: {path.name} has no such column; found: {', '.join(schema.names)}")
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
    media_writer: _MediaWriter,
    skip_counts: Counter[str],
) -> DraftItem:
    files: dict[MediaType, Path] = {}
    for column in roles.media:
        path = media_writer.write(row[column])
        media_type = media_type_from_suffix(path) if path else None
        if path is None or media_type is None:
            skip_counts[f"cells of {column} without content of a known format"] += 1
        elif media_type in files:
            skip_counts[f"second {media_type} files of a row"] += 1
        else:
            files[media_type] = path
    cells = [row[column] for column in roles.texts]
    captions = [caption for cell in cells for caption in (cell if isinstance(cell, list) else [cell])]
    label = row[roles.label] if roles.label else None
    if isinstance(label, int) and 0 <= label < len(roles.label_names):
        label = roles.label_names[label]
    label_text = None if label is None or isinstance(label, list | dict) else str(label)
    texts = clean_captions(*(caption for caption in captions if isinstance(caption, str)))
    return DraftItem(name, files, texts, split=split, label=label_text)


class _MediaWriter:
    """Writes the media files of one table. File names are hashes of the bytes, so that each content is written once."""

    def __init__(self, table: Path, folder: Path) -> None:
        self.table, self.folder = table, folder
        self._remaining_bytes = max_unpacked_bytes(table)

    def write(self, cell: dict[str, Any] | None) -> Path | None:
        """Write the content of a cell and return its path; None if the cell is empty."""
        content = (cell or {}).get("bytes")
        if not content:
            return None
        suffix = next((s for magic, offset, s in MAGIC_BYTES if content[offset : offset + len(magic)] == magic), None)
        suffix = suffix or Path((cell or {}).get("path") or "").suffix.lower()
        path = self.folder / f"{hashlib.sha256(content).hexdigest()[:32]}{suffix}"
        if not (path.is_file() and path.stat().st_size == len(content)):
            self._remaining_bytes -= len(content)
            if self._remaining_bytes < 0:
                raise expansion_error(self.table)
            with atomic_write(path, durable=False) as temporary:
                temporary.write_bytes(content)
        return path


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
