"""triptych evaluate"""

import json
from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder, or the file of a space.")],
    data: Annotated[Path, typer.Option(help="The manifest with the rows to measure on.")],
    split: Annotated[str, typer.Option(help="Which rows; 'all' for all of them.")] = "test",
    transductive: Annotated[
        bool, typer.Option(help="Also rank all queries together, by a transport plan over the whole test set.")
    ] = False,
    epsilon: Annotated[
        float | None, typer.Option(help="Of that plan; 0.03 of the span of the scores unless given.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--out", help="Write JSON, CSV and every query (Parquet) into this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    allow_outside: Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")] = False,
) -> None:
    """Measure recall in every direction, with 95% intervals and chance beside it.

    Every caption is a query; any right answer among the first k is a hit; ties count against the space.

    \b
    Examples:
      triptych evaluate runs/trimodal --data demo/world/manifest.csv
      triptych evaluate runs/trimodal --data demo/world/manifest.csv --split novel --json
      triptych evaluate runs/trimodal --data demo/world/manifest.csv --out results
      triptych evaluate runs/trimodal --data demo/world/manifest.csv --transductive
    """
    from triptych.app import show
    from triptych.checkpoint import load
    from triptych.data import manifest
    from triptych.evaluation import records
    from triptych.evaluation.evaluate import evaluate as measure

    table = manifest.read(data, allow_outside)
    show.left_out(table)
    rows = table.rows if split == "all" else table.split(split).rows
    result = measure(load(run), rows, transductive=transductive, epsilon=epsilon)
    show.failed(result.failures.values())
    if into:
        records.write(result, into, {"run": str(run), "data": str(data), "split": split})
        show.notes.print(f"written: {into}")
    if as_json:
        every = [*result.directions, *result.transductive]
        typer.echo(json.dumps([records.plain(direction) for direction in every], indent=2))
    else:
        show.out.print(show.recalls(result.directions, result.transductive))
