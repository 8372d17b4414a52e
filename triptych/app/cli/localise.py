"""triptych localise"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def localise(
    run: Annotated[Path, typer.Argument(help="A run folder, or the file of a space.")],
    data: Annotated[Path, typer.Option(help="The folder of a made world.")],
    split: Annotated[str, typer.Option(help="Which of its scenes.")] = "test",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure on a made world whether words and sounds point at the things they speak of.

    \b
    Examples:
      triptych localise runs/trimodal --data demo/data
      triptych localise runs/trimodal --data demo/data --split novel --json
    """
    from triptych.app import terminal
    from triptych.checkpoint import load
    from triptych.evaluation.localisation import localise as measure

    results = measure(load(run), data, split)
    if as_json:
        typer.echo(json.dumps([asdict(result) for result in results], indent=2))
    else:
        terminal.stdout.print(terminal.make_localisation_table(results))
