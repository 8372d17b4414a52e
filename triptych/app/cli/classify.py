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
    method: Annotated[
        Literal["prompts", "embeddings", "features"],
        typer.Option(help="By prompts, or by a linear probe on embeddings or on frozen encoders' features."),
    ] = "prompts",
    train_split: Annotated[str, typer.Option(help="The split a probe learns from.")] = "train",
    modality: Annotated[Literal["audio", "image", "both"], typer.Option(help="What to classify.")] = "both",
    classes: Annotated[
        Literal["split", "all"], typer.Option(help="Prompts of the classes of the split, or of the whole manifest.")
    ] = "split",
    show_all: Annotated[bool, typer.Option("--all", help="Show every class, not the worst ones only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    allow_outside: Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")] = False,
) -> None:
    """Name labelled sounds and pictures: by the class whose prompts are closest (zero-shot), or by a linear probe.

    \b
    Examples:
      triptych classify runs/mine --data esc50.csv
      triptych classify runs/mine --data esc50.csv --prompt "this is a sound of {}" --prompt "one can hear {}"
      triptych classify runs/mine --data esc50.csv --method features
      triptych classify runs/mine --data pairs.csv --split all --modality image --all --json
    """
    from triptych.errors import UsageError

    if method != "prompts" and prompt:
        raise UsageError(f"--prompt goes with --method prompts; a probe by {method} reads no prompts")
    if method != "prompts" and split in {train_split, "all"}:
        raise UsageError(
            f"the probe would learn from rows it is measured on: --split {split}, --train-split {train_split}"
        )

    from triptych.app import terminal
    from triptych.checkpoint import load
    from triptych.data import manifest
    from triptych.evaluation.probe import probe_space
    from triptych.evaluation.zero_shot import classify as classify_zero_shot
    from triptych.interfaces import Modality

    table = manifest.read(data, allow_outside)
    terminal.print_unusable_rows(table)
    rows = table.rows if split == "all" else table.split(split).rows
    modalities: dict[str, list[Modality] | None] = {"audio": ["audio"], "image": ["image"], "both": None}
    space = load(run)
    if method == "prompts":
        class_names = list(table.counts.labels) if classes == "all" else None
        result = classify_zero_shot(space, rows, prompt, class_names, modalities[modality])
    else:
        result = probe_space(space, table.split(train_split).rows, rows, method, modalities[modality])
    terminal.print_failures(result.failures.values())
    if as_json:
        typer.echo(
            json.dumps([asdict(classification) for classification in result.results], indent=2, ensure_ascii=False)
        )
    else:
        terminal.print_classifications(result.results, show_all)
