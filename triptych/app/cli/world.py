"""triptych world"""

from pathlib import Path
from typing import Annotated, Literal

import typer


def world(
    folder: Annotated[Path, typer.Argument(help="Where to write it: a new or empty folder.")],
    scenes: Annotated[int, typer.Option(help="How many scenes.")] = 3000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same files.")] = 0,
    difficulty: Annotated[
        Literal["easy", "medium", "hard"], typer.Option(help="How much grain, hiss, jitter.")
    ] = "easy",
    noise: Annotated[float, typer.Option(help="Share of the training rows that get another row's captions.")] = 0.0,
    noise_kind: Annotated[
        Literal["random", "category"], typer.Option(help="From any row, or only from rows of the same label.")
    ] = "random",
    actors: Annotated[int, typer.Option(help="At most so many things in a scene.")] = 2,
    captions: Annotated[int, typer.Option(help="Captions for each scene.")] = 5,
    size: Annotated[int, typer.Option(help="Pixels along a picture's side.")] = 64,
    seconds: Annotated[float, typer.Option(help="Length of a sound.")] = 2.0,
    films: Annotated[bool, typer.Option("--films", help="Films whose things hop while they sound (mp4).")] = False,
) -> None:
    """Make a small world: pictures, sounds and captions whose true answers are known.

    \b
    Examples:
      triptych world demo/world
      triptych world noisy --scenes 5000 --noise 0.4 --noise-kind category
      triptych world moving --films --scenes 1000
      triptych world large --size 128 --seconds 5 --actors 3 --difficulty hard
    """
    from triptych.app.show import out
    from triptych.data.world import World, make
    from triptych.progress import progress

    settings = World(
        scenes=scenes,
        seed=seed,
        difficulty=difficulty,
        noise=noise,
        noise_kind=noise_kind,
        actors=actors,
        captions=captions,
        size=size,
        seconds=seconds,
        films=films,
    )
    with progress("making scenes", settings.scenes) as bar:
        manifest = make(settings, folder, progress=lambda done, _: bar.advance(done - bar.done))
    out.print(f"made: {manifest}")
