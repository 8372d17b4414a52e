"""Checks of command-line arguments that answer before libraries are imported that take seconds.

The checks only find what is missing. The functions that the commands call check everything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from triptych.errors import UsageError

Name = TypeVar("Name", str, Path, str | None, Path | None)
Paths = TypeVar("Paths", Path, Path | None, list[Path] | None)


def check_collection(uri: str) -> str:
    """Raise CollectionError if a folder contains no collection."""
    from triptych.search import collection_folder

    collection_folder.check_collection(uri)
    return uri


def check_media(path: Path) -> Path:
    """Raise UsageError if there is no such folder or file to index."""
    if not path.expanduser().exists():
        raise UsageError(f"{path}: no such folder or file; give a folder of media files, one file, or a manifest")
    return path


def check_query_files(paths: list[Path] | None) -> list[Path] | None:
    """Raise UsageError if a query file does not exist."""
    for path in paths or ():
        if not path.expanduser().exists():
            raise UsageError(f"{path}: no such file")
    return paths


def check_space(name: Name) -> Name:
    """Raise CheckpointError if a space, a run folder or a folder of a model does not exist."""
    from triptych.spaces import presence

    if name is not None:
        presence.check_space(name)
    return name


def check_spaces(names: list[str]) -> list[str]:
    """Raise CheckpointError if one of several spaces does not exist."""
    for name in names:
        check_space(name)
    return names


def check_manifests(paths: Paths) -> Paths:
    """Raise ManifestError if a manifest does not exist."""
    from triptych.data.manifest import find_manifest_file

    manifests: Iterable[Path] = [paths] if isinstance(paths, Path) else paths or ()
    for path in manifests:
        find_manifest_file(path.expanduser())
    return paths


def check_recipe(name: str | None) -> str | None:
    """Raise RecipeError if there is no bundled recipe and no TOML file of this name."""
    from triptych.recipe_files import find_recipe_file

    if name is not None:
        find_recipe_file(name)
    return name


def check_folder(folder: Path) -> Path:
    """Raise UsageError if a folder does not exist."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    return folder


def check_runs(folder: Path) -> Path:
    """Raise UsageError if the folder of training runs does not exist."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; `triptych train` writes its runs to runs/ by default")
    return folder
