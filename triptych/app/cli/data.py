"""triptych data"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from triptych.data.sources.draft import Draft
    from triptych.data.sources.output import Made

SHOWN = 16  # digits of a hash


def _option(help: str, of: str = "single sources", *names: str) -> Any:  # noqa: A002 - typer's own word
    return typer.Option(*names, help=help, rich_help_panel=f"Options of {of}")


Source = Annotated[str | None, typer.Argument(help="A source (none: list them), or speak, or damage.")]
Copy = Annotated[
    Path | None, typer.Argument(metavar="FOLDER", help="Your copy of the data; for speak and damage, a manifest.")
]
Into = Annotated[Path | None, typer.Option("--into", "-o", help="The manifest to write: .csv, .jsonl or .parquet.")]
List = Annotated[bool, typer.Option("--list", help="List the sources and what each expects.")]
Fold = Annotated[int | None, _option("esc50: this official fold is the test split.")]
Classes = Annotated[int | None, _option("esc50: this fold of ten classes is the test split; classes never overlap.")]
Captions = Annotated[str | None, _option("esc50: titles, classes or both; places_audio: none or asr.")]
Language = Annotated[str | None, _option("gcompris: en, fr or both; tuxpaint: en or fr,es or all.")]
Sounds = Annotated[str | None, _option("tuxpaint: effects, speech or both.")]
Splits = Annotated[str | None, _option("coco: official or karpathy; esc50: three, or two (no valid).")]
Text = Annotated[str | None, _option("hf: the columns with captions, with commas.")]
Program = Annotated[str | None, _option("espeak-ng or flite.", "speak")]
Voices = Annotated[str | None, _option("The program's voices, with commas.", "speak")]
Workers = Annotated[int | None, _option("Programs at once; 2 unless given.", "speak")]
Each = Annotated[int | None, _option("Only so many captions of each row; all unless given.", "speak")]
Share = Annotated[float | None, _option("Share of the rows that get something of another row.", "damage")]
Kind = Annotated[str | None, _option("Whose: random; category (same label); similar (close captions).", "damage")]
What = Annotated[str | None, _option("What: text (unless given), image or audio.", "damage")]
Split = Annotated[str | None, _option("Only the rows of this split; all unless given.", "damage")]
Size = Annotated[
    int | None, _option("With similar: rows to a cluster, about; 50 unless given, more are easier.", "damage")
]
Seed = Annotated[int | None, _option("Another seed damages other rows.", "damage")]
Drop = Annotated[
    bool, _option("Leave those rows out in place of damaging them: what is left for one who knew.", "damage", "--drop")
]
Outside = Annotated[
    bool, typer.Option("--allow-outside", help="Accept files elsewhere.", rich_help_panel="Options of speak and damage")
]


def data(
    source: Source = None,
    copy: Copy = None,
    into: Into = None,
    every: List = False,
    fold: Fold = None,
    classes: Classes = None,
    captions: Captions = None,
    language: Language = None,
    sounds: Sounds = None,
    splits: Splits = None,
    text: Text = None,
    program: Program = None,
    voices: Voices = None,
    workers: Workers = None,
    each: Each = None,
    share: Share = None,
    kind: Kind = None,
    modality: What = None,
    split: Split = None,
    size: Size = None,
    seed: Seed = None,
    drop: Drop = False,
    allow_outside: Outside = False,
) -> None:
    """Turn a copy of a data set into a manifest, with official splits and a hash of the exact test set.

    `speak` makes a manifest whose captions are read aloud; `damage` one with wrong pairs, and the key to them.

    \b
    Examples:
      triptych data esc50 ~/ESC-50 --fold 1
      triptych data gcompris ~/gcompris -o gcompris.jsonl --language both
      triptych data folder ~/sounds
      triptych data speak flickr8k/manifest.csv -o flickr8k/spoken.csv --workers 4
      triptych data damage pairs.csv -o wrong.csv --share 0.2 --kind similar
    """
    from triptych.data.sources import SOURCES
    from triptych.data.sources.convert import convert
    from triptych.errors import UsageError, unknown

    of_sources = _given(
        fold=fold, classes=classes, captions=captions, language=language, sounds=sounds, splits=splits, text=text
    )
    of_speak = _given(program=program, voices=voices, workers=workers, each=each)
    of_damage = _given(share=share, kind=kind, modality=modality, split=split, size=size, seed=seed, drop=drop or None)
    outside = _given(allow_outside=allow_outside or None)
    if source is None or every:
        _list()
    elif source == "speak":
        _refuse(source, of_sources | of_damage)
        _speak(copy, into, of_speak | outside)
    elif source == "damage":
        _refuse(source, of_sources | of_speak)
        _damage(copy, into, of_damage | outside)
    elif source not in SOURCES:
        raise UsageError(unknown("source", source, [*SOURCES, "speak", "damage"]))
    else:
        _refuse(f"source {source!r}", of_speak | of_damage | outside)
        report(*convert(source, SOURCES[source], copy, into, of_sources))


def _refuse(name: str, strange: dict[str, Any]) -> None:
    from triptych.errors import UsageError

    if strange:
        option = next(iter(strange)).replace("_", "-")
        raise UsageError(f"{name} has no option --{option}; see `triptych data --help`")


def _damage(manifest: Path | None, into: Path | None, options: dict[str, Any]) -> None:
    from triptych.app.show import from_here, out
    from triptych.data.damage import damage, swaps_of
    from triptych.encoders.minilm import MiniLM
    from triptych.errors import UsageError

    if manifest is None or into is None or "share" not in options:
        raise UsageError("damage reads a manifest and writes another: triptych data damage MANIFEST -o NEW --share 0.2")
    if options.get("kind") == "similar":
        options["encoder"] = MiniLM()
    made, draft = damage(manifest, into, **options)
    report(made, draft)
    what = "left out" if options.get("drop") else "wrong"
    out.print(f"  which rows are {what}: {from_here(swaps_of(made.path))}")


def _speak(manifest: Path | None, into: Path | None, options: dict[str, Any]) -> None:
    from triptych.data.speech import speak
    from triptych.errors import UsageError

    if manifest is None or into is None:
        raise UsageError("speak reads a manifest and writes another: triptych data speak MANIFEST -o NEW")
    if "voices" in options:
        options["voices"] = [voice.strip() for voice in options["voices"].split(",")]
    report(*speak(manifest, into, **options))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _list() -> None:
    from triptych.app.show import out
    from triptych.data.sources import SOURCES

    for name, dataset in SOURCES.items():
        out.print(f"{name:<14}{dataset.title} ({dataset.pairs})", style="bold")
        for line in dataset.expects:
            out.print(f"{'':<14}{line}")
        if dataset.options:
            out.print(f"{'':<14}options: {', '.join(f'--{option}' for option in dataset.options)}")
        out.print(f"{'':<14}licence: {dataset.licence}", style="dim")
    out.print("\ntriptych data SOURCE FOLDER turns your copy into a manifest; nothing is fetched from anywhere")


def report(made: Made, draft: Draft) -> None:
    """What was written, what was not, and what to do next."""
    from triptych.app.show import from_here, notes, out
    from triptych.progress import tell

    found = made.summary
    out.print(f"made: {from_here(made.path)}")
    out.print(
        f"  {found['rows']} rows, {found['captions']} captions, {found['groups']} groups, {found['labels']} labels"
    )
    for title in ("splits", "pairs"):
        out.print(
            f"  {title:<8}{', '.join(f'{name} {count}' for name, count in found[title].items() if count) or 'none'}"
        )
    for name, test in found["test"].items():
        out.print(
            f"  {name}: {test['rows']} rows, {test['captions']} captions, hash {test['rows_hash'][:SHOWN]}, "
            f"with the bytes of its files {test['files_hash'][:SHOWN]}"
        )
    out.print(f"  licence: {found['licence']}")
    out.print(f"  all of this: {from_here(made.sidecar)}")
    for kind, count in found["left_out"].items():
        tell(f"left out: {kind}: {count}")
    for note in draft.notes:
        notes.print(f"note: {note}")
    if made.errors or made.warnings:
        tell(f"{made.errors} errors and {made.warnings} warnings; `triptych check` lists them")
    flag = " --allow-outside" if made.outside else ""
    if made.outside:
        tell("the files lie outside the manifest's folder: every command that reads it needs --allow-outside")
    notes.print(f"next: triptych check {shlex.quote(from_here(made.path))}{flag}")
