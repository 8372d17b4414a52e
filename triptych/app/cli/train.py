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
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Run folder; runs/NAME unless given.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Change a value: section.key=value.")] = None,
    restart: Annotated[bool, typer.Option(help="Replace a run that is in the folder.")] = False,
    allow_outside: Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")] = False,
) -> None:
    """Train a space. Interrupted? The same command goes on where it was.

    Several processes share every batch when torchrun starts them.

    \b
    Examples:
      triptych train trimodal --data demo/data/manifest.csv
      triptych train clap --data pairs.csv -o runs/mine --set training.epochs=40 --set space.embed_dim=256
      triptych train mixed --data sounds.csv --data pictures.csv
      torchrun --nproc-per-node 2 -m triptych train clap --data pairs.csv
    """
    from triptych.app import terminal
    from triptych.recipe import Recipe
    from triptych.training.distributed import is_main_process
    from triptych.training.loop import train as train_space
    from triptych.training.run_directory import read_skipped

    effective = Recipe.load(recipe, overrides or [])
    data_config = replace(effective.data, allow_outside=allow_outside or effective.data.allow_outside)
    if data:
        first, *others = map(str, data)
        data_config = replace(
            data_config,
            manifest=first,
            extra_manifests=(*others, *(path for path in data_config.extra_manifests if path not in others)),
        )
    effective = replace(effective, data=data_config)
    folder = output or Path("runs") / effective.name
    train_space(effective, folder, restart=restart)
    if not is_main_process():
        return
    terminal.print_failures(read_skipped(folder))
    terminal.stdout.print(f"trained: {folder}")
    terminal.print_training_advice(folder, effective)
