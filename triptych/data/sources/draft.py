"""What a source makes of a local copy of a data set: rows that are not yet written, and what was left out of them."""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from triptych.data.columns import ENDINGS, FileKind
from triptych.data.sources.local import Copy
from triptych.errors import UsageError, unknown
from triptych.media.text import normalise

# What data sets call their splits, and what we call them.
SPLITS = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
    "testing": "test",
}


HELD_OUT = 0.1  # share of the rows in valid, and in test, where the data set names no splits


@dataclass(frozen=True)
class Item:
    """One row of the manifest to be."""

    id: str
    files: Mapping[FileKind, Path] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    group: str | None = None
    split: str | None = None
    label: str | None = None
    start: float | None = None  # seconds: the moment of the sound or film that is meant
    end: float | None = None

    @property
    def pairs(self) -> bool:
        """Whether anything in it belongs with anything else; a film is sound and pictures at once."""
        return len(self.files) + bool(self.texts) + ("video" in self.files) > 1


@dataclass(frozen=True)
class Draft:
    """Everything a source found. `left_out` says of what kind how many were not taken; `notes` are for the user.

    Where `units` is given and no item names a split, the rows are divided into splits once it is clear which of them
    can be used: rows of one unit (id -> unit; its group unless given, else the row itself) stay in one split.
    """

    items: list[Item]
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    units: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Dataset:
    """A kind of local copy we can read: an entry of SOURCES."""

    title: str  # what it is, in a few words
    pairs: str  # what belongs together in it
    expects: tuple[str, ...]  # what its local copy holds, a line each
    licence: str
    read: Callable[..., Draft]  # (copy, *, options …)
    home: Path | None = None  # where it lies when it is installed as a package
    is_personal: bool = False  # a user's own files: nothing is written among them unless asked

    @property
    def options(self) -> tuple[str, ...]:
        """The options its reading knows."""
        parameters = inspect.signature(self.read).parameters.values()
        return tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)

    def draft(self, copy: Copy, options: Mapping[str, Any]) -> Draft:
        """Read a copy; an option that means nothing here is an error, not ignored."""
        for name in options:
            if name not in self.options:
                own = ", ".join(f"--{known}" for known in self.options) or "none"
                raise UsageError(f"source {copy.source!r} has no option --{name}; its options: {own}")
        return self.read(copy, **options)


def captions(*texts: str | None) -> tuple[str, ...]:
    """The texts that say something, each once, in one clean form."""
    return tuple(dict.fromkeys(filter(None, (normalise(text) for text in texts if text))))


def choose(option: str, value: Any, allowed: Iterable[Any]) -> None:
    """The one check for options that are one of a few."""
    if value not in allowed:
        raise UsageError(unknown(f"--{option}", str(value), map(str, allowed)))


def kind_of(path: Path) -> FileKind | None:
    """The manifest's column for a file, by its ending."""
    ending = path.suffix.lower()
    return next((kind for kind, endings in ENDINGS.items() if ending in endings), None)


def share(*names: str) -> float:
    """A number in [0, 1) that only the names decide, evenly spread: how data without official splits is split."""
    return int.from_bytes(hashlib.sha256("\0".join(names).encode("utf-8", "replace")).digest()[:8]) / 2**64


def split_of(source: str, key: str, valid: float = 0.1, test: float = 0.2) -> str:
    """The split of a key that the data set itself gives none."""
    place = share(source, key)
    return "test" if place < test else "valid" if place < test + valid else "train"


def divide(items: list[Item], source: str, units: Mapping[str, str]) -> list[Item]:
    """Give every row a split: 80 % train, 10 % valid and 10 % test of the rows, as near as whole units allow.

    A hash of the units decides their order. Test is filled from its beginning and valid from its end, with what fits: a
    few more rows change little. Where only larger units are left, the smallest is taken if that comes nearer, or if the
    split would be empty.
    """
    unit_of = {item.id: units.get(item.id) or item.group or item.id for item in items}
    sizes = Counter(unit_of.values())
    order = sorted(sizes, key=lambda unit: share(source, unit))
    wanted = {split: max(1, round(HELD_OUT * len(items))) for split in ("valid", "test")} if len(sizes) > 2 else {}
    room, chosen = dict(wanted), dict[str, str]()
    waiting = deque(order)
    while waiting and any(room.values()):
        split = max(room, key=lambda name: room[name])
        unit = waiting.popleft() if split == "test" else waiting.pop()
        if sizes[unit] <= room[split]:
            chosen[unit] = split
            room[split] -= sizes[unit]
    for split, left in room.items():
        rest = [unit for unit in order if unit not in chosen]
        smallest = min(rest, key=lambda unit: sizes[unit])
        if len(rest) > 1 and left and (sizes[smallest] < 2 * left or left == wanted[split]):
            chosen[smallest] = split
    return [replace(item, split=chosen.get(unit_of[item.id], "train")) for item in items]


def link(links: Mapping[str, Iterable[object]]) -> dict[str, str]:
    """Names that share a link, directly or through others, share a group: each name -> the first name of its group.

    Two rows with the same caption are right answers to each other, and so are two rows with the same file.
    """
    leader = {name: name for name in links}

    def first(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    owner: dict[object, str] = {}
    for name, values in links.items():
        for value in values:
            one, other = sorted((first(name), first(owner.setdefault(value, name))))
            leader[other] = one
    return {name: first(name) for name in links}


def part_groups(items: Iterable[Item]) -> list[Item]:
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
