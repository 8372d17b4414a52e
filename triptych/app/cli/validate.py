"""The `triptych validate` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import AllowOutside, AsJson


def validate(
    manifest: Annotated[
        Path,
        typer.Argument(
            help="Manifest (CSV, JSONL or Parquet), or a folder that contains one.", callback=checks.check_manifests
        ),
    ],
    allow_outside: AllowOutside = False,
    show_all: Annotated[bool, typer.Option("--all", help="List every problem, not only the first few.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Also decode every file. This takes a while.")] = False,
    as_json: AsJson = False,
) -> None:
    """Validate a manifest: print counts, and every problem by row and column. The exit code is 2 if there are errors.

    Files must exist and must not be empty. With --decode, files that cannot be decoded are errors, too.

    \b
    Examples:
      triptych validate pairs.csv
      triptych validate pairs.csv --decode
      triptych validate clotho_captions_development.csv
    """
    from triptych.app import terminal
    from triptych.data import manifest as manifests
    from triptych.data.decoding import count_decodings, decode_files
    from triptych.progress import track_progress

    table = manifests.read(manifest, allow_outside)
    if decode:
        with track_progress("decoding files", count_decodings(table)) as progress:
            table = decode_files(table, progress.advance)
    max_examples = len(table.problems) if show_all else terminal.MAX_PROBLEMS
    summary = manifests.summarise(table, max_examples) | {"decoded": decode}
    if as_json:
        terminal.print_json(summary)
    else:
        terminal.print_manifest_summary(summary)
    if table.errors:
        raise typer.Exit(2)
