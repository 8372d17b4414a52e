"""The arguments of `train`: the recipe with its overrides, the run folder and the data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path

from triptych.data.materialise import MANIFEST_FILE, materialised
from triptych.data.tables import TABLE_EXTENSIONS
from triptych.data.tables_in_memory import DataLike, is_manifest_path
from triptych.errors import UsageError
from triptych.files import remove_if_unused
from triptych.recipe import Recipe
from triptych.training.distributed import DistributedContext
from triptych.training.run_directory import DATA_FOLDER, ENVIRONMENT_FILE, LAST_FILE, check_foreign_files
from triptych.training.run_lock import lock_folder
from triptych.training.warm_start import make_recipe


def resolve_recipe(
    recipe: Recipe | str | PathLike[str] | None,
    overrides: Sequence[str] = (),
    init: str | PathLike[str] | None = None,
    **settings: float | None,
) -> Recipe:
    """Return the recipe with its overrides. `settings` are values of the table [training]; None keeps the value.

    Without a recipe, the default recipe of the ready space `init` is used.

    Example:
        >>> resolve_recipe("trimodal", ["space.embed_dim=64"], epochs=3).training.epochs
        3
    """
    if init is not None and not isinstance(init, str | PathLike):
        raise UsageError(f"init is {type(init).__name__}; give the name or the path of a space")
    if recipe is None and init is not None:
        recipe = make_recipe(str(init))
    if not isinstance(recipe, Recipe | str | PathLike):
        raise UsageError(f"recipe is {type(recipe).__name__}; give the name of a recipe, a TOML file or a Recipe")
    if isinstance(overrides, str):
        raise UsageError(f"overrides is a string; give a list: [{overrides!r}]")
    changes = [*overrides, *(f"training.{name}={value}" for name, value in settings.items() if value is not None)]
    changes += [f"training.init={json.dumps(str(init))}"] if init is not None else []
    if not isinstance(recipe, Recipe):
        return Recipe.load(recipe if isinstance(recipe, str) else Path(recipe), changes)
    return Recipe.parse(recipe.to_toml(), changes, f"recipe {recipe.name}") if changes else recipe


def resolve_output(output: str | PathLike[str] | None, recipe: Recipe) -> Path:
    """Return the run folder; by default runs/NAME with the name of the recipe."""
    if output is None:
        return Path("runs") / recipe.name
    if not isinstance(output, str | PathLike) or Path(output).suffix.lower() in TABLE_EXTENSIONS:
        name = repr(output) if isinstance(output, str) else type(output).__name__
        raise UsageError(f"output is {name}, but must be the run folder; give the data as data=…")
    return Path(output)


@contextmanager
def attach_data(
    recipe: Recipe,
    data: DataLike | None,
    folder: Path,
    restart: bool,
    allow_outside: bool,
    context: DistributedContext,
    show_progress: bool,
) -> Iterator[Recipe]:
    """Yield the recipe with the manifest of the data. Python data is written to the run folder first.

    If the block raises before training starts, data that was written is removed.
    """
    manifests = _list_manifests(data)
    if manifests is not None:
        yield recipe.with_manifests(manifests, allow_outside)
        return
    assert data is not None  # noqa: S101 - _list_manifests returns a list for None
    needs_allow_outside = False
    with ExitStack() as stack:
        if context.is_main:
            check_foreign_files(folder)
            can_replace, is_used = restart or not (folder / LAST_FILE).exists(), (folder / ENVIRONMENT_FILE).exists
            stack.enter_context(remove_if_unused(folder))
            with lock_folder(folder):
                written = stack.enter_context(
                    materialised(data, folder / DATA_FOLDER, can_replace, is_used, show_progress)
                )
            needs_allow_outside = written.needs_allow_outside
        needs_allow_outside = bool(context.broadcast(needs_allow_outside))
        yield recipe.with_manifests([folder / DATA_FOLDER / MANIFEST_FILE], needs_allow_outside)


def _list_manifests(data: DataLike | None) -> list[str] | None:
    """Return the paths of manifests; [] to keep the recipe's manifests, or None if data is Python data."""
    if data is None:
        return []
    if is_manifest_path(data):
        return [str(data)]
    if isinstance(data, list | tuple) and data and all(map(is_manifest_path, data)):
        return [str(path) for path in data]
    return None
