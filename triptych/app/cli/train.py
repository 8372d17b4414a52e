"""The `triptych train` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import AllowOutside, Overrides, accepts_device, accepts_plugins


@accepts_plugins
@accepts_device
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="Name of a recipe (see `triptych recipes`) or a .toml file. Not needed with --init.",
            callback=checks.check_recipe,
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Manifest to train on. Repeat the option for several.", callback=checks.check_manifests),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(metavar="SPACE", help="Ready space to start from: starter, hf:NAME or a run. For few pairs."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Run folder. Default: runs/RECIPE.")] = None,
    overrides: Overrides = None,
    log: Annotated[
        list[str] | None,
        typer.Option(help="Also log to tensorboard, wandb, mlflow or trackio. Repeat the option for several."),
    ] = None,
    restart: Annotated[bool, typer.Option(help="Replace an existing run in the folder.")] = False,
    allow_outside: AllowOutside = False,
) -> None:
    """Train an embedding space. If training is interrupted, run the same command to resume.

    To train with several processes, start the command with torchrun. Each batch is divided among the processes.

    \b
    Examples:
      triptych train trimodal --data demo/data/manifest.csv
      triptych train clap --data pairs.csv -o runs/mine --set training.epochs=40 --set space.embed_dim=256
      triptych train --init starter --data pairs.csv
      triptych train mixed --data audio.csv --data images.csv
      triptych train clap --data pairs.csv --log tensorboard
      torchrun --nproc-per-node 2 -m triptych train clap --data pairs.csv
    """
    from triptych.app import terminal
    from triptych.errors import UsageError
    from triptych.training.arguments import resolve_output, resolve_recipe
    from triptych.training.distributed import is_main_process
    from triptych.training.loop import train as train_space
    from triptych.training.run_directory import read_skipped
    from triptych.training.warm_start import adopt_init

    if recipe is None and init is None:
        raise UsageError("give the name of a recipe, or --init with a ready space, such as starter")
    effective = adopt_init(resolve_recipe(recipe, overrides or [], init)).with_manifests(data or [], allow_outside)
    folder = resolve_output(output, effective)
    train_space(effective, folder, callbacks=log or [], restart=restart)
    if not is_main_process():
        return
    terminal.print_failures(read_skipped(folder))
    terminal.stdout.print(f"trained: {folder}")
    terminal.print_training_advice(folder, effective)
