"""What a source makes of a local copy of a data set: rows that are not yet written, and what was left out of them."""

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

# What data sets call their splits, and what we call them.
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


HELD_OUT_FRACTION = 0.1  # share of the rows in valid, and in test, where the data set names no splits


@dataclass(frozen=True)
class DraftItem:
    """One row of the manifest to be."""

    id: str
    files: Mapping[MediaType, Path] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    group: str | None = None
    split: str | None = None
    label: str | None = None
    start: float | None = None  # seconds: the moment of the sound or film that is meant
    end: float | None = None

    @property
    def has_pair(self) -> bool:
        """Whether anything in it belongs with anything else; a film is sound and pictures at once."""
        return len(self.files) + bool(self.texts) + ("video" in self.files) > 1


@dataclass(frozen=True)
class ManifestDraft:
    """Everything a source found. `left_out` says of what kind how many were not taken; `notes` are for the user.

    Where `units` is given and no item names a split, the rows are divided into splits once it is clear which of them
    can be used: rows of one unit (id -> unit; its group unless given, else the row itself) stay in one split.
    """

    items: list[DraftItem]
    skip_counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    split_units: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Dataset:
    """A kind of local copy we can read: an entry of SOURCES."""

    title: str  # what it is, in a few words
    modalities: str  # what belongs together in it
    expected_files: tuple[str, ...]  # what its local copy holds, a line each
    licence: str
    read: Callable[..., ManifestDraft]  # (copy, *, options …)
    installed_path: Path | None = None  # where it lies when it is installed as a package
    is_user_folder: bool = False  # a user's own files: nothing is written among them unless asked

    @property
    def option_names(self) -> tuple[str, ...]:
        """The options its reading knows."""
        parameters = inspect.signature(self.read).parameters.values()
        return tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)

    def build_draft(self, copy: LocalCopy, options: Mapping[str, Any]) -> ManifestDraft:
        """Read a copy; an option that means nothing here is an error, not ignored."""
        for name in options:
            if name not in self.option_names:
                available = ", ".join(f"--{option}" for option in self.option_names) or "none"
                raise UsageError(f"source {copy.source_name!r} has no option --{name}; its options: {available}")
        return self.read(copy, **options)


def clean_captions(*texts: str | None) -> tuple[str, ...]:
    """The texts that say something, each once, in one clean form."""
    return tuple(dict.fromkeys(filter(None, (normalise(text) for text in texts if text))))


def check_choice(option: str, value: Any, allowed: Iterable[Any]) -> None:
    """The one check for options that are one of a few."""
    if value not in allowed:
        raise UsageError(describe_unknown(f"--{option}", str(value), map(str, allowed)))


def file_kind_from_suffix(path: Path) -> MediaType | None:
    """The manifest's column for a file, by its ending."""
    suffix = path.suffix.lower()
    return next((kind for kind, endings in MEDIA_EXTENSIONS.items() if suffix in endings), None)


def hash_to_fraction(*names: str) -> float:
    """A number in [0, 1) that only the names decide, evenly spread: how data without official splits is split."""
    return int.from_bytes(hashlib.sha256("\0".join(names).encode("utf-8", "replace")).digest()[:8]) / 2**64


def split_by_hash(source: str, key: str, valid_fraction: float = 0.1, test_fraction: float = 0.2) -> str:
    """The split of a key that the data set itself gives none."""
    fraction = hash_to_fraction(source, key)
    return "test" if fraction < test_fraction else "valid" if fraction < test_fraction + valid_fraction else "train"


def assign_hash_splits(items: list[DraftItem], source: str, split_units: Mapping[str, str]) -> list[DraftItem]:
    """Give every row a split: 80 % train, 10 % valid and 10 % test of the rows, as near as whole units allow.

    A hash of the units decides their order. Test is filled from its beginning and valid from its end, with what fits: a
    few more rows change little. Where only larger units are left, the smallest is taken if that comes nearer, or if the
    split would be empty.
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
    """Names that share a link, directly or through others, share a group: each name -> the first name of its group.

    Two rows with the same caption are right answers to each other, and so are two rows with the same file.
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
    """Name a group that reaches over several splits once for each: answers are sought within one split."""
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
