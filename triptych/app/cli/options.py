"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(help="Run folder or checkpoint file.")]
Split = Annotated[str, typer.Option(help="Split to use; 'all' for every row.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Override a recipe value: section.key=value.")]
AllowOutside = Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
