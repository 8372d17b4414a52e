"""triptych classify"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer


def classify(
    run: Annotated[Path, typer.Argument(help="A run folder, or the file of a space.")],
    data: Annotated[Path, typer.Option(help="The manifest with labelled rows.")],
    split: Annotated[str, typer.Option(help="Which rows; 'all' for all of them.")] = "test",
    prompt: Annotated[
        list[str] | None, typer.Option(help="A text with {} for the class; several make an ensemble.")
    ] = None,
    by: Annotated[
        Literal["prompts", "embeddings", "features"],
        typer.Option(help="By prompts, or by a linear probe on embeddings or on frozen encoders' features."),
    ] = "prompts",
    learn: Annotated[str, typer.Option(help="The split a probe learns from.")] = "train",
    of: Annotated[Literal["sounds", "pictures", "both"], typer.Option(help="What to classify.")] = "both",
    among: Annotated[
        Literal["split", "all"], typer.Option(help="Prompts of the classes of the split, or of the whole manifest.")
    ] = "split",
    each: Annotated[bool, typer.Option(help="Show every class, not the worst ones only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    allow_outside: Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")] = False,
) -> None:
    """Name labelled sounds and pictures: by the class whose prompts are closest (zero-shot), or by a linear probe.

    \b
    Examples:
      triptych classify runs/mine --data esc50.csv
      triptych classify runs/mine --data esc50.csv --prompt "this is a sound of {}" --prompt "one can hear {}"
      triptych classify runs/mine --data esc50.csv --by features
      triptych classify runs/mine --data pairs.csv --split all --of pictures --each --json
    """
    from triptych.errors import UsageError

    if by != "prompts" and prompt:
        raise UsageError(f"--prompt goes with --by prompts; a probe by {by} reads no prompts")
    if by != "prompts" and split in {learn, "all"}:
        raise UsageError(f"the probe would learn from rows it is measured on: --split {split}, --learn {learn}")

    from triptych.app import show
    from triptych.checkpoint import load
    from triptych.contracts import Modality
    from triptych.data import manifest
    from triptych.evaluation.probe import probe_space
    from triptych.evaluation.zero_shot import classify as name_all

    table = manifest.read(data, allow_outside)
    show.left_out(table)
    rows = table.rows if split == "all" else table.split(split).rows
    wanted: dict[str, list[Modality] | None] = {"sounds": ["audio"], "pictures": ["image"], "both": None}
    space = load(run)
    if by == "prompts":
        classes = list(table.counts.labels) if among == "all" else None
        result = name_all(space, rows, prompt, classes, wanted[of])
    else:
        result = probe_space(space, table.split(learn).rows, rows, by, wanted[of])
    show.failed(result.failures.values())
    if as_json:
        typer.echo(json.dumps([asdict(found) for found in result.found], indent=2, ensure_ascii=False))
    else:
        show.classified(result.found, each)
