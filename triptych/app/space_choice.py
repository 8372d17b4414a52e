"""Choose the space of `triptych index`, set the default space, and print the list of spaces."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from triptych import hub
from triptych.app import terminal
from triptych.errors import CheckpointError
from triptych.progress import notify
from triptych.search import collection_folder
from triptych.search.lease import local_folder
from triptych.spaces.default import choose_default_space
from triptych.spaces.known import STARTER, KnownSpace
from triptych.spaces.presence import COMPOSITE_SEPARATOR, SETTINGS_SEPARATOR, split_names
from triptych.spaces.user_config import write_configured_space

FETCH_STARTER = f"triptych encoders fetch {STARTER}"

if TYPE_CHECKING:
    from triptych.interfaces import Modality
    from triptych.spaces.catalogue import SpaceInfo


def choose_space(uri: str) -> str | None:
    """Return the default space for a new collection; None for an existing collection, which keeps its space."""
    if collection_folder.has_collection(uri) or _is_on_object_store(uri):
        return None
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    name = choose_default_space(_confirm if is_terminal else None)
    if name == STARTER and is_terminal:
        offer_starter_weights()
    return name


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
    return write_configured_space(COMPOSITE_SEPARATOR.join(map(_prepare, split_names(name))))


def _prepare(name: str) -> str:
    """Return a name that is valid in every working folder. Download a model of the hub that is not in the cache."""
    if name == STARTER:
        return name
    if not name.startswith(hub.MODEL_PREFIXES):
        return str(Path(name).expanduser().resolve())
    from triptych.checkpoint import resolve_path
    from triptych.encoders.joint_models import find_model

    resolve_path(name)
    location = name[len(hub.HUB_PREFIX) :].partition(SETTINGS_SEPARATOR)[0]
    return str(find_model(name)) if Path(location).expanduser().is_dir() else name


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
    """Return the facts about the starter space, and the command that adds its missing modalities."""
    from triptych.encoders import ENCODERS
    from triptych.encoders.catalogue import describe_encoder
    from triptych.interfaces import MODALITIES
    from triptych.recipe import Recipe
    from triptych.starter import find_missing_modalities

    space = Recipe.load(STARTER).space
    encoders = [describe_encoder(c.name, ENCODERS[c.name]) for c in space.encoders.values()]
    licences = ", ".join(dict.fromkeys(encoder.licence for encoder in encoders))
    parameters = round(sum(encoder.parameters or 0 for encoder in encoders) / 1e6)
    modalities: tuple[Modality, ...] = tuple(m for m in MODALITIES if m in space.encoders)
    known = KnownSpace(STARTER, modalities, space.embed_dim, parameters, licences)
    return known, (FETCH_STARTER,) if find_missing_modalities() else ()


def offer_starter_weights() -> None:
    """Ask on a terminal whether to download the weights that the starter space lacks. An error is only printed."""
    from triptych.encoders import ENCODERS
    from triptych.encoders.fetch import fetch_weights
    from triptych.recipe import Recipe
    from triptych.starter import find_missing_modalities

    missing, encoders = find_missing_modalities(), Recipe.load(STARTER).space.encoders
    for modality in missing:
        encoder = ENCODERS[encoders[modality].name]
        if _confirm(f"the starter space has no {modality}: download {encoder.origin} (licence {encoder.licence})?"):
            try:
                fetch_weights(encoder)
            except CheckpointError as error:
                notify(str(error))
