"""Terminal output of the `triptych collection` commands, and notes about folders of a collection that are missing."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.app.terminal import format_command, relative_path, stderr, stdout

if TYPE_CHECKING:
    from triptych.search.archive import ArchiveHeader
    from triptych.search.collection import Collection
    from triptych.search.collection_info import CollectionContents


def print_missing_roots(collection: Collection) -> None:
    """Check the given roots, and print a note for each root whose folder is missing, with the command to type."""
    collection.check_root_names()
    for sentence in collection.describe_missing_roots():
        stderr.print(sentence, style="yellow")


def print_collection(info: CollectionContents) -> None:
    """Print the contents of a collection, and the command for roots that are missing."""
    counts = ", ".join(f"{count:,} {modality}" for modality, count in info.items.items())
    stdout.print(f"{info.uri}: {sum(info.items.values()):,} items ({counts or 'none'})")
    stdout.print(f"  size      {format_size(info.size)}, format {info.format_version}")
    copy = "not in the collection" if info.space_copy_size is None else f"copy of {format_size(info.space_copy_size)}"
    revision = f", revision {info.space_revision}" if info.space_revision else ""
    stdout.print(f"  space     {info.space or 'no path'} ({copy}{revision}, fingerprint {info.fingerprint})")
    for root in info.roots:
        state = " (missing)" if root.is_missing else ""
        stdout.print(f"  root      {root.name} = {root.path or 'not known'}{state}, {root.num_items:,} items")
    for root in info.roots:
        if root.is_missing and root.num_items:
            stderr.print(f"root {root.name} is missing: {suggest_relocation(info.uri, root.name)}", style="yellow")


def print_exported(path: Path, header: ArchiveHeader) -> None:
    """Print what an exported file contains, and how to import it."""
    size = format_size(path.expanduser().stat().st_size)
    stdout.print(f"{relative_path(path)}: {header.num_items:,} items, {size}, {_describe_space(header)}")
    stderr.print(f"next, on another machine: {format_command('collection', 'import', path.name, '-o', 'collection')}")


def print_imported(uri: str, header: ArchiveHeader, known_roots: Container[str]) -> None:
    """Print what was imported, and the commands for roots and spaces that are not known on this machine."""
    stdout.print(f"{uri}: {header.num_items:,} items, {_describe_space(header)}")
    for name in header.roots:
        if name not in known_roots:
            stderr.print(f"where is the folder {name}? {suggest_relocation(uri, name)}", style="yellow")
    if not header.contains_space and not header.space_path:
        command = format_command("collection", "relocate", uri, "--space")
        stderr.print(f"give the space with fingerprint {header.fingerprint}: {command} PATH", style="yellow")


def suggest_relocation(uri: str, root: str) -> str:
    """Return the command that stores the folder of a root."""
    return f"{format_command('collection', 'relocate', uri, '--root', root)}=FOLDER"


def format_size(num_bytes: int) -> str:
    """Format a number of bytes, for example 1.4 MB."""
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:,.1f} kB"


def _describe_space(header: ArchiveHeader) -> str:
    if header.contains_space:
        return "with the space"
    return f"without the space {header.space_path}".rstrip()
