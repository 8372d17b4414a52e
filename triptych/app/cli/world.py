"""triptych world"""

from pathlib import Path
from typing import Annotated

import typer


def world(
    folder: Annotated[Path, typer.Argument(help="Where to write it: a new or empty folder.")],
    scenes: Annotated[int, typer.Option(help="How many scenes.")] = 3000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same files.")] = 0,
    difficulty: Annotated[str, typer.Option(help="easy, medium or hard.")] = "medium",
    noise: Annotated[float, typer.Option(help="Share of the training pairs to swap, 0 to 1.")] = 0.0,
    noise_kind: Annotated[str, typer.Option(help="random, or category: only within the same label.")] = "random",
) -> None:
    """Make a small world: pictures, sounds and captions whose true answers are known.

    \b
    Examples:
      triptych world demo/world
      triptych world noisy --scenes 5000 --noise 0.4 --noise-kind category
    """
    from triptych.app.show import failing, say
    from triptych.data.world import World, make
