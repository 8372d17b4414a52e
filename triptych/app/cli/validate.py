"""triptych validate"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from triptych.data.manifest import Manifest


def validate(
    manifest: Annotated[Path, typer.Argument(help="CSV, JSONL or Parquet, or a folder that holds one.")],
    allow_outside: Annotated[bool, typer.Option(help="Accept files that lie outside the manifest's folder.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="List every problem, not the first few of a kind.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Decode every file, which takes a while.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Diagnose a manifest: what is there, and what is wrong in which row and column. Errors give exit code 2.

    Files must be there and not empty; with --decode each is decoded as well, and one that cannot be is an error.

    \b
    Examples:
      triptych validate pairs.csv
      triptych validate pairs.csv --decode
      triptych validate clotho_captions_development.csv
    """
    from triptych.app import terminal
    from triptych.data import manifest as manifests

    table = manifests.read(manifest, allow_outside)
    if decode:
        table = _decode_files(table)
    summary = manifests.summarise(table, max_examples=len(table.problems) if show_all else terminal.MAX_PROBLEMS) | {
        "decoded": decode
    }
    if as_json:
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        terminal.print_manifest_summary(summary)
    if table.errors:
        raise typer.Exit(2)


def _decode_files(table: Manifest) -> Manifest:
    from triptych.data.decoding import count_decodings, decode_files
    from triptych.progress import track_progress

    total = count_decodings(table)
    with track_progress("decoding files", total, total > 0) as bar:
        return decode_files(table, bar.advance)
