"""WebDataset: tar shards. Members with the same name up to the first dot are one sample."""

import json
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

from triptych.data.datasets.archive import unpack
from triptych.data.datasets.draft import Dataset, DraftItem, ManifestDraft, clean_captions
from triptych.data.datasets.local_copy import LocalCopy
from triptych.data.datasets.splits import SPLIT_ALIASES
from triptych.data.row_parser import MediaType, media_type_from_suffix
from triptych.errors import ManifestError

SHARDS = ("*.tar", "*.tar.gz", "*.tgz")
TEXT_SUFFIXES = (".txt", ".text", ".caption")
CAPTION_KEYS = ("text", "caption", "captions")
LABEL_SUFFIXES = (".cls", ".label")
MAX_TEXT_BYTES = 1_000_000  # maximum size of a text or JSON member


def read(copy: LocalCopy) -> ManifestDraft:
    """Unpack the members beside the manifest. The split is taken from the name or folder of a shard.

    Captions are in .txt members, or under the keys text, caption or captions of .json members. Labels are in .cls
    members.
    """
    shards = [copy.path] if copy.path.is_file() else copy.find_files(*SHARDS)
    if not shards:
        raise copy.missing_error("tar shards such as train-000000.tar")
    draft = ManifestDraft(notes=[f"unpacked to {copy.unpack_folder}"], split_units={})
    for shard in shards:
        relative_name = shard.name if copy.path.is_file() else shard.relative_to(copy.path).as_posix()
        name = relative_name.removesuffix(".gz").removesuffix(".tgz").removesuffix(".tar")
        shard_folder = copy.unpack_folder / name
        samples: dict[str, dict[str, Path]] = {}
        for path in unpack(shard, shard_folder, _is_supported_member):
            # In this format the key of a sample ends at the first dot of the file name.
            stem, _, suffix = path.name.partition(".")
            key = path.relative_to(shard_folder.resolve()).with_name(stem).as_posix()
            samples.setdefault(key, {})[f".{suffix.lower()}"] = path
        for key, members in samples.items():
            draft.items.append(_build_item(f"{name}/{key}", members, _split_from_name(name), draft.skip_counts))
    return draft


def _is_supported_member(name: PurePosixPath) -> bool:
    is_text = name.suffix.lower() in {".json", *TEXT_SUFFIXES, *LABEL_SUFFIXES}
    return is_text or media_type_from_suffix(name) is not None


def _split_from_name(name: str) -> str | None:
    words = name.lower().replace("/", "-").replace("_", "-").split("-")
    return next((SPLIT_ALIASES[word] for word in words if word in SPLIT_ALIASES), None)


def _build_item(name: str, members: dict[str, Path], split: str | None, skip_counts: Counter[str]) -> DraftItem:
    files: dict[MediaType, Path] = {}
    texts: list[str] = []
    label = None
    for suffix, path in sorted(members.items()):
        media_type = media_type_from_suffix(path)
        if media_type in files:
            skip_counts[f"second {media_type} members of a sample"] += 1
        elif media_type:
            files[media_type] = path
        elif suffix in TEXT_SUFFIXES:
            texts.append(_read_text(path))
        elif suffix == ".json":
            texts += _read_json_captions(path)
        elif suffix in LABEL_SUFFIXES:
            label = _read_text(path).strip() or None
    return DraftItem(name, files, clean_captions(*texts), split=split, label=label)


def _read_text(path: Path) -> str:
    if path.stat().st_size > MAX_TEXT_BYTES:
        raise ManifestError(f"{path}: {path.stat().st_size:,} bytes of text; at most {MAX_TEXT_BYTES:,}")
    return path.read_text(encoding="utf-8", errors="replace")


def _read_json_captions(path: Path) -> list[str]:
    try:
        content: Any = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path}: cannot be read as JSON: {error}") from error
    values = [content.get(key) for key in CAPTION_KEYS] if isinstance(content, dict) else []
    captions = [caption for value in values for caption in (value if isinstance(value, list) else [value])]
    return [caption for caption in captions if isinstance(caption, str)]


DATASET = Dataset(
    title="WebDataset: tar shards",
    modalities="any",
    expected_files=(
        "tar shards at any depth, or a single shard: members 0001.flac, 0001.jpg, 0001.txt, 0001.json, 0001.cls",
        "the split of a shard is train, valid or test in the name or folder of the shard",
    ),
    licence="that of the dataset",
    read=read,
)
