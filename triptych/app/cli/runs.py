"""triptych runs"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look; its sub-folders too.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List runs with their state, scores and time.

    The score is the best mean of R@1, R@5 and R@10 in % on the validation rows, over all trained directions.

    \b
    Examples:
      triptych runs
      triptych runs experiments --json
    """
    from triptych.app import terminal
    from triptych.training.run_summary import list_runs

    run_summaries = list_runs(folder)
    if as_json:
        typer.echo(json.dumps([asdict(summary) for summary in run_summaries], indent=2, ensure_ascii=False))
        return
    if not run_summaries:
        terminal.stdout.print(f"{folder}: no runs here; `triptych train` makes one")
        return
    terminal.stdout.print(terminal.make_runs_table(run_summaries))
    for summary in run_summaries:
        if summary.stop_reason:
            terminal.stderr.print(f"{summary.folder}: {summary.stop_reason}")
