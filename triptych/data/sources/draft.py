"""Drafts of manifests: the rows that a source reads from a dataset, with captions, groups and splits."""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from triptych.data.row_parser import MEDIA_EXTENSIONS, MediaType
from triptych.data.sources.local_copy import LocalCopy
from triptych.errors import UsageError, describe_unknown
from triptych.media.text import normalise

# Names of splits in datasets -> our names.
SPLIT_ALIASES = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
    "testing": "test",
}


HELD_OUT_FRACTION = 0.1  # of the rows, for valid and for test each, if the dataset has no splits


@dataclass(frozen=True)
class DraftItem:
    """A row of a manifest that is not written yet."""

    id: str
    files: Mapping[MediaType, Path] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    group: str | None = None
    split: str | None = None
    label: str | None = None
    start: float | None = None  # seconds: the segment of the audio or video
    end: float | None = None

    @property
    def has_pair(self) -> bool:
        """Whether the row has two or more modalities. A video counts as two: image and audio."""
        return len(self.files) + bool(self.texts) + ("video" in self.files) > 1


@dataclass(frozen=True)
class ManifestDraft:
    """The rows that a source read. `skip_counts` counts skipped items by reason; `notes` are printed for the user.

    If `split_units` is not None and no item has a split, usable rows are split by hash. Rows of one unit stay in one
    split. `split_units` maps ids to units; the default unit is the group, or else the row.
    """

    items: list[DraftItem]
    skip_counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    split_units: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Dataset:
    """A dataset or format that can be converted to a manifest: an entry of SOURCES."""

    title: str
    modalities: str
    expected_files: tuple[str, ...]  # the layout of a local copy, one line each
    licence: str
    read: Callable[..., ManifestDraft]  # (copy, *, options …)
    installed_path: Path | None = None  # the path if it is installed as a system package
    is_user_folder: bool = False  # the user's own files: write nothing into the folder by default

    @property
    def option_names(self) -> tuple[str, ...]:
        """The keyword-only parameters of `read`."""
        return tuple(inspect.getfullargspec(self.read).kwonlyargs)

    def build_draft(self, copy: LocalCopy, options: Mapping[str, Any]) -> ManifestDraft:
        """Read a copy. Raise UsageError for an unknown option."""
        for name in options:
            if name not in self.option_names:
                available = ", ".join(f"--{option}" for option in self.option_names) or "none"
                raise UsageError(f"source {copy.source_name!r} has no option --{name}; its options: {available}")
        return self.read(copy, **options)


def clean_captions(*texts: str | None) -> tuple[str, ...]:
    """Return the texts normalised, without empty ones and repetitions."""
    return tuple(dict.fromkeys(filter(None, (normalise(text) for text in texts if text))))


def check_choice(option: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raise UsageError unless the value of an option is one of the allowed values."""
    if value not in allowed:
        raise UsageError(describe_unknown(f"--{option}", str(value), map(str, allowed)))


def media_type_from_suffix(path: Path) -> MediaType | None:
    """Return the media type, which is also the manifest column, for a file's suffix; None if the suffix is unknown."""
    suffix = path.suffix.lower()
    return next((media_type for media_type, suffixes in MEDIA_EXTENSIONS.items() if suffix in suffixes), None)


def index_by_stem(copy: LocalCopy, *media_types: MediaType) -> dict[str, list[Path]]:
    """Return a dict from file names without suffix to the files of these types, at any depth."""
    paths_by_stem: dict[str, list[Path]] = {}
    for path in copy.find_files("*"):
        if media_type_from_suffix(path) in media_types:
            paths_by_stem.setdefault(path.stem, []).append(path)
    return paths_by_stem


def hash_to_fraction(*names: str) -> float:
    """Hash names to a number in [0, 1), uniformly distributed. Datasets without official splits are split by it."""
    return int.from_bytes(hashlib.sha256("\0".join(names).encode("utf-8", "replace")).digest()[:8]) / 2**64


def split_by_hash(source: str, key: str, valid_fraction: float = 0.1, test_fraction: float = 0.2) -> str:
    """Return train, valid or test by a hash of `key`, for datasets without official splits."""
    fraction = hash_to_fraction(source, key)
    return "test" if fraction < test_fraction else "valid" if fraction < test_fraction + valid_fraction else "train"


def assign_hash_splits(items: list[DraftItem], source: str, split_units: Mapping[str, str]) -> list[DraftItem]:
    """Assign 80 % of the rows to train, 10 % to valid and 10 % to test, as closely as whole units allow.

    A unit is a set of rows that must be in one split. Units are sorted by hash. Test takes units from the beginning of
    this order and valid from the end, skipping units that do not fit, so that new rows move few other rows. If all
    remaining units are too large, the smallest unit is taken if this comes closer to the target size, or if the split
    would be empty.
    """
    unit_of = {item.id: split_units.get(item.id) or item.group or item.id for item in items}
    sizes = Counter(unit_of.values())
    order = sorted(sizes, key=lambda unit: hash_to_fraction(source, unit))
    target_sizes = (
        {split: max(1, round(HELD_OUT_FRACTION * len(items))) for split in ("valid", "test")} if len(sizes) > 2 else {}
    )
    remaining, unit_splits = dict(target_sizes), dict[str, str]()
    queue = deque(order)
    while queue and any(remaining.values()):
        split = max(remaining, key=lambda name: remaining[name])
        unit = queue.popleft() if split == "test" else queue.pop()
        if sizes[unit] <= remaining[split]:
            unit_splits[unit] = split
            remaining[split] -= sizes[unit]
    for split, missing_rows in remaining.items():
        unassigned = [unit for unit in order if unit not in unit_splits]
        smallest = min(unassigned, key=lambda unit: sizes[unit])
        if (
            len(unassigned) > 1
            and missing_rows
            and (sizes[smallest] < 2 * missing_rows or missing_rows == target_sizes[split])
        ):
            unit_splits[smallest] = split
    return [replace(item, split=unit_splits.get(unit_of[item.id], "train")) for item in items]


def find_connected_groups(links: Mapping[str, Iterable[object]]) -> dict[str, str]:
    """Return the connected components of names that share links: each name -> the first name of its component.

    Links are captions or files: rows that share a caption or file are positives of each other.
    """
    parent = {name: name for name in links}

    def find_root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    first_name_by_link: dict[object, str] = {}
    for name, values in links.items():
        for value in values:
            root, other_root = sorted((find_root(name), find_root(first_name_by_link.setdefault(value, name))))
            parent[other_root] = root
    return {name: find_root(name) for name in links}


def separate_groups_by_split(items: Iterable[DraftItem]) -> list[DraftItem]:
    """Rename groups that occur in several splits, so that each split has its own: retrieval stays within a split."""
    items = list(items)
    splits: dict[str, set[str | None]] = {}
    for item in items:
        if item.group is not None:
            splits.setdefault(item.group, set()).add(item.split)
    return [
        replace(item, group=f"{item.group} ({item.split or 'no split'})")
        if item.group is not None and len(splits[item.group]) > 1
        else item
        for item in items
    ]
