"""triptych export"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from triptych.contracts import Modality, Source
    from triptych.space import Space

EXAMPLES = 64


def export(
    run: Annotated[Path, typer.Argument(help="A run folder, or the file of a space.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="As ONNX graphs, one for each modality.")] = False,
    into: Annotated[Path | None, typer.Option("--into", "-o", help="Folder; RUN-onnx unless given.")] = None,
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
    from triptych.app import show
    from triptych.checkpoint import find, load
    from triptych.errors import UsageError
    from triptych.export import export_onnx

    if not onnx:
        raise UsageError("in which form? --onnx is the one there is")
    space = load(run)
    place = find(run)
    folder = into or (place if place.is_dir() else place.parent).with_name(f"{run.resolve().stem}-onnx")
    found = export_onnx(space, _examples(space, data, allow_outside), folder, show=not as_json)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    show.out.print(show.exported(found))
    for one in found:
        if one.problem:
            show.notes.print(f"{one.modality}: cannot be exported: {one.problem}")
    show.out.print(f"exported: {folder}")


def _examples(space: Space, data: Path | None, allow_outside: bool) -> dict[Modality, list[Source]]:
    """Real inputs of every modality: from the test rows, where there are any."""
    from triptych.data import manifest
    from triptych.data.loader import sources_of
    from triptych.errors import UsageError

    own = space.recipe.data
    path = data or (Path(own.manifest) if own.manifest else None)
    if path is None or not path.exists():
        raise UsageError(f"the run's own manifest ({path}) is not here; give --data MANIFEST with some examples")
    table = manifest.read(path, allow_outside or own.allow_outside)
    rows = table.split(own.test).rows if own.test in table.counts.splits else table.rows
    return {
        m: list(dict.fromkeys(s for row in rows if m in row.modalities for s in sources_of(row, m)))[:EXAMPLES]
        for m in space.modalities
    }
