"""The `triptych data synthetic` command."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def synthetic(
    folder: Annotated[Path, typer.Argument(help="Output folder: new or empty.")],
    scenes: Annotated[int, typer.Option(help="Number of scenes.")] = 3000,
    seed: Annotated[int, typer.Option(help="Random seed. The same seed gives the same files.")] = 0,
    difficulty: Annotated[
        Literal["easy", "medium", "hard"], typer.Option(help="Amount of noise, jitter and omissions in captions.")
    ] = "easy",
    noise_rate: Annotated[
        float, typer.Option(help="Fraction of training rows, 0 to 1, that get the captions of another row.")
    ] = 0.0,
    noise_kind: Annotated[
        Literal["random", "category"], typer.Option(help="Take these captions from any row, or from the same label.")
    ] = "random",
    max_objects: Annotated[int, typer.Option(help="Maximum number of object categories in a scene.")] = 2,
    captions: Annotated[int, typer.Option(help="Captions per scene.")] = 5,
    image_size: Annotated[int, typer.Option(help="Width and height of images in pixels.")] = 64,
    seconds: Annotated[float, typer.Option(help="Duration of the audio in seconds.")] = 2.0,
    video: Annotated[bool, typer.Option("--video", help="Write videos (mp4) instead of images and audio.")] = False,
) -> None:
    """Generate synthetic data: images, audio and captions with exact annotations.

    \b
    Examples:
      triptych data synthetic demo/data
      triptych data synthetic noisy --scenes 5000 --noise-rate 0.4 --noise-kind category
      triptych data synthetic videos --video --scenes 1000
      triptych data synthetic large --image-size 128 --seconds 5 --max-objects 3 --difficulty hard
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
    with track_progress("generating scenes", config.scenes) as bar:
        manifest = generate(config, folder, bar.advance)
    stdout.print(f"wrote: {manifest}")
