"""Arguments and options that several commands share."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, cast

import typer

from triptych.app import checks

# A string, not a path: the space "starter" is not the folder "./starter".
Run = Annotated[
    str,
    typer.Argument(help="Run folder, checkpoint file, or a name in `triptych spaces`.", callback=checks.check_space),
]
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
Device = Annotated[
    str,
    typer.Option(help="auto (cuda, else mps, else cpu), cpu, cuda, cuda:1, mps. Default: $TRIPTYCH_DEVICE or auto."),
]
Precision = Annotated[str, typer.Option(help="Precision of the encoders on a GPU: float32, bfloat16 or float16.")]
Runtime = Annotated[str, typer.Option(help="What computes the encoders: pytorch, or onnx (on the CPU).")]


def accepts_plugins(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option --allow-plugin to a command that reads a recipe or a space."""

    @functools.wraps(command)
    def run_with_plugins(*args: Any, allow_plugin: AllowPlugin = None, **kwargs: Any) -> None:
        from triptych import plugins

        with plugins.allow(allow_plugin or ()):
            command(*args, **kwargs)

    return _add_options(command, run_with_plugins, allow_plugin=(AllowPlugin, None))


def accepts_device(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option --device to a command that trains spaces."""

    @functools.wraps(command)
    def run_on_device(*args: Any, device: Device = "", **kwargs: Any) -> None:
        from triptych.devices import Execution, use_execution

        with use_execution(Execution(device)):
            command(*args, **kwargs)

    return _add_options(command, run_on_device, device=(Device, ""))


def accepts_execution(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options --device, --precision and --runtime to a command that embeds with a space."""

    @functools.wraps(command)
    def run_with_execution(
        *args: Any, device: Device = "", precision: Precision = "float32", runtime: Runtime = "pytorch", **kwargs: Any
    ) -> None:
        from triptych.devices import Execution, use_execution

        with use_execution(Execution(device, cast(Any, precision), cast(Any, runtime))):
            command(*args, **kwargs)

    options = {"device": (Device, ""), "precision": (Precision, "float32"), "runtime": (Runtime, "pytorch")}
    return _add_options(command, run_with_execution, **options)


def _add_options(
    command: Callable[..., None], wrapper: Callable[..., None], **options: tuple[Any, Any]
) -> Callable[..., None]:
    """Give the wrapper of a command the signature of the command with more options: (annotation, default) by name."""
    signature = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]
    parameters = [*signature.parameters.values(), *added]
    wrapper.__dict__["__signature__"] = signature.replace(parameters=parameters)
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper
