"""triptych compare"""

import json
from pathlib import Path
from typing import Annotated

import typer


def compare(
    a: Annotated[Path, typer.Argument(help="A run folder, or the file of a space.")],
    b: Annotated[Path, typer.Argument(help="Another one.")],
    data: Annotated[Path, typer.Option(help="The manifest with the rows to measure both on.")],
    split: Annotated[str, typer.Option(help="Which rows; 'all' for all of them.")] = "test",
    more_a: Annotated[list[Path] | None, typer.Option(help="One more seed of A; may be given again.")] = None,
    more_b: Annotated[list[Path] | None, typer.Option(help="One more seed of B; may be given again.")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every query that flipped and every label.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with everything, instead of tables.")] = False,
    allow_outside: Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")] = False,
) -> None:
    """Measure two runs on the same queries: the difference with its 95% interval, what flipped, and where.

    "not separable" means that these queries cannot tell the two apart: the interval covers zero. With one run each,
    that is about other items; with several seeds each (--more-a, --more-b), about other seeds, too.

    \b
    Examples:
      triptych compare runs/first runs/second --data pairs.csv
      triptych compare runs/a0 runs/b0 --more-a runs/a1 --more-b runs/b1 --data pairs.csv
      triptych compare runs/first runs/second --data pairs.csv --json > difference.json
    """
    from triptych.app import comparisons, terminal
    from triptych.checkpoint import load
    from triptych.data import manifest
    from triptych.evaluation.comparison import compare_evaluations, comparison_to_dict
    from triptych.evaluation.evaluate import evaluate

    table = manifest.read(data, allow_outside)
    terminal.print_unusable_rows(table)
    rows = table.rows if split == "all" else table.split(split).rows
    evaluations_a, evaluations_b = (
        [evaluate(load(run), rows, num_resamples=0) for run in runs]
        for runs in ([a, *(more_a or [])], [b, *(more_b or [])])
    )
    terminal.print_failures(evaluations_a[0].failures.values())
    results = compare_evaluations(evaluations_a, evaluations_b)
    if as_json:
        typer.echo(json.dumps([comparison_to_dict(comparison) for comparison in results], indent=2, ensure_ascii=False))
        return
    terminal.stdout.print(comparisons.make_comparison_table(results))
    for comparison in results:
        comparisons.print_comparison(comparison, show_all)
