"""triptych check"""

from pathlib import Path
from typing import Annotated

import typer


def check(
    manifest: Annotated[Path, typer.Argument(help="CSV, JSONL or Parquet, or a folder that holds one.")],
    allow_outside: Annotated[bool, typer.Option(help="Accept files that lie outside the manifest's folder.")] = False,
    all_problems: Annotated[bool, typer.Option("--all", help="List every problem, not the first few of a kind.")] = False,
) -> None:
    """Diagnose a manifest: what is there, what is wrong, row by row.

    \b
    Examples:
      triptych check pairs.csv
      triptych check clotho_captions_development.csv
    """
    from triptych.app import show
    from triptych.data import manifest as manifests

    table = manifests.read(manifest, allow_outside=allow_outside)
    show.diagnosis(table, everything=all_problems)
    if any(problem.severity == "error" for problem in table.problems):
        raise typer.Exit(2)
