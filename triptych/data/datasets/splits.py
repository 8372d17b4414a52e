"""Groups and splits of draft items. Datasets without official splits are split by a hash."""

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from triptych.data.datasets.draft import DraftItem

# Split names that datasets use -> split names in manifests.
SPLIT_ALIASES = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLIT_ALIASES |= dict.fromkeys(("valid", "validation", "val", "dev"), "valid")
HELD_OUT_FRACTION = 0.1  # fraction of the rows in each of valid and test, if a dataset has no splits


def hash_to_fraction(*names: str) -> float:
    """Hash names to a number in [0, 1). Hashes of different names are uniformly distributed."""
    return int.from_bytes(hashlib.sha256("\0".join(names).encode("utf-8", "replace")).digest()[:8]) / 2**64


def split_by_hash(dataset: str, key: str) -> str:
    """Return test (20 %), valid (10 %) or train, depending on a hash of `key`."""
    fraction = hash_to_fraction(dataset, key)
    return "test" if fraction < 0.2 else "valid" if fraction < 0.2 + 0.1 else "train"


def assign_hash_splits(items: list[DraftItem], dataset: str, split_units: Mapping[str, str]) -> list[DraftItem]:
    """Assign 80 % of the rows to train, 10 % to valid and 10 % to test, as closely as whole units allow.

    A unit is a set of rows that must be in one split. Units are sorted by hash. Test takes units from the beginning of
    this order and valid from the end, so that new rows move few other rows. Units that do not fit are skipped. If all
    remaining units are too large, a split takes the smallest unit if the split is then closer to its target size or
    would otherwise be empty.
    """
    unit_of = {item.id: split_units.get(item.id) or item.group or item.id for item in items}
    sizes = Counter(unit_of.values())
    order = sorted(sizes, key=lambda unit: hash_to_fraction(dataset, unit))
    target = max(1, round(HELD_OUT_FRACTION * len(items)))
    remaining, unit_splits = {"valid": target, "test": target} if len(sizes) > 2 else {}, dict[str, str]()
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
        is_closer = sizes[smallest] < 2 * missing_rows or missing_rows == target
        if len(unassigned) > 1 and missing_rows and is_closer:
            unit_splits[smallest] = split
    return [replace(item, split=unit_splits.get(unit_of[item.id], "train")) for item in items]


def find_connected_groups(links: Mapping[str, Iterable[object]]) -> dict[str, str]:
    """Return the connected components of names that share links: each name -> the first name of its component.

    Links are captions or files. Rows that share a caption or a file are positives of each other.
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
    """Rename groups that occur in several splits, so that no group crosses splits. Retrieval stays within a split."""
    items = list(items)
    splits: dict[str, set[str | None]] = {}
    for item in items:
        if item.group is not None:
            splits.setdefault(item.group, set()).add(item.split)
    shared = {group for group, names in splits.items() if len(names) > 1}
    return [
        replace(item, group=f"{item.group} ({item.split or 'no split'})") if item.group in shared else item
        for item in items
    ]
