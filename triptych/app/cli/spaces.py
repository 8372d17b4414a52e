"""The `triptych spaces` commands: list the spaces that need no training, and choose the default space."""

from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import AsJson

spaces = typer.Typer(rich_markup_mode="rich")

Name = Annotated[
    str, typer.Argument(help="starter, hf:NAME, st:NAME, or a run folder or space file.", callback=checks.check_space)
]


@spaces.callback(invoke_without_command=True)
def list_all(context: typer.Context, as_json: AsJson = False) -> None:
    """List the spaces that need no training: modalities, dimension, licence, figures, and how to get each space.

    `triptych index` without --space uses the default space (*). `triptych runs` lists the spaces that you trained.

    \b
    Examples:
      triptych spaces
      triptych spaces --json
      triptych spaces use starter
      triptych spaces use hf:google/embeddinggemma-2
    """
    if context.invoked_subcommand is not None:
        return
    from triptych.app import space_choice, terminal
    from triptych.spaces.catalogue import list_spaces

    infos = list_spaces(*space_choice.describe_starter())
    terminal.print_results(infos, as_json, space_choice.print_spaces)


@spaces.command("use", no_args_is_help=True)
def use(name: Name) -> None:
    """Make a space the default of later commands. A model of the hub is downloaded, if necessary.

    The name is stored in config.toml in your configuration folder. Existing collections keep their space. The
    environment variable TRIPTYCH_SPACE replaces the stored name.

    \b
    Examples:
      triptych spaces use hf:google/embeddinggemma-2
      triptych spaces use runs/mine
    """
    from triptych.app import space_choice

    path = space_choice.use_space(name)
    typer.echo(f"the default space is {name} (stored in {path})")


@spaces.command("reset")
def reset() -> None:
    """Forget the space of `triptych spaces use`.

    \b
    Examples:
      triptych spaces reset
    """
    from triptych.spaces.user_config import clear_configured_space, config_path

    state = "deleted" if clear_configured_space() else "no such file"
    typer.echo(f"{config_path()}: {state}")
