"""The `triptych study` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import AllowOutside, accepts_device, accepts_plugins

DEFAULT_OUTPUT = Path("studies")
Data = Annotated[
    Path | None, typer.Option(help="Manifest with the splits train, valid and test.", callback=checks.check_manifests)
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Output folder for the page, plots and results.")]
Encoders = Annotated[list[str] | None, typer.Option("--encoder", help="Frozen encoder of a modality: audio=soundnet.")]


@accepts_plugins
@accepts_device
def study(
    name: Annotated[str | None, typer.Argument(help="Study to run. Default: list all studies.")] = None,
    data: Data = None,
    output: Output = DEFAULT_OUTPUT,
    rows: Annotated[int, typer.Option(min=0, help="Maximum number of training rows; 0 means all.")] = 0,
    encoder: Encoders = None,
    restart: Annotated[bool, typer.Option(help="Delete cached results in the output folder.")] = False,
    allow_outside: AllowOutside = False,
) -> None:
    """Run a controlled experiment on your data: train many small models on frozen features, and write one page.

    If the study is interrupted, run the same command to resume.

    \b
    Examples:
      triptych study
      triptych study objectives --data flickr8k.csv
      triptych study noise --data pairs.csv --rows 2000 -o studies
      triptych study transitivity --data synthetic/manifest.csv --encoder audio=soundnet
    """
    from triptych.app import terminal
    from triptych.errors import UsageError
    from triptych.studies import STUDIES
    from triptych.studies.study import StudyRequest, format_command, parse_encoders, run_study

    if name is None:
        for study_name, entry in STUDIES.items():
            terminal.stdout.print(f"{study_name:14} {entry.question}")
        return
    if data is None:
        raise UsageError(f"give the data: triptych study {name} --data MANIFEST")
    request = StudyRequest(name, data, rows, allow_outside, parse_encoders(encoder or []))
    options = ["--output", output.name] if output.name not in {"", DEFAULT_OUTPUT.name} else []
    page = run_study(request, output, format_command(request, options, encoder or []), restart)
    terminal.stdout.print(f"written: {terminal.relative_path(page)}")
