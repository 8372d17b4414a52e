"""Assign locations to the items of a folder or manifest, and recognise folders that have moved by their content."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from triptych.data.cache import Cache
from triptych.errors import CollectionError, UsageError
from triptych.interfaces import Source
from triptych.search.item import Item, merge_items
from triptych.search.query import quote_sql
from triptych.search.roots import Roots
from triptych.search.store import Store

SAMPLE_SIZE = 16  # number of files of a root that are compared with the files of a folder


@dataclass(frozen=True)
class LocatedItems:
    """Items with locations, the location of their folder or manifest, and the roots of the collection with new roots.

    `moved` contains the previous path of each root that was recognised in another folder.
    """

    items: list[Item]
    origin: str
    roots: Roots
    moved: dict[str, Path | None]


def locate_items(
    store: Store, items: Iterable[Item], origin: Path, new_roots: Mapping[str, Path], cache: Cache
) -> LocatedItems:
    """Return the items of a folder or manifest with their locations.

    If no root contains the folder, the folder is a root that has moved or a new root. Files outside all roots, such as
    the targets of symbolic links, get roots of their own. `new_roots` contains names for new roots.
    """
    names = {path: name for name, path in new_roots.items()}
    resolved = origin.resolve()
    is_folder = resolved.is_dir() or not resolved.suffix
    folder = resolved if is_folder else resolved.parent
    given_folder = Path(os.path.abspath(origin if is_folder else origin.parent))  # noqa: PTH100 - keeps links
    roots, moved = store.roots, dict[str, Path | None]()
    if roots.find_location(folder) is None:
        name = find_moved_root(store, folder, cache)
        if name is not None:
            moved[name] = roots.paths[name]
            roots = roots.replace({name: folder})
        else:
            roots = roots.add(folder, names.get(folder))
    absolute_items = merge_items(_with_absolute_path(item, given_folder, folder) for item in items)
    outside = [path for item in absolute_items if (path := _file_outside(item, roots)) is not None]
    for path in _common_folders(outside):
        roots = roots.add(path, names.get(path))
    located = [
        replace(item, location=roots.find_location(item.source.content))
        if isinstance(item.source.content, Path)
        else item
        for item in absolute_items
    ]
    return LocatedItems(located, roots.find_location(resolved) or str(resolved), roots, moved)


def find_moved_root(store: Store, folder: Path, cache: Cache) -> str | None:
    """Return the name of a root whose folder has gone and whose files are in another folder; None if there is none."""
    for name in store.roots.missing_names():
        comparison = compare_files(store, name, folder, cache)
        if comparison.num_files and comparison.is_same_folder:
            return name
    return None


@dataclass(frozen=True)
class FileComparison:
    """The result of a comparison of a sample of the files of a root with the files in a folder."""

    num_files: int
    differing: list[str]  # paths in the root of files that are missing or differ

    @property
    def is_same_folder(self) -> bool:
        """Whether the folder contains at least half of the files with the same content."""
        return 2 * len(self.differing) <= self.num_files


def compare_files(store: Store, name: str, folder: Path, cache: Cache) -> FileComparison:
    """Compare the content of at most SAMPLE_SIZE files of a root with the files at the same paths in a folder."""
    rows = _sample_rows(store, name)
    locations = [row["file"].removeprefix(f"{name}/") for row in rows]
    trial = Roots({name: folder})
    sources = [Source(row["modality"], trial.find_path(row["file"]), row["start"], row["end"]) for row in rows]
    keys = cache.content_keys(sources)
    is_equal = [
        isinstance(key, bytes) and key.hex() == row["content_hash"] for key, row in zip(keys, rows, strict=True)
    ]
    return FileComparison(len(rows), [loc for loc, equal in zip(locations, is_equal, strict=True) if not equal])


def check_moved_roots(store: Store, roots: Mapping[str, Path], cache: Cache) -> None:
    """Raise a CollectionError if the files of a root are not in its new folder, a UsageError for an unknown root."""
    store.roots.check_names(roots)
    for name, folder in roots.items():
        owner = store.roots.find_location(folder)
        if owner is not None and owner in store.roots.paths and owner != name:
            raise UsageError(f"--root {name}={folder}: this is the folder of the root {owner!r}; one name per folder")
        comparison = compare_files(store, name, folder, cache)
        if not comparison.is_same_folder:
            count, total = len(comparison.differing), comparison.num_files
            raise CollectionError(
                f"--root {name}={folder}: {count} of {total} compared files are missing there or differ "
                f"from those indexed, such as {comparison.differing[0]}; give the folder that contains them. If "
                f"the files have changed, index {folder} instead"
            )


def describe_missing_roots(store: Store) -> list[str]:
    """Return a sentence for each root that contains files but whose folder is missing, with the command to type."""
    sentences, command = list[str](), shlex.join(["triptych", "collection", "relocate", store.uri, "--root"])
    for name in store.roots.missing_names():
        count = store.count(make_root_condition(name))
        path = store.roots.paths[name]
        problem = f"its folder {path} does not exist" if path else "its folder is not known on this machine"
        if count:
            remedy = f"say where it is: {command} {shlex.quote(name)}=FOLDER"
            sentences.append(f"root {name}: {problem} ({count} items); {remedy}")
    return sentences


def make_root_condition(name: str) -> str:
    """Return the SQL condition for the items whose file is in a root."""
    return f"starts_with(file, {quote_sql(f'{name}/')})"


def _sample_rows(store: Store, name: str) -> list[dict[str, Any]]:
    """Return a row of each of SAMPLE_SIZE files of a root, spread over the collection: the same rows each time."""
    row_ids = np.sort(store.select_rows(["row_id"], make_root_condition(name))["row_id"].to_numpy())
    chosen = row_ids[np.unique(np.linspace(0, len(row_ids) - 1, min(SAMPLE_SIZE, len(row_ids))).astype(int))]
    rows = store.take(["modality", "file", "start", "end", "content_hash"], chosen)
    return list({rows[row_id]["file"]: rows[row_id] for row_id in sorted(rows)}.values())  # one segment of each file


def _with_absolute_path(item: Item, given_folder: Path, folder: Path) -> Item:
    """Return the item with an absolute path. The folder of a manifest is resolved, but no link in this folder is."""
    path = item.source.content
    if not isinstance(path, Path):
        return item
    absolute = path.absolute()
    if ".." in absolute.parts:
        absolute = absolute.parent.resolve() / absolute.name
    if given_folder != folder and absolute.is_relative_to(given_folder):
        absolute = folder / absolute.relative_to(given_folder)
    return item if absolute == path else replace(item, source=replace(item.source, content=absolute))


def _file_outside(item: Item, roots: Roots) -> Path | None:
    path = item.source.content
    return path if isinstance(path, Path) and roots.find_location(path) is None else None


def _common_folders(paths: Sequence[Path]) -> list[Path]:
    """Return folders that contain all files: the common folder of the files below each folder at the top."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    for path in paths:
        groups.setdefault(path.parent.parts[:2], []).append(path.parent)
    return [Path(os.path.commonpath(folders)) for _, folders in sorted(groups.items())]
