"""The `triptych localise` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import AsJson, Run, accepts_execution, accepts_plugins


@accepts_plugins
@accepts_execution
def localise(
    run: Run,
    data: Annotated[Path, typer.Option(help="Folder of a synthetic data set.", callback=checks.check_folder)],
    split: Annotated[str, typer.Option(help="Split to use.")] = "test",
    as_json: AsJson = False,
) -> None:
    """Evaluate localisation on synthetic data: how often the attribution falls on the object that the query names.

    \b
    Examples:
      triptych localise runs/trimodal --data demo/data
      triptych localise runs/trimodal --data demo/data --split novel --json
    """
    from triptych.app import terminal
    from triptych.checkpoint import load
    from triptych.evaluation.localisation import localise as evaluate_localisation

    terminal.print_results(evaluate_localisation(load(run), data, split), as_json, terminal.print_localisation)
