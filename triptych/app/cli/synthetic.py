"""triptych world"""

from pathlib import Path
from typing import Annotated, Literal

import typer


def synthetic(
    folder: Annotated[Path, typer.Argument(help="Where to write it: a new or empty folder.")],
    scenes: Annotated[int, typer.Option(help="How many scenes.")] = 3000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same files.")] = 0,
    difficulty: Annotated[
        Literal["easy", "medium", "hard"], typer.Option(help="How much grain, hiss, jitter.")
    ] = "easy",
    noise_rate: Annotated[
        float, typer.Option(help="Share of the training rows that get another row's captions.")
    ] = 0.0,
    noise_kind: Annotated[
        Literal["random", "category"], typer.Option(help="From any row, or only from rows of the same label.")
    ] = "random",
    max_objects: Annotated[int, typer.Option(help="At most so many things in a scene.")] = 2,
    captions: Annotated[int, typer.Option(help="Captions for each scene.")] = 5,
    image_size: Annotated[int, typer.Option(help="Pixels along a picture's side.")] = 64,
    seconds: Annotated[float, typer.Option(help="Length of a sound.")] = 2.0,
    video: Annotated[bool, typer.Option("--video", help="Films whose things hop while they sound (mp4).")] = False,
) -> None:
    """Make a small world: pictures, sounds and captions whose true answers are known.

    \b
    Examples:
      triptych world demo/data
      triptych world noisy --scenes 5000 --noise-rate 0.4 --noise-kind category
      triptych world moving --video --scenes 1000
      triptych world large --image-size 128 --seconds 5 --max-objects 3 --difficulty hard
    """
    from triptych.app.terminal import stdout
    from triptych.data.synthetic import SyntheticConfig, generate
    from triptych.progress import track_progress

    config = SyntheticConfig(
        scenes=scenes,
        seed=seed,
        difficulty=difficulty,
        noise_rate=noise_rate,
        noise_kind=noise_kind,
        max_objects=max_objects,
        captions=captions,
        image_size=image_size,
        seconds=seconds,
        video=video,
    )
    with track_progress("making scenes", config.scenes) as bar:
        manifest = generate(config, folder, on_progress=lambda done, _: bar.advance(done - bar.completed))
    stdout.print(f"made: {manifest}")
