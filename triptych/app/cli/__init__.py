"""The command line. A new command is one file here and one line in COMMANDS."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

import typer
from rich.console import Console

from triptych.app.cli import (
    audit,
    cache,
    classify,
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
    study,
    train,
    validate,
)
from triptych.errors import TriptychError

COMMANDS: dict[str, Callable[..., None] | typer.Typer] = {
    "demo": demo.demo,
    "data": data.app,
    "validate": validate.validate,
    "recipes": recipes.recipes,
    "encoders": encoders.encoders,
    "cache": cache.cache,
    "train": train.train,
    "runs": runs.runs,
    "export": export.export,
    "evaluate": evaluate.evaluate,
    "compare": compare.compare,
    "classify": classify.classify,
    "localise": localise.localise,
    "study": study.study,
    "report": report.report,
    "audit": audit.audit,
    "index": index.index,
    "search": search.search,
    "serve": serve.serve,
}

INTERRUPTED = 130  # the exit code typer gives for Ctrl-C

app = typer.Typer(
    name="triptych",
    help="One embedding space for sound, pictures and words: train it on your own pairs, measure it, search it.",
    epilog="New here? `triptych demo` shows everything in a few minutes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for name, command in COMMANDS.items():
    if isinstance(command, typer.Typer):  # a group of sub-commands
        app.add_typer(command, name=name)
        continue
    can_run_bare = name in {"cache", "demo", "encoders", "recipes", "runs", "serve", "study"}
    app.command(name, no_args_is_help=not can_run_bare)(command)


@app.callback(invoke_without_command=True)
def version(
    show: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True),
) -> None:
    """Print the version, if asked."""
    if show:
        from triptych import __version__

        typer.echo(f"triptych {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line: a mistake gets one clear message and exit code 2, an interruption 130."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an old terminal gets question marks, not a traceback
    try:
        app()
    except TriptychError as error:
        _fail(str(error))
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            Console(stderr=True).print("interrupted; the same command goes on from what was finished", style="yellow")
        raise
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        location = f"{error.filename}: " if error.filename else ""
        _fail(f"{location}{error.strerror or error}")


def _fail(message: str) -> None:
    console = Console(stderr=True)
    console.print("error: ", style="bold red", end="")
    console.print(message, markup=False, highlight=False, soft_wrap=True)
    sys.exit(2)
