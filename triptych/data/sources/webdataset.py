"""WebDataset: tar shards in which the members of one name are one sample."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

from triptych.data.columns import FileKind
from triptych.data.sources.archive import unpack
from triptych.data.sources.draft import SPLITS, Dataset, Draft, Item, captions, kind_of
from triptych.data.sources.local import Copy
from triptych.errors import ManifestError

SHARDS = ("*.tar", "*.tar.gz", "*.tgz")
TEXTS = (".txt", ".text", ".caption")
KEYS = ("text", "caption", "captions")
LABELS = (".cls", ".label")
MOST_TEXT = 1_000_000  # bytes of a text or JSON member


def read(copy: Copy) -> Draft:
    """Members are unpacked beside the manifest; a shard's name or folder may name the split.

    Captions come from .txt members, or from text, caption or captions in .json members; the label from .cls.
    """
    shards = [copy.path] if copy.path.is_file() else copy.all(*SHARDS)
    if not shards:
        raise copy.missing("tar shards such as train-000000.tar")
    items: list[Item] = []
    left_out: Counter[str] = Counter()
    for shard in shards:
        own = shard.name if copy.path.is_file() else shard.relative_to(copy.path).as_posix()
        name = own.removesuffix(".gz").removesuffix(".tgz").removesuffix(".tar")
        room = copy.room / name
        samples: dict[str, dict[str, Path]] = {}
        for path in unpack(shard, room, _is_wanted):
            # By the format's own rule a sample's name ends at the first dot of the file's name.
            stem, _, ending = path.name.partition(".")
            key = path.relative_to(room.resolve()).with_name(stem).as_posix()
            samples.setdefault(key, {})[f".{ending.lower()}"] = path
        items += [_item(f"{name}/{key}", members, _split(name), left_out) for key, members in samples.items()]
    notes = [f"unpacked into {copy.room}"]
    return Draft(items, left_out, notes, units={})


def _is_wanted(name: PurePosixPath) -> bool:
    return name.suffix.lower() in {".json", *TEXTS, *LABELS} or kind_of(Path(name)) is not None


def _split(name: str) -> str | None:
    words = name.lower().replace("/", "-").replace("_", "-").split("-")
    return next((SPLITS[word] for word in words if word in SPLITS), None)


def _item(name: str, members: dict[str, Path], split: str | None, left_out: Counter[str]) -> Item:
    files: dict[FileKind, Path] = {}
    texts: list[str] = []
    label = None
    for ending, path in sorted(members.items()):
        kind = kind_of(path)
        if kind in files:
            left_out[f"second {kind} members of a sample"] += 1
        elif kind:
            files[kind] = path
        elif ending in TEXTS:
            texts.append(_text(path))
        elif ending == ".json":
            texts += _told(path)
        elif ending in LABELS:
            label = _text(path).strip() or None
    return Item(name, texts=captions(*texts), split=split, label=label, files=files)


def _text(path: Path) -> str:
    if path.stat().st_size > MOST_TEXT:
        raise ManifestError(f"{path}: {path.stat().st_size:,} bytes of text; at most {MOST_TEXT:,}")
    return path.read_text(encoding="utf-8", errors="replace")


def _told(path: Path) -> list[str]:
    try:
        content: Any = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path}: cannot be read as JSON: {error}") from error
    found = [content.get(key) for key in KEYS] if isinstance(content, dict) else []
    each = [one for value in found for one in (value if isinstance(value, list) else [value])]
    return [one for one in each if isinstance(one, str)]


SOURCE = Dataset(
    title="WebDataset, tar shards of samples",
    pairs="whatever a sample holds",
    expects=(
        "tar shards at any depth, or one: members 0001.flac, 0001.jpg, 0001.txt, 0001.json, 0001.cls",
        "train, valid or test in a shard's name or folder is its split",
    ),
    licence="that of the data set",
    read=read,
)
