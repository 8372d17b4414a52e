"""triptych study"""

import shlex
from pathlib import Path
from typing import Annotated

import typer

INTO = Path("studies")
Name = Annotated[str | None, typer.Argument(help="Which study (none: list them).")]
Data = Annotated[Path | None, typer.Option(help="The manifest to ask; it needs the splits train, valid and test.")]
Into = Annotated[Path, typer.Option("--into", "-o", help="Folder for the page, the drawing and the numbers.")]
Rows = Annotated[int, typer.Option(min=0, help="At most so many training rows; 0 = all.")]
Set = Annotated[list[str] | None, typer.Option("--encoder", help="Another frozen encoder: audio=soundnet.")]
Restart = Annotated[bool, typer.Option(help="Forget the numbers that are in the folder.")]
Outside = Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")]


def study(
    name: Name = None,
    data: Data = None,
    into: Into = INTO,
    rows: Rows = 0,
    encoder: Set = None,
    restart: Restart = False,
    allow_outside: Outside = False,
) -> None:
    """Ask a question of the method on your own data: fits over frozen encoders, a table, a drawing, a page.

    Interrupted? The same command goes on where it was.

    \b
    Examples:
      triptych study
      triptych study objectives --data flickr8k.csv
      triptych study noise --data pairs.csv --rows 2000 -o studies
      triptych study transitivity --data world/manifest.csv --encoder audio=soundnet
    """
    from triptych.app import show
    from triptych.contracts import MODALITIES
    from triptych.errors import UsageError, unknown
    from triptych.studies import STUDIES
    from triptych.studies.study import FROZEN, Request
    from triptych.studies.study import study as ask

    if name is None:
        for known, module in STUDIES.items():
            show.out.print(f"{known:14} {module.QUESTION}")
        return
    if data is None:
        raise UsageError(f"which data? triptych study {name} --data MANIFEST")
    encoders = dict(FROZEN)
    for change in encoder or []:
        modality, _, chosen = change.partition("=")
        if modality not in MODALITIES:
            raise UsageError(f"--encoder {change}: {unknown('modality', modality, MODALITIES)}")
        encoders[modality] = chosen
    # As it was given, for the page: without the machine's folders, and without --restart, which decides no number.
    command = ["triptych", "study", name, "--data", data.name]
    command += ["--into", into.name] if into.name not in {"", INTO.name} else []
    command += ["--rows", str(rows)] if rows else []
    command += [word for change in encoder or [] for word in ("--encoder", change)]
    command += ["--allow-outside"] if allow_outside else []
    page = ask(Request(name, data, rows, allow_outside, encoders), into, shlex.join(command), restart)
    show.out.print(f"written: {show.from_here(page)}")
