"""Choose the space of `triptych index`, set the default space, and print the list of spaces."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from triptych import hub
from triptych.app import terminal
from triptych.search import presence
from triptych.search.lease import local_folder
from triptych.spaces.default import choose_default_space
from triptych.spaces.known import STARTER, KnownSpace
from triptych.spaces.presence import COMPOSITE_SEPARATOR
from triptych.spaces.user_config import write_configured_space

if TYPE_CHECKING:
    from triptych.spaces.catalogue import SpaceInfo


def choose_space(uri: str) -> str | None:
    """Return the default space for a new collection; None for an existing collection, which keeps its space."""
    if presence.has_collection(uri) or _is_on_object_store(uri):
        return None
    return choose_default_space(_confirm if sys.stdin.isatty() and sys.stderr.isatty() else None)


def _is_on_object_store(uri: str) -> bool:
    """Return whether the collection is on an object store. Unlike a folder, a store needs slow imports."""
    if local_folder(uri) is not None:
        return False
    from triptych.search.store import Store

    return Store.open(uri) is not None


def _confirm(question: str) -> bool:
    return typer.confirm(question, default=True, err=True)


def use_space(name: str) -> Path:
    """Make a space the default, and return the path of the configuration file. Models of the hub are downloaded."""
    parts = name.split(COMPOSITE_SEPARATOR) if not Path(name).expanduser().exists() else [name]
    return write_configured_space(COMPOSITE_SEPARATOR.join(_prepare(part.strip()) for part in parts))


def _prepare(name: str) -> str:
    """Return a name that is valid in every working folder. Download a model of the hub that is not in the cache."""
    if name == STARTER:
        return name
    if not name.startswith(hub.MODEL_PREFIXES):
        return str(Path(name).expanduser().resolve())
    from triptych.checkpoint import resolve_path

    resolve_path(name)
    return name


def print_spaces(infos: Sequence[SpaceInfo]) -> None:
    """Print a table of spaces, our figures for them, and the commands that make the others ready."""
    headings = ("", "space", "modalities", "dim", "parameters", "licence", "ready")
    table = terminal.make_table(headings, {"", "space", "modalities", "licence", "ready"}, no_wrap=False)
    table.columns[1].overflow = "fold"
    for info in infos:
        parameters = "–" if info.million_parameters is None else f"{info.million_parameters} M"
        dim, mark = "–" if info.embed_dim is None else str(info.embed_dim), "*" if info.is_default else ""
        ready = "no" if info.needs else "yes"
        modalities = ", ".join(info.modalities) or "–"
        table.add_row(mark, info.name, modalities, dim, parameters, info.licence or "–", ready)
    terminal.stdout.print(table)
    for info in infos:
        for figure in info.measurements:
            terminal.stdout.print(
                f"{info.name}: {figure.metric} {figure.percent:.1f}% on {figure.data} ({figure.command})"
            )
    unmeasured = [info.name for info in infos if not info.measurements]
    if unmeasured:
        terminal.stdout.print(f"without figures of ours: {', '.join(unmeasured)}")
    for info in infos:
        if info.needs:
            terminal.stdout.print(f"to use {info.name}: {' && '.join(info.needs)}")
    terminal.stdout.print("*: the default space; change it with `triptych spaces use NAME`")


def describe_starter() -> tuple[KnownSpace, tuple[str, ...]]:
    """Return the facts about the starter space, and the commands that make it ready."""
    return KnownSpace(STARTER, ("image", "audio", "text"), 384, 27, "Apache-2.0, MIT"), ()
