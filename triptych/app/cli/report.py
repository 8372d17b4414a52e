"""The `triptych report` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import AllowOutside, Run, accepts_execution, accepts_plugins


@accepts_plugins
@accepts_execution
def report(
    run: Run,
    data: Annotated[
        Path | None, typer.Option(help="Manifest to evaluate on. Default: the run's.", callback=checks.check_manifests)
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split to use, or 'all'. Default: the recipe's test split.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file to write. Default: RUN-report.html.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Also write the results to a JSON file next to it.")] = False,
    max_megabytes: Annotated[float, typer.Option(min=0, help="Maximum size of embedded images and audio.")] = 12.0,
    allow_outside: AllowOutside = False,
) -> None:
    """Write a report of a run as one HTML file that works offline: recall with intervals, plots, retrieval examples.

    \b
    Examples:
      triptych report runs/trimodal
      triptych report runs/trimodal --data demo/data/manifest.csv -o trimodal.html --json
      triptych report runs/trimodal --split novel -o novel.html
    """
    from triptych.app import terminal
    from triptych.checkpoint import load
    from triptych.report.page import resolve_report_path, write_report
    from triptych.report.report_data import collect_report_data

    path = resolve_report_path(run, output)
    recipe = load(run).recipe
    table = terminal.read_manifest(recipe.resolve_manifest(data), allow_outside or recipe.data.allow_outside)
    report_data = collect_report_data(run, table, split)
    terminal.print_failures(report_data.evaluation.failures.values())
    write_report(report_data, path, round(max_megabytes * 1e6), with_json=as_json)
    terminal.stdout.print(f"written: {path} ({path.stat().st_size / 1e6:.1f} MB)")
