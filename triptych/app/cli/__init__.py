"""The command line. To add a command, add a module here and to MODULES."""

import io
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console

from triptych.app.cli import (
    audit,
    bridge,
    cache,
    classify,
    collection,
    compare,
    data,
    demo,
    encoders,
    evaluate,
    export,
    index,
    localise,
    recipes,
    report,
    runs,
    search,
    serve,
    spaces,
    study,
    train,
    validate,
)
from triptych.errors import TriptychError

MODULES = (demo, data, validate, recipes, encoders, cache, train, runs, bridge, export, evaluate, compare, classify)
MODULES += (localise, study, report, audit, spaces, index, search, serve, collection)  # in the order of the help page
# The function or group of sub-commands of a module has the name of the module.
COMMANDS: dict[str, Callable[..., None] | typer.Typer] = {
    name: getattr(module, name) for module in MODULES for name in [module.__name__.rpartition(".")[2]]
}

INTERRUPTED = 130  # exit code of typer after Ctrl-C

app = typer.Typer(
    name="triptych",
    help="One embedding space for audio, images and text: train it on your own pairs, evaluate it, search with it.",
    epilog="New to triptych? Run `triptych demo`: it shows every step in a few minutes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for name, command in COMMANDS.items():
    if isinstance(command, typer.Typer):  # a group of sub-commands
        app.add_typer(command, name=name)
        continue
    can_run_bare = name in {"cache", "demo", "recipes", "runs", "serve", "study"}
    app.command(name, no_args_is_help=not can_run_bare)(command)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True)) -> None:
    """Print the version if `--version` is given."""
    if show:
        from triptych import __version__

        typer.echo(f"triptych {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line. User errors print one message and exit with 2; Ctrl-C exits with 130."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print "?" for characters that the terminal cannot encode
    warnings.showwarning = _print_warning
    try:
        app()
    except TriptychError as error:
        _fail(str(error))
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            Console(stderr=True).print("interrupted; run the same command to resume", style="yellow")
        raise
    except BrokenPipeError:
        # The reader closed the pipe, as `| head` does: discard the rest of the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except RuntimeError as error:
        if "home directory" not in str(error):
            raise
        _fail("a path begins with ~ and a user whose home folder is not known; write ./~ or the full path")
    except OSError as error:
        location = f"{error.filename}: " if error.filename else ""
        _fail(f"{location}{error.strerror or error}")


def _print_warning(message: Warning | str, *_: Any) -> None:
    """Print a warning as one line, without the line of code that caused it."""
    Console(stderr=True).print(f"warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def _fail(message: str) -> None:
    console = Console(stderr=True)
    console.print("error: ", style="bold red", end="")
    console.print(message, markup=False, highlight=False, soft_wrap=True)
    sys.exit(2)
