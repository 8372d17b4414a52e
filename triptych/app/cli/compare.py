"""The `triptych compare` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import AllowOutside, AsJson, Run, Split, accepts_execution, accepts_plugins


@accepts_plugins
@accepts_execution
def compare(
    a: Run,
    b: Run,
    data: Annotated[Path, typer.Option(help="Manifest to evaluate both runs on.", callback=checks.check_manifests)],
    split: Split = "test",
    more_a: Annotated[list[str] | None, typer.Option(help="Run of A with another seed. Can be repeated.")] = None,
    more_b: Annotated[list[str] | None, typer.Option(help="Run of B with another seed. Can be repeated.")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every changed query and every label.")] = False,
    as_json: AsJson = False,
    allow_outside: AllowOutside = False,
) -> None:
    """Compare two runs on the same queries: differences with 95% intervals, changed queries, results by slice.

    "not separable" means that the interval of the difference covers zero. With one run of A and one
    of B, the interval covers the variation over queries only; with several seeds (--more-a, --more-b), also over seeds.

    \b
    Examples:
      triptych compare runs/first runs/second --data pairs.csv
      triptych compare runs/a0 runs/b0 --more-a runs/a1 --more-b runs/b1 --data pairs.csv
      triptych compare runs/first runs/second --data pairs.csv --json > difference.json
    """
    from triptych.app import comparisons, terminal
    from triptych.checkpoint import load
    from triptych.evaluation.comparison import compare_evaluations
    from triptych.evaluation.evaluate import evaluate

    rows = terminal.read_manifest(data, allow_outside).split(split).rows
    evaluations_a, evaluations_b = (
        [evaluate(load(run), rows, num_resamples=0) for run in runs]
        for runs in ([a, *(more_a or [])], [b, *(more_b or [])])
    )
    terminal.print_failures(evaluations_a[0].failures.values())
    results = compare_evaluations(evaluations_a, evaluations_b)
    if as_json:
        terminal.print_json([comparison.to_dict() for comparison in results])
    else:
        comparisons.print_comparisons(results, show_all)
