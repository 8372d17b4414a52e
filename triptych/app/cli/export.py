"""triptych export"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from triptych.interfaces import Modality, Source
    from triptych.space import Space

NUM_EXAMPLES = 64


def export(
    run: Annotated[Path, typer.Argument(help="A run folder, or the file of a space.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="As ONNX graphs, one for each modality.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder; RUN-onnx unless given.")] = None,
    data: Annotated[Path | None, typer.Option(help="Manifest with examples; the run's own unless given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    allow_outside: Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")] = False,
) -> None:
    """Write each encoder with its projection as a graph that runs without triptych, checked on real inputs.

    A graph takes prepared inputs and their mask (N, L), and gives embeddings. It is compared with the space it comes
    from: the largest drift (1 - cosine), and the time of a batch, theirs over ours.

    \b
    Examples:
      triptych export runs/mine --onnx
      triptych export runs/mine --onnx -o graphs --data pairs.csv
    """
    from triptych.app import terminal
    from triptych.checkpoint import load, resolve_path
    from triptych.errors import UsageError
    from triptych.export import export_onnx

    if not onnx:
        raise UsageError("in which form? --onnx is the one there is")
    space = load(run)
    checkpoint_path = resolve_path(run)
    folder = output or (checkpoint_path if checkpoint_path.is_dir() else checkpoint_path.parent).with_name(
        f"{run.resolve().stem}-onnx"
    )
    results = export_onnx(space, _load_examples(space, data, allow_outside), folder, show_progress=not as_json)
    if as_json:
        typer.echo(json.dumps([asdict(result) for result in results], indent=2))
        return
    terminal.stdout.print(terminal.make_export_table(results))
    for one in results:
        if one.problem:
            terminal.stderr.print(f"{one.modality}: cannot be exported: {one.problem}")
    terminal.stdout.print(f"exported: {folder}")


def _load_examples(space: Space, data: Path | None, allow_outside: bool) -> dict[Modality, list[Source]]:
    """Real inputs of every modality: from the test rows, where there are any."""
    from triptych.data import manifest
    from triptych.data.loader import sources_of
    from triptych.errors import UsageError

    data_config = space.recipe.data
    path = data or (Path(data_config.manifest) if data_config.manifest else None)
    if path is None or not path.exists():
        raise UsageError(f"the run's own manifest ({path}) is not here; give --data MANIFEST with some examples")
    table = manifest.read(path, allow_outside or data_config.allow_outside)
    rows = table.split(data_config.test_split).rows if data_config.test_split in table.counts.splits else table.rows
    return {
        m: list(dict.fromkeys(s for row in rows if m in row.modalities for s in sources_of(row, m)))[:NUM_EXAMPLES]
        for m in space.modalities
    }
