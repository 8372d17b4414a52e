"""The `triptych report` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app.cli.options import AllowOutside, Run


def report(
    run: Run,
    data: Annotated[Path | None, typer.Option(help="Manifest to evaluate on. Default: that of the run.")] = None,
    split: Annotated[str | None, typer.Option(help="Split to use, or 'all'. Default: the recipe's test split.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file to write. Default: RUN-report.html.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Also write the numbers as JSON, beside the page.")] = False,
    max_megabytes: Annotated[float, typer.Option(min=0, help="Size limit of embedded images and audio.")] = 12.0,
    allow_outside: AllowOutside = False,
) -> None:
    """Write a report of a run: recall with intervals, plots, retrieval examples. One HTML file that works offline.

    \b
    Examples:
      triptych report runs/trimodal
      triptych report runs/trimodal --data demo/data/manifest.csv -o trimodal.html --json
      triptych report runs/trimodal --split novel -o novel.html
    """
    import json

    from triptych.errors import UsageError

    if output and output.suffix.lower() not in {".html", ".htm"}:
        raise UsageError(f"{output}: a report is one HTML file; name it {output.with_suffix('.html').name}")

    from triptych.app import terminal
    from triptych.checkpoint import load
    from triptych.files import write_text
    from triptych.report import page, report_data

    recipe = load(run).recipe
    manifest_path = data or (Path(recipe.data.manifest) if recipe.data.manifest else None)
    if manifest_path is None:
        raise UsageError(f"{run}: its recipe names no manifest; give --data MANIFEST")
    # Beside the run folder, which contains only the files of the run. A joint model has no run folder.
    beside = run.resolve() if run.exists() else Path(run.name)
    file = output or beside.with_name(f"{beside.stem if run.is_file() else beside.name}-report.html")
    table = terminal.read_manifest(manifest_path, allow_outside or recipe.data.allow_outside)
    results = report_data.collect_report_data(run, table, split)
    terminal.print_failures(results.evaluation.failures.values())
    write_text(file, page.render_report(results, round(max_megabytes * 1e6)))
    if as_json:
        numbers = report_data.report_to_dict(results)
        write_text(file.with_suffix(".json"), json.dumps(numbers, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    terminal.stdout.print(f"written: {file} ({file.stat().st_size / 1e6:.1f} MB)")
