"""The `triptych runs` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import AsJson


def runs(
    folder: Annotated[
        Path, typer.Argument(help="Folder to search recursively for run folders.", callback=checks.check_runs)
    ] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List training runs with their state, score and time.

    The score is the mean of R@1, R@5 and R@10 over all trained directions on the validation split, in %, at the best
    epoch.

    \b
    Examples:
      triptych runs
      triptych runs experiments --json
    """
    from triptych.app import terminal
    from triptych.training.run_summary import list_runs

    run_summaries = list_runs(folder)
    if run_summaries or as_json:
        terminal.print_results(run_summaries, as_json, terminal.print_runs)
    else:
        terminal.stdout.print(f"{folder}: no runs; create one with `triptych train`")
