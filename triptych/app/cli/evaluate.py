"""triptych evaluate"""

import json
from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder, or the file of a space.")],
    data: Annotated[Path, typer.Option(help="The manifest with the rows to measure on.")],
    split: Annotated[str, typer.Option(help="Which rows; 'all' for all of them.")] = "test",
    into: Annotated[
        Path | None, typer.Option("--out", help="Write JSON, CSV and every query (Parquet) into this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    allow_outside: Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")] = False,
) -> None:
    """Measure recall in every direction, with 95% intervals and chance beside it.

    \b
    Examples:
      triptych evaluate runs/trimodal --data demo/world/manifest.csv
      triptych evaluate runs/trimodal --data demo/world/manifest.csv --split novel --json
      triptych evaluate runs/trimodal --data demo/world/manifest.csv --out results
    """
    from triptych.app import show
    from triptych.checkpoint import load
    from triptych.data import manifest
    from triptych.data.cache import Cache
    from triptych.evaluation import records
    from triptych.evaluation.evaluate import evaluate as measure

    table = manifest.read(data, allow_outside)
    show.left_out(table)
    rows = table.rows if split == "all" else table.split(split).rows
    result = measure(load(run), rows, cache=Cache.default())
    show.failed(result.failures.values())
    if into:
        records.write(result, into, {"run": str(run), "data": str(data), "split": split})
        show.notes.print(f"written: {into}")
    if as_json:
        typer.echo(json.dumps([records.plain(direction) for direction in result.directions], indent=2))
    else:
        show.out.print(show.recalls(result.directions))
