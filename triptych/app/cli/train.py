"""triptych train"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe by name (see `triptych recipes`) or a .toml file.")],
    data: Annotated[
        list[Path] | None, typer.Option(help="The manifest to learn from; repeated, all of them are learned from.")
    ] = None,
    into: Annotated[Path | None, typer.Option("--into", "-o", help="Run folder; runs/NAME unless given.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a value: section.key=value.")] = None,
    restart: Annotated[bool, typer.Option(help="Replace a run that is in the folder.")] = False,
    allow_outside: Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")] = False,
) -> None:
    """Train a space. Interrupted? The same command goes on where it was.

    Several processes share every batch when torchrun starts them.

    \b
    Examples:
      triptych train trimodal --data demo/world/manifest.csv
      triptych train clap --data pairs.csv -o runs/mine --set training.epochs=40 --set space.width=256
      triptych train mixed --data sounds.csv --data pictures.csv
      torchrun --nproc-per-node 2 -m triptych train clap --data pairs.csv
    """
    from triptych.app import show
    from triptych.recipe import Recipe
    from triptych.training.distributed import leads
    from triptych.training.loop import train as train_space
    from triptych.training.run import left_out

    effective = Recipe.load(recipe, change or [])
    rows = replace(effective.data, allow_outside=allow_outside or effective.data.allow_outside)
    if data:
        first, *others = map(str, data)
        rows = replace(rows, manifest=first, also=(*others, *(path for path in rows.also if path not in others)))
    effective = replace(effective, data=rows)
    folder = into or Path("runs") / effective.name
    train_space(effective, folder, restart=restart)
    if not leads():
        return
    show.failed(left_out(folder))
    show.out.print(f"trained: {folder}")
    show.trained(folder, effective)
