"""Hugging Face data sets on disk: folders of save_to_disk, and Parquet files with embedded sounds and pictures."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triptych.data.columns import FileKind
from triptych.data.problems import shown
from triptych.data.sources.archive import most_content, too_much_content
from triptych.data.sources.draft import SPLITS, Dataset, Draft, Item, captions, kind_of, link
from triptych.data.sources.local import Copy
from triptych.data.sources.output import sidecar_of
from triptych.errors import ManifestError, UsageError
from triptych.files import replacing

if TYPE_CHECKING:
    import pyarrow

CAPTION = re.compile(r"(text|texts|captions?|sentences?|description|transcription|caption_?\d+)")
LABELS = ("label", "labels", "category", "class")
AT_ONCE = 16  # rows in memory; each may hold a film
MAGIC: tuple[tuple[bytes, int, str], ...] = (
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
class Roles:
    """What the columns of a data set mean."""

    media: tuple[str, ...]
    texts: tuple[str, ...]
    label: str | None
    names: tuple[str, ...]  # of a label that is a number


def read(copy: Copy, *, text: str | None = None) -> Draft:
    """Sounds and pictures are written out beside the manifest, each once; rows with the same file share a group.

    text: the columns with captions, with commas; unless given, those that are called text, caption and the like.
    """
    tables = _tables(copy)
    if not tables:
        raise copy.missing("dataset_info.json with *.arrow (save_to_disk), or *.parquet")
    items: list[Item] = []
    left_out: Counter[str] = Counter()
    counts: Counter[str | None] = Counter()
    for path in tables:
        split, roles = _split(path, copy), None
        unpacked = _Unpacked(path, copy.room)
        for batch in _batches(path):
            roles = roles or _roles(batch.schema, path, text)
            for row in batch.select([*roles.media, *roles.texts, *([roles.label] if roles.label else [])]).to_pylist():
                counts[split] += 1
                name = f"{split or 'row'}-{counts[split]:07d}"
                items.append(_item(row, roles, name, split, unpacked, left_out))
    groups = link({item.id: item.files.values() for item in items})
    sizes = Counter(groups.values())
    items = [replace(item, group=groups[item.id]) if sizes[groups[item.id]] > 1 else item for item in items]
    notes = [f"files written into {copy.room}"]
    return Draft(items, left_out, notes, units={})


def _tables(copy: Copy) -> list[Path]:
    """The files with rows; of save_to_disk's folders only its data, and no manifest of our own."""
    if copy.path.is_file():
        return [copy.path]
    arrow = [path for path in copy.all("*.arrow") if not path.name.startswith("cache-")]
    return arrow or [path for path in copy.all("*.parquet") if not sidecar_of(path).exists()]


def _split(path: Path, copy: Copy) -> str | None:
    """By the file's name (train-00000-of-00002.parquet) or its folder's (train/data-00000-of-00001.arrow)."""
    inside = path.relative_to(copy.path).parts[:-1] if copy.path.is_dir() else ()
    words = [re.split(r"[-_.]", path.name)[0], *reversed(inside)]
    return next((SPLITS[word.lower()] for word in words if word.lower() in SPLITS), None)


def _batches(path: Path) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow
    from pyarrow import ipc, parquet

    try:
        if path.suffix == ".parquet":
            with parquet.ParquetFile(path) as file:
                groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
                if sum(group.total_byte_size for group in groups) > most_content(path):
                    raise too_much_content(path)
                yield from file.iter_batches(AT_ONCE)
        else:
            with pyarrow.memory_map(str(path)) as source, ipc.open_stream(source) as stream:
                for batch in stream:
                    yield from (batch.slice(start, AT_ONCE) for start in range(0, batch.num_rows, AT_ONCE))
    except (pyarrow.ArrowException, OSError) as error:
        raise ManifestError(f"{path}: cannot be read: {shown(error)}") from error


def _roles(schema: pyarrow.Schema, path: Path, text: str | None) -> Roles:
    from pyarrow import types

    told = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    media = tuple(f.name for f in schema if types.is_struct(f.type) and f.type.get_field_index("bytes") >= 0)
    if not media:
        raise ManifestError(f"{path}: no column holds sounds or pictures; found: {', '.join(schema.names)}")
    wanted = [name.strip() for name in text.split(",")] if text else []
    strange = [name for name in wanted if name not in schema.names]
    if strange:
        raise UsageError(f"--text {strange[0]}: {path.name} has no such column; found: {', '.join(schema.names)}")
    found = [f.name for f in schema if CAPTION.fullmatch(f.name.lower()) and f.name not in media and _is_text(f.type)]
    label = next((name for name in schema.names if told.get(name, {}).get("_type") == "ClassLabel"), None)
    label = label or next((name for name in LABELS if name in schema.names and name not in media), None)
    return Roles(media, tuple(wanted or found), label, tuple(told.get(label or "", {}).get("names", ())))


def _is_text(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind):
        kind = kind.value_type
    return types.is_string(kind) or types.is_large_string(kind)


def _item(
    row: dict[str, Any], roles: Roles, name: str, split: str | None, unpacked: _Unpacked, left_out: Counter[str]
) -> Item:
    files: dict[FileKind, Path] = {}
    for column in roles.media:
        path = unpacked.write(row[column])
        kind = kind_of(path) if path else None
        if path is None or kind is None:
            left_out[f"cells of {column} without bytes we know"] += 1
        elif kind in files:
            left_out[f"second {kind} files of a row"] += 1
        else:
            files[kind] = path
    told = [one for column in roles.texts for one in (row[column] if isinstance(row[column], list) else [row[column]])]
    label = row[roles.label] if roles.label else None
    if isinstance(label, int) and 0 <= label < len(roles.names):
        label = roles.names[label]
    words = None if label is None or isinstance(label, list | dict) else str(label)
    texts = captions(*(one for one in told if isinstance(one, str)))
    return Item(name, texts=texts, split=split, label=words, files=files)


class _Unpacked:
    """The files of the sounds and pictures in one table, named by a hash of their bytes: each is written once."""

    def __init__(self, table: Path, room: Path) -> None:
        self.table, self.room = table, room
        self._left = most_content(table)

    def write(self, cell: dict[str, Any] | None) -> Path | None:
        """The file of a cell; None where the cell holds no bytes."""
        content = (cell or {}).get("bytes")
        if not content:
            return None
        ending = next((e for magic, at, e in MAGIC if content[at : at + len(magic)] == magic), None)
        ending = ending or Path((cell or {}).get("path") or "").suffix.lower()
        path = self.room / f"{hashlib.sha256(content).hexdigest()[:32]}{ending}"
        if not (path.is_file() and path.stat().st_size == len(content)):
            self._left -= len(content)
            if self._left < 0:
                raise too_much_content(self.table)
            with replacing(path, durable=False) as temporary:
                temporary.write_bytes(content)
        return path


SOURCE = Dataset(
    title="Hugging Face data sets on disk",
    pairs="whatever a row holds",
    expects=(
        "a folder of save_to_disk (dataset_info.json, *.arrow, perhaps in train/ and test/),",
        "or Parquet files with embedded sounds or pictures, such as data/train-00000-of-00001.parquet",
    ),
    licence="that of the data set",
    read=read,
)
