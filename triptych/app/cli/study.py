"""triptych study"""

import shlex
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_OUTPUT = Path("studies")
Name = Annotated[str | None, typer.Argument(help="Which study (none: list them).")]
Data = Annotated[Path | None, typer.Option(help="The manifest to ask; it needs the splits train, valid and test.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for the page, the drawing and the numbers.")]
Rows = Annotated[int, typer.Option(min=0, help="At most so many training rows; 0 = all.")]
EncoderOverrides = Annotated[
    list[str] | None, typer.Option("--encoder", help="Another frozen encoder: audio=soundnet.")
]
Restart = Annotated[bool, typer.Option(help="Forget the numbers that are in the folder.")]
Outside = Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")]


def study(
    name: Name = None,
    data: Data = None,
    output: Output = DEFAULT_OUTPUT,
    rows: Rows = 0,
    encoder: EncoderOverrides = None,
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
    from triptych.app import terminal
    from triptych.errors import UsageError, describe_unknown
    from triptych.interfaces import MODALITIES
    from triptych.studies import STUDIES
    from triptych.studies.study import DEFAULT_ENCODERS, StudyRequest, run_study

    if name is None:
        for study_name, module in STUDIES.items():
            terminal.stdout.print(f"{study_name:14} {module.QUESTION}")
        return
    if data is None:
        raise UsageError(f"which data? triptych study {name} --data MANIFEST")
    encoders = dict(DEFAULT_ENCODERS)
    for override in encoder or []:
        modality, _, encoder_name = override.partition("=")
        if modality not in MODALITIES:
            raise UsageError(f"--encoder {override}: {describe_unknown('modality', modality, MODALITIES)}")
        encoders[modality] = encoder_name
    # As it was given, for the page: without the machine's folders, and without --restart, which decides no number.
    command = ["triptych", "study", name, "--data", data.name]
    command += ["--output", output.name] if output.name not in {"", DEFAULT_OUTPUT.name} else []
    command += ["--rows", str(rows)] if rows else []
    command += [word for override in encoder or [] for word in ("--encoder", override)]
    command += ["--allow-outside"] if allow_outside else []
    page = run_study(StudyRequest(name, data, rows, allow_outside, encoders), output, shlex.join(command), restart)
    terminal.stdout.print(f"written: {terminal.relative_path(page)}")
