"""triptych check"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from triptych.data.manifest import Manifest


def check(
    manifest: Annotated[Path, typer.Argument(help="CSV, JSONL or Parquet, or a folder that holds one.")],
    allow_outside: Annotated[bool, typer.Option(help="Accept files that lie outside the manifest's folder.")] = False,
    every: Annotated[bool, typer.Option("--all", help="List every problem, not the first few of a kind.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Decode every file, which takes a while.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Diagnose a manifest: what is there, and what is wrong in which row and column. Errors give exit code 2.

    Files must be there and not empty; with --decode each is decoded as well, and one that cannot be is an error.

    \b
    Examples:
      triptych check pairs.csv
      triptych check pairs.csv --decode
      triptych check clotho_captions_development.csv
    """
    from triptych.app import show
    from triptych.data import manifest as manifests

    table = manifests.read(manifest, allow_outside)
    if decode:
        table = _decode(table)
    summary = manifests.summary(table, first=len(table.problems) if every else show.FIRST) | {"decoded": decode}
    if as_json:
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        show.diagnosis(summary)
    if table.errors:
        raise typer.Exit(2)


def _decode(table: Manifest) -> Manifest:
    from triptych.data.decoding import count_decodings, decode_files
    from triptych.progress import progress

    total = count_decodings(table)
    with progress("decoding files", total, total > 0) as bar:
        return decode_files(table, bar.advance)
