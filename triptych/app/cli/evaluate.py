"""The `triptych evaluate` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import AllowOutside, AsJson, Run, Split, accepts_execution, accepts_plugins


@accepts_plugins
@accepts_execution
def evaluate(
    run: Run,
    data: Annotated[Path, typer.Option(help="Manifest to evaluate on.", callback=checks.check_manifests)],
    split: Split = "test",
    transductive: Annotated[
        bool, typer.Option(help="Also rank all queries jointly, by a transport plan over the test set.")
    ] = False,
    epsilon: Annotated[
        float | None, typer.Option(help="Entropic regularisation of the plan. Default: 0.03 times the score range.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write JSON, CSV and per-query Parquet to this folder.")
    ] = None,
    as_json: AsJson = False,
    allow_outside: AllowOutside = False,
) -> None:
    """Evaluate retrieval in every direction: recall with 95% intervals and chance level.

    Every caption is a query. A query counts as a hit at k if any of its positives is in the top k. Items with the same
    score as the positive are ranked before the positive.

    \b
    Examples:
      triptych evaluate runs/trimodal --data demo/data/manifest.csv
      triptych evaluate runs/trimodal --data demo/data/manifest.csv --split novel --json
      triptych evaluate runs/trimodal --data demo/data/manifest.csv --output results
      triptych evaluate runs/trimodal --data demo/data/manifest.csv --transductive
    """
    from triptych.app import terminal
    from triptych.checkpoint import load
    from triptych.evaluation import result_files
    from triptych.evaluation.evaluate import evaluate as evaluate_space

    rows = terminal.read_manifest(data, allow_outside).split(split).rows
    result = evaluate_space(load(run), rows, transductive=transductive, epsilon=epsilon)
    terminal.print_failures(result.failures.values())
    if output:
        result_files.write_results(result, output, {"run": str(run), "data": str(data), "split": split})
        terminal.stderr.print(f"written: {output}")
    if as_json:
        directions = [*result.directions, *result.transductive]
        terminal.print_json([direction.to_dict() for direction in directions])
    else:
        terminal.stdout.print(terminal.make_recall_table(result.directions, result.transductive))
