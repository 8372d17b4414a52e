"""The roots of a collection: named folders. Items store the name of a root and a path in it, so that folders can move.

Such a portable path is called a location, for example "recordings/field/rain.wav" for a file in the root "recordings".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from triptych.errors import CollectionError, UsageError, describe_unknown

NAME_PATTERN = re.compile(r"[^/\\=\x00-\x1f\x7f]{1,100}")
UNSAFE_IN_NAME = re.compile(r"[/\\=:\x00-\x1f\x7f]")  # replaced if the name of a folder becomes the name of a root


class Roots:
    """The folders of a collection by name. A path is None if the folder is not known, as after an import.

    Roots may be nested: a file belongs to the deepest root that contains it.
    """

    def __init__(self, paths: Mapping[str, Path | None] | None = None) -> None:
        self.paths: dict[str, Path | None] = dict(paths or {})
        self._names = {str(path): name for name, path in self.paths.items() if path is not None}
        self._prefixes: dict[str, str | None] = {}  # location of a folder, for the folders that were looked up

    def find_location(self, path: Path) -> str | None:
        """Return the location of an absolute path in the deepest root that contains it; None if no root contains it."""
        if str(path) in self._names:
            return self._names[str(path)]
        prefix = self._find_prefix(path.parent)
        return None if prefix is None else f"{prefix}/{path.name}"

    def _find_prefix(self, folder: Path) -> str | None:
        key = str(folder)
        if key not in self._prefixes:
            if key in self._names:
                self._prefixes[key] = self._names[key]
            elif folder.parent == folder:
                self._prefixes[key] = None
            else:
                outer = self._find_prefix(folder.parent)
                self._prefixes[key] = None if outer is None else f"{outer}/{folder.name}"
        return self._prefixes[key]

    def find_path(self, location: str) -> Path:
        """Return the path of a location. If the folder of the root is not known, return the location as a path.

        Raise a CollectionError if the location leaves its root, or if there is no such root.
        """
        name, *parts = location.split("/")
        if name not in self.paths or any(map(_is_unsafe, parts)):
            problem = f"the path {location[:200]!r} of an item is not in a root of the collection"
            raise CollectionError(f"{problem}; the collection is damaged: index again with --rebuild")
        return Path(self.paths[name] or name, *parts)

    def is_missing(self, name: str) -> bool:
        """Return whether the folder of a root is not known or does not exist."""
        path = self.paths[name]
        return path is None or not path.is_dir()

    def missing_names(self) -> list[str]:
        """Return the names of the roots whose folder is not known or does not exist."""
        return sorted(name for name in self.paths if self.is_missing(name))

    def replace(self, moved: Mapping[str, Path]) -> Roots:
        """Return the roots with other folders for existing names. A root inside a moved root moves with it."""
        paths = dict(self.paths)
        for name, path in self.paths.items():
            outer_names = [n for n in moved if path is not None and _contains(self.paths.get(n), path)]
            if name in moved:
                paths[name] = moved[name]
            elif path is not None and outer_names:
                outer = max(outer_names, key=lambda n: len(str(self.paths[n])))
                paths[name] = moved[outer] / path.relative_to(self.paths[outer] or "")
        return Roots(paths)

    def add(self, path: Path, name: str | None = None) -> Roots:
        """Return the roots with one more folder. By default, the root has the name of the folder, made unique."""
        stem = name or UNSAFE_IN_NAME.sub("-", path.name)[:80].strip() or "root"
        names = (stem if number == 1 else f"{stem}-{number}" for number in range(1, len(self.paths) + 2))
        return Roots({**self.paths, next(n for n in names if n not in self.paths): path})

    def check_names(self, names: Iterable[str]) -> None:
        """Raise a UsageError if there is no root with one of these names."""
        for name in names:
            if name not in self.paths:
                raise UsageError(f"--root: {describe_unknown('root', name, sorted(self.paths))}")

    def find_locations_below(self, folder: str | Path) -> list[str]:
        """Return the locations whose files are in a folder: the folder in its root, and the roots inside the folder.

        A folder that no root contains may be given as a location, for example "recordings/field".
        """
        path = Path(folder).expanduser().resolve()
        location = self.find_location(path)
        locations = [] if location is None else [location]
        locations += [n for n, p in self.paths.items() if p is not None and p != path and p.is_relative_to(path)]
        text = Path(folder).as_posix().rstrip("/")
        return locations or ([text] if text.partition("/")[0] in self.paths else [])


def is_root_name(name: str) -> bool:
    """Return whether a root may have this name."""
    return NAME_PATTERN.fullmatch(name) is not None and name not in {".", ".."}


def parse_roots(pairs: Iterable[str]) -> dict[str, Path]:
    """Parse the values of --root, each of the form NAME=PATH. Raise a UsageError if a name or a path occurs twice."""
    roots: dict[str, Path] = {}
    for pair in pairs:
        name, separator, path = pair.partition("=")
        if not separator or not path:
            raise UsageError(f"--root {pair}: write NAME=PATH")
        if name in roots:
            raise UsageError(f"--root {pair}: two folders for the root {name!r}; give --root {name}=PATH once")
        roots[name] = Path(path)
    return resolve_roots(roots)


def resolve_roots(paths: Mapping[str, str | Path]) -> dict[str, Path]:
    """Return the absolute paths of root folders. Raise a UsageError for an invalid name or a folder that is missing."""
    roots: dict[str, Path] = {}
    for name, path in paths.items():
        if not is_root_name(name):
            raise UsageError(
                f"--root {name}={path}: {name!r} is not a name; use letters and digits, without / \\ and ="
            )
        resolved = Path(path).expanduser().resolve()
        if not resolved.is_dir():
            raise UsageError(f"--root {name}={path}: no such folder")
        if resolved in roots.values():
            raise UsageError(f"--root {name}={path}: another --root has the same folder; give each folder one name")
        roots[name] = resolved
    return roots


def encode_roots(roots: Roots, folder: Path | None) -> dict[str, dict[str, str]]:
    """Return the roots for JSON: the path of each, and the path relative to the folder of the collection."""
    records: dict[str, dict[str, str]] = {}
    for name, path in roots.paths.items():
        records[name] = {} if path is None else {"path": str(path)}
        if path is not None and folder is not None:
            try:
                records[name]["relative"] = Path(os.path.relpath(path, folder.resolve())).as_posix()
            except ValueError:  # another drive of Windows
                continue
    return records


def decode_roots(records: Mapping[str, Mapping[str, str]], folder: Path | None) -> Roots:
    """Return the roots from JSON.

    If the folder of a root has gone, but a folder is at the same place relative to the collection, the root is there:
    the collection was moved together with its files.
    """
    paths: dict[str, Path | None] = {}
    for name, record in records.items():
        path = Path(record["path"]) if record.get("path") else None
        relative = record.get("relative")
        if folder is not None and relative is not None and (path is None or not path.is_dir()):
            candidate = (folder / relative).resolve()
            path = candidate if candidate.is_dir() else path
        paths[name] = path
    return Roots(paths)


def _is_unsafe(part: str) -> bool:
    return part in {"", ".", ".."} or "\0" in part or (os.name == "nt" and bool(re.search(r"[\\:]", part)))


def _contains(outer: Path | None, inner: Path) -> bool:
    return outer is not None and inner != outer and inner.is_relative_to(outer)
