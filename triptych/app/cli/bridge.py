"""The `triptych bridge` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import AllowOutside, AsJson, accepts_plugins

Texts = Annotated[
    Path | None,
    typer.Option(help="Text file (.txt) with one text per line, or a manifest with captions. Default: 8,000 phrases."),
]
Media = Annotated[
    list[Path] | None,
    typer.Option(help="Folder or manifest of images and audio, without captions, for centres and calibration."),
]
Calibrate = Annotated[
    bool, typer.Option(help="Standardise scores, so that those of images and of audio are comparable. Needs --media.")
]

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="SPACE SPACE…", help="Run folders, files, hf:NAME or st:NAME.", callback=checks.check_spaces
    ),
]


@accepts_plugins
def bridge(
    names: Names,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write. It can be used as a space.")],
    texts: Texts = None,
    media: Media = None,
    calibrate: Calibrate = True,
    allow_outside: AllowOutside = False,
    as_json: AsJson = False,
) -> None:
    """Connect the images of one space with the audio of another, by linear maps that are learned from texts only.

    Without a bridge, the direct sum A+B compares texts with images and with audio, but images and audio score 0. The
    table shows how well one half of a held-out text finds the other half of the same text.

    \b
    Examples:
      triptych bridge hf:openai/clip-vit-base-patch32 hf:laion/clap-htsat-unfused -o clip-clap --media ~/media
      triptych bridge runs/photos runs/sounds -o runs/both --texts captions.txt
      triptych bridge runs/photos runs/sounds -o runs/both --texts pairs.csv --media pairs.csv --no-calibrate
      triptych search --image dog.jpg --modality audio --collection media
    """
    from triptych.app import terminal
    from triptych.bridge_fitting import bridge_space, clean_texts, read_texts
    from triptych.checkpoint import load
    from triptych.data.cache import Cache
    from triptych.errors import UsageError
    from triptych.search.scan import collect_media

    corpus = clean_texts(read_texts(texts, allow_outside)) if texts else None
    space = load("+".join(names))
    collected = collect_media(media or (), space, allow_outside)
    if media and not any(collected.values()):
        raise UsageError(
            f"--media {media[0]}: no images or audio; give a folder or manifest with some, or omit --media"
        )
    options = {"calibrate": calibrate, "cache": Cache.default(), "show_progress": not as_json}
    report = bridge_space(space, output, corpus, collected, **options)
    if as_json:
        terminal.print_json(report)
        return
    terminal.print_bridge(report)
    terminal.stdout.print(f"written: {output}; next: {terminal.format_command('index', 'FOLDER', '--space', output)}")
