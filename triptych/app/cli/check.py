"""triptych check"""

import json
from pathlib import Path
from typing import Annotated

import typer


def check(
    manifest: Annotated[Path, typer.Argument(help="CSV, JSONL or Parquet, or a folder that holds one.")],
    allow_outside: Annotated[bool, typer.Option(help="Accept files that lie outside the manifest's folder.")] = False,
    every: Annotated[bool, typer.Option("--all", help="List every problem, not the first few of a kind.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Diagnose a manifest: what is there, and what is wrong in which row and column. Errors give exit code 2.

    Files must be there and not empty; whether they can be decoded is seen when they are trained on or indexed.

    \b
    Examples:
      triptych check pairs.csv
      triptych check clotho_captions_development.csv
    """
    from triptych.app import show
    from triptych.data import manifest as manifests

    table = manifests.read(manifest, allow_outside)
    summary = manifests.summary(table, first=len(table.problems) if every else show.FIRST)
    if as_json:
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        show.diagnosis(summary)
    if table.errors:
        raise typer.Exit(2)
