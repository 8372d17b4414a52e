"""triptych data"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from triptych.data.sources.draft import ManifestDraft
    from triptych.data.sources.manifest_writer import WrittenManifest

HASH_DIGITS = 16  # digits of a hash


def _option(help: str, command: str = "single sources", *names: str) -> Any:  # noqa: A002 - typer's own word
    return typer.Option(*names, help=help, rich_help_panel=f"Options of {command}")


SourceArgument = Annotated[
    str | None, typer.Argument(help="A source (none: list them), or add-speech, or inject-noise.")
]
FolderArgument = Annotated[
    Path | None,
    typer.Argument(metavar="FOLDER", help="Your copy of the data; for add-speech and inject-noise, a manifest."),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="The manifest to write: .csv, .jsonl or .parquet.")
]
ListOption = Annotated[bool, typer.Option("--list", help="List the sources and what each expects.")]
Fold = Annotated[int | None, _option("esc50: this official fold is the test split.")]
Classes = Annotated[int | None, _option("esc50: this fold of ten classes is the test split; classes never overlap.")]
Captions = Annotated[str | None, _option("esc50: titles, classes or both; places_audio: none or asr.")]
Language = Annotated[str | None, _option("gcompris: en, fr or both; tuxpaint: en or fr,es or all.")]
Audio = Annotated[str | None, _option("tuxpaint: effects, speech or both.")]
Splits = Annotated[str | None, _option("coco: official or karpathy; esc50: three, or two (no valid).")]
Text = Annotated[str | None, _option("hf: the columns with captions, with commas.")]
Program = Annotated[str | None, _option("espeak-ng or flite.", "add-speech")]
Voices = Annotated[str | None, _option("The program's voices, with commas.", "add-speech")]
Workers = Annotated[int | None, _option("Programs at once; 2 unless given.", "add-speech")]
CaptionsPerRow = Annotated[int | None, _option("Only so many captions of each row; all unless given.", "add-speech")]
NoiseRate = Annotated[float | None, _option("Share of the rows that get something of another row.", "inject-noise")]
NoiseKind = Annotated[
    str | None, _option("Whose: random; category (same label); similar (close captions).", "inject-noise")
]
NoiseModality = Annotated[str | None, _option("What: text (unless given), image or audio.", "inject-noise")]
Split = Annotated[str | None, _option("Only the rows of this split; all unless given.", "inject-noise")]
ClusterSize = Annotated[
    int | None, _option("With similar: rows to a cluster, about; 50 unless given, more are easier.", "inject-noise")
]
Seed = Annotated[int | None, _option("Another seed damages other rows.", "inject-noise")]
Drop = Annotated[
    bool,
    _option("Leave those rows out in place of damaging them: what is left for one who knew.", "inject-noise", "--drop"),
]
Outside = Annotated[
    bool,
    typer.Option(
        "--allow-outside", help="Accept files elsewhere.", rich_help_panel="Options of add-speech and inject-noise"
    ),
]


def data(
    source: SourceArgument = None,
    folder: FolderArgument = None,
    output: OutputOption = None,
    list_sources: ListOption = False,
    fold: Fold = None,
    classes: Classes = None,
    captions: Captions = None,
    language: Language = None,
    audio: Audio = None,
    splits: Splits = None,
    text: Text = None,
    program: Program = None,
    voices: Voices = None,
    workers: Workers = None,
    captions_per_row: CaptionsPerRow = None,
    noise_rate: NoiseRate = None,
    noise_kind: NoiseKind = None,
    modality: NoiseModality = None,
    split: Split = None,
    cluster_size: ClusterSize = None,
    seed: Seed = None,
    drop: Drop = False,
    allow_outside: Outside = False,
) -> None:
    """Turn a copy of a data set into a manifest, with official splits and a hash of the exact test set.

    `add-speech` makes a manifest whose captions are read aloud; `inject-noise` one with wrong pairs, and the key to them.

    \b
    Examples:
      triptych data esc50 ~/ESC-50 --fold 1
      triptych data gcompris ~/gcompris -o gcompris.jsonl --language both
      triptych data folder ~/sounds
      triptych data add-speech flickr8k/manifest.csv -o flickr8k/spoken.csv --workers 4
      triptych data inject-noise pairs.csv -o wrong.csv --noise-rate 0.2 --noise-kind similar
    """
    from triptych.data.sources import SOURCES
    from triptych.data.sources.convert import convert
    from triptych.errors import UsageError, describe_unknown

    source_options = _drop_unset(
        fold=fold, classes=classes, captions=captions, language=language, audio=audio, splits=splits, text=text
    )
    speech_options = _drop_unset(program=program, voices=voices, workers=workers, captions_per_row=captions_per_row)
    noise_options = _drop_unset(
        noise_rate=noise_rate,
        noise_kind=noise_kind,
        modality=modality,
        split=split,
        cluster_size=cluster_size,
        seed=seed,
        drop=drop or None,
    )
    path_options = _drop_unset(allow_outside=allow_outside or None)
    if source is None or list_sources:
        _print_sources()
    elif source == "add-speech":
        _check_no_options(source, source_options | noise_options)
        _add_speech(folder, output, speech_options | path_options)
    elif source == "inject-noise":
        _check_no_options(source, source_options | speech_options)
        _inject_noise(folder, output, noise_options | path_options)
    elif source not in SOURCES:
        raise UsageError(describe_unknown("source", source, [*SOURCES, "add-speech", "inject-noise"]))
    else:
        _check_no_options(f"source {source!r}", speech_options | noise_options | path_options)
        print_written(*convert(source, SOURCES[source], folder, output, source_options))


def _check_no_options(name: str, options: dict[str, Any]) -> None:
    from triptych.errors import UsageError

    if options:
        option = next(iter(options)).replace("_", "-")
        raise UsageError(f"{name} has no option --{option}; see `triptych data --help`")


def _inject_noise(manifest: Path | None, output: Path | None, options: dict[str, Any]) -> None:
    from triptych.app.terminal import relative_path, stdout
    from triptych.data.noise_injection import inject_noise, swaps_path
    from triptych.encoders.minilm import MiniLM
    from triptych.errors import UsageError

    if manifest is None or output is None or "noise_rate" not in options:
        raise UsageError(
            "inject-noise reads a manifest and writes another: triptych data inject-noise MANIFEST -o NEW --noise-rate 0.2"
        )
    if options.get("noise_kind") == "similar":
        options["encoder"] = MiniLM()
    written, draft = inject_noise(manifest, output, **options)
    print_written(written, draft)
    effect = "left out" if options.get("drop") else "wrong"
    stdout.print(f"  which rows are {effect}: {relative_path(swaps_path(written.path))}")


def _add_speech(manifest: Path | None, output: Path | None, options: dict[str, Any]) -> None:
    from triptych.data.speech_synthesis import synthesise_speech
    from triptych.errors import UsageError

    if manifest is None or output is None:
        raise UsageError("add-speech reads a manifest and writes another: triptych data add-speech MANIFEST -o NEW")
    if "voices" in options:
        options["voices"] = [voice.strip() for voice in options["voices"].split(",")]
    print_written(*synthesise_speech(manifest, output, **options))


def _drop_unset(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _print_sources() -> None:
    from triptych.app.terminal import stdout
    from triptych.data.sources import SOURCES

    for name, dataset in SOURCES.items():
        stdout.print(f"{name:<14}{dataset.title} ({dataset.modalities})", style="bold")
        for line in dataset.expected_files:
            stdout.print(f"{'':<14}{line}")
        if dataset.option_names:
            stdout.print(f"{'':<14}options: {', '.join(f'--{option}' for option in dataset.option_names)}")
        stdout.print(f"{'':<14}licence: {dataset.licence}", style="dim")
    stdout.print("\ntriptych data SOURCE FOLDER turns your copy into a manifest; nothing is fetched from anywhere")


def print_written(written: WrittenManifest, draft: ManifestDraft) -> None:
    """What was written, what was not, and what to do next."""
    from triptych.app.terminal import relative_path, stderr, stdout
    from triptych.progress import notify

    summary = written.summary
    stdout.print(f"made: {relative_path(written.path)}")
    stdout.print(
        f"  {summary['rows']} rows, {summary['captions']} captions, {summary['groups']} groups, {summary['labels']} labels"
    )
    for title in ("splits", "pairs"):
        stdout.print(
            f"  {title:<8}{', '.join(f'{name} {count}' for name, count in summary[title].items() if count) or 'none'}"
        )
    for name, test_set in summary["test"].items():
        stdout.print(
            f"  {name}: {test_set['rows']} rows, {test_set['captions']} captions, hash {test_set['rows_hash'][:HASH_DIGITS]}, "
            f"with the bytes of its files {test_set['files_hash'][:HASH_DIGITS]}"
        )
    stdout.print(f"  licence: {summary['licence']}")
    stdout.print(f"  all of this: {relative_path(written.sidecar)}")
    for reason, count in summary["skipped"].items():
        notify(f"left out: {reason}: {count}")
    for note in draft.notes:
        stderr.print(f"note: {note}")
    if written.num_errors or written.num_warnings:
        notify(f"{written.num_errors} errors and {written.num_warnings} warnings; `triptych validate` lists them")
    flag = " --allow-outside" if written.needs_allow_outside else ""
    if written.needs_allow_outside:
        notify("the files lie outside the manifest's folder: every command that reads it needs --allow-outside")
    stderr.print(f"next: triptych validate {shlex.quote(relative_path(written.path))}{flag}")
