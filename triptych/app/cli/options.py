"""Arguments and options that several commands share."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

Run = Annotated[Path, typer.Argument(help="Run folder or checkpoint file.")]
Split = Annotated[str, typer.Option(help="Split to use; 'all' for every row.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Override a recipe value: section.key=value.")]
AllowOutside = Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
MovedRoots = Annotated[
    list[str] | None,
    typer.Option("--root", metavar="NAME=PATH", help="Folder in which a root of the collection is now. Repeatable."),
]
MovedSpace = Annotated[
    str | None, typer.Option("--space", help="Space of the collection, if it was moved: as for `triptych index`.")
]
AllowPlugin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE", help="Allow the recipe or space to import plug-ins of this package. Can be repeated."
    ),
]


def accepts_plugins(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option --allow-plugin to a command that reads a recipe or a space."""

    @functools.wraps(command)
    def run_with_plugins(*args: Any, allow_plugin: AllowPlugin = None, **kwargs: Any) -> None:
        from triptych import plugins

        with plugins.allow(allow_plugin or ()):
            command(*args, **kwargs)

    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("allow_plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=AllowPlugin)
    parameters = [*signature.parameters.values(), option]
    run_with_plugins.__dict__["__signature__"] = signature.replace(parameters=parameters)
    run_with_plugins.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run_with_plugins
