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
    from triptych.app import show
    from triptych.training.runs import summaries

    found = summaries(folder)
    if as_json:
        typer.echo(json.dumps([asdict(summary) for summary in found], indent=2, ensure_ascii=False))
        return
    if not found:
        show.out.print(f"{folder}: no runs here; `triptych train` makes one")
        return
    show.out.print(show.runs(found))
    for summary in found:
        if summary.why:
            show.notes.print(f"{summary.folder}: {summary.why}")
