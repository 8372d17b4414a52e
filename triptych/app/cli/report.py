"""triptych report"""

import json
from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="A run folder, or the file of a space.")],
    data: Annotated[
        Path | None, typer.Option(help="The manifest to measure on; unless given, the one of the run.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which rows; unless given, the recipe's test split; or 'all'.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The HTML file; unless given, RUN-report.html.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write the numbers beside it, as .json.")] = False,
    max_megabytes: Annotated[float, typer.Option(min=0, help="Most that pictures and sounds may take.")] = 12.0,
    allow_outside: Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")] = False,
) -> None:
    """Put a run on one page: recall with intervals, plots, examples to see and hear. One HTML file, no network.

    \b
    Examples:
      triptych report runs/trimodal
      triptych report runs/trimodal --data demo/data/manifest.csv -o trimodal.html --json
      triptych report runs/trimodal --split novel -o novel.html
    """
    from triptych.errors import UsageError

    if output and output.suffix.lower() not in {".html", ".htm"}:
        raise UsageError(f"{output}: a report is one HTML file; name it {output.with_suffix('.html').name}")

    from triptych.app import terminal
    from triptych.checkpoint import load
    from triptych.data import manifest
    from triptych.files import write_text
    from triptych.report import page, report_data

    recipe = load(run).recipe
    manifest_path = data or (Path(recipe.data.manifest) if recipe.data.manifest else None)
    if manifest_path is None:
        raise UsageError(f"{run}: its recipe names no manifest; give --data MANIFEST")
    # Beside the run, not in it: a run folder holds nothing else. A ready-made space has no folder of its own.
    beside = run.resolve() if run.exists() else Path(run.name)
    file = output or beside.with_name(f"{beside.stem if run.is_file() else beside.name}-report.html")
    table = manifest.read(manifest_path, allow_outside or recipe.data.allow_outside)
    terminal.print_unusable_rows(table)
    results = report_data.collect_report_data(run, table, split)
    terminal.print_failures(results.evaluation.failures.values())
    write_text(file, page.render_report(results, round(max_megabytes * 1e6)))
    if as_json:
        numbers = report_data.report_to_dict(results)
        write_text(file.with_suffix(".json"), json.dumps(numbers, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    terminal.stdout.print(f"written: {file} ({file.stat().st_size / 1e6:.1f} MB)")
