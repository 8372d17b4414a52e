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
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write JSON, CSV and every query (Parquet) into this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    allow_outside: Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")] = False,
) -> None:
    """Measure recall in every direction, with 95% intervals and chance beside it.

    Every caption is a query; any right answer among the first k is a hit; ties count against the space.

    \b
    Examples:
      triptych evaluate runs/trimodal --data demo/data/manifest.csv
      triptych evaluate runs/trimodal --data demo/data/manifest.csv --split novel --json
      triptych evaluate runs/trimodal --data demo/data/manifest.csv --output results
      triptych evaluate runs/trimodal --data demo/data/manifest.csv --transductive
    """
    from triptych.app import terminal
    from triptych.checkpoint import load
    from triptych.data import manifest
    from triptych.evaluation import result_files
    from triptych.evaluation.evaluate import evaluate as measure

    table = manifest.read(data, allow_outside)
    terminal.print_unusable_rows(table)
    rows = table.rows if split == "all" else table.split(split).rows
    result = measure(load(run), rows, transductive=transductive, epsilon=epsilon)
    terminal.print_failures(result.failures.values())
    if output:
        result_files.write_results(result, output, {"run": str(run), "data": str(data), "split": split})
        terminal.stderr.print(f"written: {output}")
    if as_json:
        directions = [*result.directions, *result.transductive]
        typer.echo(json.dumps([result_files.retrieval_to_dict(direction) for direction in directions], indent=2))
    else:
        terminal.stdout.print(terminal.make_recall_table(result.directions, result.transductive))
