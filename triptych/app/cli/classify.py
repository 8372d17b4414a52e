"""The `triptych classify` command."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from triptych.app import checks
from triptych.app.cli.options import AllowOutside, AsJson, Run, Split, accepts_execution, accepts_plugins

Prompts = Annotated[
    list[str] | None,
    typer.Option(help="Prompt template with {} for the class name. Repeat the option for an ensemble."),
]
Method = Annotated[
    Literal["prompts", "embeddings", "features"],
    typer.Option(help="prompts: zero-shot. embeddings, features: linear probe on embeddings or encoder features."),
]
Classes = Annotated[
    Literal["split", "all"], typer.Option(help="Candidate classes: classes of the split, or all of the manifest.")
]


@accepts_plugins
@accepts_execution
def classify(
    run: Run,
    data: Annotated[Path, typer.Option(help="Manifest with a label column.", callback=checks.check_manifests)],
    split: Split = "test",
    prompt: Prompts = None,
    method: Method = "prompts",
    train_split: Annotated[str, typer.Option(help="Split on which a linear probe is trained.")] = "train",
    modality: Annotated[Literal["audio", "image", "both"], typer.Option(help="Modality to classify.")] = "both",
    classes: Classes = "split",
    show_all: Annotated[bool, typer.Option("--all", help="Show every class, not only the worst ones.")] = False,
    as_json: AsJson = False,
    allow_outside: AllowOutside = False,
) -> None:
    """Classify labelled audio and images: zero-shot by prompts, or with a linear probe.

    \b
    Examples:
      triptych classify runs/mine --data esc50.csv
      triptych classify runs/mine --data esc50.csv --prompt "this is a sound of {}" --prompt "one can hear {}"
      triptych classify runs/mine --data esc50.csv --method features
      triptych classify runs/mine --data pairs.csv --split all --modality image --all --json
    """
    from triptych.app import terminal
    from triptych.evaluation.classify import ClassifyRequest, classify_split

    modalities = ("audio", "image") if modality == "both" else (modality,)
    request = ClassifyRequest(split, method, tuple(prompt or ()), train_split, modalities, classes)
    request.validate()
    result = classify_split(run, terminal.read_manifest(data, allow_outside), request)
    terminal.print_failures(result.failures.values())
    terminal.print_results(result.results, as_json, lambda results: terminal.print_classifications(results, show_all))
