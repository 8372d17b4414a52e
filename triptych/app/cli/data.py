"""The `triptych data` commands: convert datasets to manifests, derive manifests, generate synthetic data."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from triptych.app.cli.options import AllowOutside, accepts_plugins
from triptych.app.cli.synthetic import synthetic

if TYPE_CHECKING:
    from triptych.data.datasets.draft import ManifestDraft
    from triptych.data.datasets.manifest_writer import WrittenManifest

HASH_DIGITS = 16  # number of hexadecimal digits of a hash that are printed
DATASETS, FORMATS, GENERATED = "Datasets", "Formats", "Derived and synthetic data"  # headings on the help page
PLUGINS = "Plug-ins"
LAYOUT_HINT = "`triptych data` lists the files that each source expects."


class DataCommands(TyperGroup):
    """The sub-commands of `triptych data`: our own, one for each dataset plug-in, and module:ATTRIBUTE."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Add the sub-commands of plug-ins. A plug-in is imported when its sub-command runs."""
        from triptych.plugins import list_plugins

        for name in [*(plugin.name for plugin in list_plugins("dataset")), *(word for word in args[:1] if ":" in word)]:
            if name not in self.commands:
                self.add_command(_make_plugin_command(name))
        return super().make_context(info_name, args, parent, **extra)


data = typer.Typer(rich_markup_mode="rich", cls=DataCommands)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Your copy of the dataset.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Manifest to write: .csv, .jsonl or .parquet.")]
ManifestPath = Annotated[Path, typer.Argument(metavar="MANIFEST", help="Manifest to read.")]
DerivedOutput = Annotated[Path, typer.Option("--output", "-o", help="Manifest to write: .csv, .jsonl or .parquet.")]
OwnFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with your own files.")]
FlickrCaptions = Annotated[
    str | None, typer.Option(help="together: one row per image; single: one row per caption. Default: together.")
]
CocoSplits = Annotated[
    str | None, typer.Option(help="official, karpathy, or auto: karpathy if that file exists. Default: auto.")
]
PlacesCaptions = Annotated[
    str | None, typer.Option(help="none, or asr: transcripts by a speech recogniser. Default: none.")
]
PluginOptions = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Option of the plug-in.")]
GcomprisLanguage = Annotated[str | None, typer.Option(help="en, fr or both. Default: en.")]
CaptionColumns = Annotated[
    str | None, typer.Option(help="Caption columns, comma-separated. Default: text, caption and similar names.")
]


def _command(name: str, panel: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    epilog = None if panel == GENERATED else LAYOUT_HINT
    return data.command(name, rich_help_panel=panel, epilog=epilog, no_args_is_help=name != "tuxpaint")


def _add_converter(name: str, panel: str, title: str, example: str) -> None:
    """Add the command of a source that has no options."""

    def convert_source(folder: Folder, output: Output = None) -> None:
        _convert(name, folder, output)

    convert_source.__doc__ = f"{title}\n\nExample: triptych data {name} {example}"
    _command(name, panel)(convert_source)


def _make_plugin_command(name: str) -> Any:
    """Return the sub-command of a dataset plug-in."""
    plugin_app = typer.Typer(rich_markup_mode="rich", add_completion=False)

    @accepts_plugins
    def convert_plugin(folder: Folder, output: Output = None, option: PluginOptions = None) -> None:
        from triptych.data.datasets import DATASETS

        _convert(name, folder, output, **DATASETS[name].parse_options(option or []))

    convert_plugin.__doc__ = f"Convert a dataset with a plug-in.\n\nExample: triptych data {name} FOLDER -o pairs.csv"
    plugin_app.command(name, rich_help_panel=PLUGINS, epilog=LAYOUT_HINT, no_args_is_help=True)(convert_plugin)
    return typer.main.get_command(plugin_app)


@data.callback(invoke_without_command=True)
def list_sources(context: typer.Context) -> None:
    """Convert a local copy of a dataset to a manifest, derive a manifest from another, or generate synthetic data.

    Without a sub-command, list all sources and the files that each source expects. Nothing is downloaded. Next to each
    manifest, NAME.source.json records the source, options, licence, counts and a hash of the exact test set.

    \b
    Examples:
      triptych data
      triptych data esc50 ~/ESC-50 --fold 1
      triptych data folder ~/recordings
      triptych data add-speech flickr8k/manifest.csv -o flickr8k/spoken.csv
      triptych data inject-noise pairs.csv -o noisy.csv --noise-rate 0.2
      triptych data synthetic demo/data
    """
    if context.invoked_subcommand is None:
        _print_sources()


@_command("esc50", DATASETS)
def esc50(
    folder: Folder,
    output: Output = None,
    fold: Annotated[int | None, typer.Option(help="Official fold to test on, 1 to 5. Default: 1.")] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            help="Split by class, so that no class is in two splits; test on this fold of ten classes, 1 to 5."
        ),
    ] = None,
    captions: Annotated[str | None, typer.Option(help="titles, classes or both. Default: both.")] = None,
    splits: Annotated[str | None, typer.Option(help="three, or two (no valid split). Default: three.")] = None,
) -> None:
    """ESC-50: 2,000 environmental recordings in 50 classes and 5 folds.

    \b
    Examples:
      triptych data esc50 ~/ESC-50 --fold 1
      triptych data esc50 ~/ESC-50 -o disjoint.csv --classes 2 --captions titles
    """
    _convert("esc50", folder, output, fold=fold, classes=classes, captions=captions, splits=splits)


_add_converter("clotho", DATASETS, "Clotho: Freesound recordings with five captions each.", "~/clotho")
_add_converter("audiocaps", DATASETS, "AudioCaps: ten-second AudioSet clips with captions.", "~/audiocaps")
_add_converter(
    "wavcaps",
    DATASETS,
    "WavCaps: recordings from four websites, with captions written by a language model.",
    "~/WavCaps",
)


@_command("flickr8k", DATASETS)
def flickr8k(folder: Folder, output: Output = None, captions: FlickrCaptions = None) -> None:
    """Flickr8k: photographs with five captions each, official splits.

    Example: triptych data flickr8k ~/flickr8k --captions single
    """
    _convert("flickr8k", folder, output, captions=captions)


@_command("coco", DATASETS)
def coco(folder: Folder, output: Output = None, splits: CocoSplits = None) -> None:
    """COCO Captions: photographs with five captions each.

    Example: triptych data coco ~/coco --splits karpathy
    """
    _convert("coco", folder, output, splits=splits)


@_command("places_audio", DATASETS)
def places_audio(folder: Folder, output: Output = None, captions: PlacesCaptions = None) -> None:
    """Places Audio Captions: photographs with spoken descriptions.

    Example: triptych data places_audio ~/PlacesAudio --captions asr
    """
    _convert("places_audio", folder, output, captions=captions)


_add_converter("flickr_audio", DATASETS, "Flickr 8k Audio Captions: images with captions read aloud.", "~/flickr8k")


@_command("tuxpaint", DATASETS)
def tuxpaint(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="Stamps folder or .deb file. Default: the installed package."),
    ] = None,
    output: Output = None,
    language: Annotated[str | None, typer.Option(help="Languages, such as en or fr,es; or all. Default: en.")] = None,
    audio: Annotated[str | None, typer.Option(help="effects, speech or both. Default: both.")] = None,
) -> None:
    """Tux Paint stamps: images with captions, sound effects and speech.

    \b
    Examples:
      triptych data tuxpaint -o tuxpaint.csv
      triptych data tuxpaint tuxpaint-stamps-default.deb -o tuxpaint.csv --language fr,es --audio speech
    """
    _convert("tuxpaint", folder, output, language=language, audio=audio)


@_command("gcompris", DATASETS)
def gcompris(folder: Folder, output: Output = None, language: GcomprisLanguage = None) -> None:
    """GCompris: images of objects with a word and its recorded speech.

    Example: triptych data gcompris ~/gcompris -o gcompris.jsonl --language both
    """
    _convert("gcompris", folder, output, language=language)


@_command("folder", FORMATS)
def folder(folder: OwnFolder, output: Output = None) -> None:
    """Any folder: pair files that have the same name. Captions are text files, or else file and folder names.

    Example: triptych data folder ~/recordings
    """
    _convert("folder", folder, output)


_add_converter("webdataset", FORMATS, "WebDataset: tar shards.", "~/shards -o shards.csv")


@_command("hf", FORMATS)
def hf(folder: Folder, output: Output = None, text: CaptionColumns = None) -> None:
    """Hugging Face: a save_to_disk folder or Parquet files.

    Example: triptych data hf ~/my_dataset -o mine.csv --text caption,title
    """
    _convert("hf", folder, output, text=text)


@_command("add-speech", GENERATED)
def add_speech(
    manifest: ManifestPath,
    output: DerivedOutput,
    program: Annotated[str | None, typer.Option(help="espeak-ng or flite. Default: the first one installed.")] = None,
    voices: Annotated[str | None, typer.Option(help="Voices of the program, comma-separated.")] = None,
    workers: Annotated[int, typer.Option(help="Number of parallel processes.")] = 2,
    captions_per_row: Annotated[int, typer.Option(help="Maximum number of captions per row; 0 means all.")] = 0,
    allow_outside: AllowOutside = False,
) -> None:
    """Synthesise speech from captions: write a manifest with one row per caption, with the speech as audio.

    Example: triptych data add-speech flickr8k/manifest.csv -o flickr8k/spoken.csv --workers 4
    """
    from triptych.data.speech_synthesis import synthesise_speech

    voice_names = [voice.strip() for voice in voices.split(",")] if voices else ()
    print_written_manifest(
        *synthesise_speech(manifest, output, program, voice_names, workers, captions_per_row, allow_outside)
    )


@_command("inject-noise", GENERATED)
def inject_noise(
    manifest: ManifestPath,
    output: DerivedOutput,
    noise_rate: Annotated[float, typer.Option(help="Fraction of rows to mismatch, from 0 to 1.")],
    noise_kind: Annotated[
        str | None,
        typer.Option(help="Swap with random rows (default), category (same label) or similar (similar captions)."),
    ] = None,
    modality: Annotated[str | None, typer.Option(help="Modality to swap: text (default), image or audio.")] = None,
    split: Annotated[str | None, typer.Option(help="Change this split only. Default: all splits.")] = None,
    cluster_size: Annotated[
        int | None, typer.Option(help="For similar: mean rows per caption cluster. Larger is easier. Default: 50.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed. Default: 0.")] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Drop the rows instead of swapping them (oracle).")] = False,
    allow_outside: AllowOutside = False,
) -> None:
    """Inject label noise: write a manifest with mismatched pairs, and the list of swapped rows.

    Example: triptych data inject-noise pairs.csv -o noisy.csv --noise-rate 0.2 --noise-kind similar
    """
    from triptych.app.terminal import relative_path, stdout
    from triptych.data import noise_injection
    from triptych.encoders.minilm import MiniLM

    options = _drop_unset(noise_kind=noise_kind, modality=modality, split=split, cluster_size=cluster_size, seed=seed)
    options |= {"encoder": MiniLM() if noise_kind == "similar" else None, "drop": drop, "allow_outside": allow_outside}
    written, draft = noise_injection.inject_noise(manifest, output, noise_rate, **options)
    print_written_manifest(written, draft)
    swaps = relative_path(noise_injection.swaps_path(written.path))
    stdout.print(f"  {'dropped' if drop else 'swapped'} rows: {swaps}")


data.command("synthetic", rich_help_panel=GENERATED, no_args_is_help=True)(synthetic)


def _convert(source: str, folder: Path | None, output: Path | None, **options: Any) -> None:
    from triptych.data.datasets import DATASETS
    from triptych.data.datasets.convert import convert

    print_written_manifest(*convert(source, DATASETS[source], folder, output, _drop_unset(**options)))


def _drop_unset(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _print_sources() -> None:
    from triptych.app.terminal import stdout
    from triptych.data.datasets import DATASETS
    from triptych.errors import TriptychError
    from triptych.progress import notify

    for name in [*DATASETS, *(name for name in DATASETS.known_names() if name not in DATASETS)]:
        try:
            dataset = DATASETS[name]
        except TriptychError as error:
            notify(f"{name}: {error}")
            continue
        prefix = "--" if name in DATASETS else "--option "
        stdout.print(f"{name:<14}{dataset.title} ({dataset.modalities})", style="bold")
        for line in dataset.expected_files:
            stdout.print(f"{'':<14}{line}")
        if dataset.option_names:
            stdout.print(f"{'':<14}options: {', '.join(prefix + option for option in dataset.option_names)}")
        stdout.print(f"{'':<14}licence: {dataset.licence}", style="dim")
    stdout.print("\n`triptych data SOURCE FOLDER` converts your copy to a manifest. Nothing is downloaded.")


def print_written_manifest(written: WrittenManifest, draft: ManifestDraft) -> None:
    """Print the counts of a written manifest, the skipped rows, and the next command."""
    from triptych.app.terminal import relative_path, stderr, stdout
    from triptych.progress import notify

    summary = written.summary
    totals = ", ".join(f"{summary[name]} {name}" for name in ("rows", "captions", "groups", "labels"))
    stdout.print(f"wrote: {relative_path(written.path)}\n  {totals}")
    for title in ("splits", "pairs"):
        counts = ", ".join(f"{name} {count}" for name, count in summary[title].items() if count)
        stdout.print(f"  {title:<8}{counts or 'none'}")
    for name, test_set in summary["test"].items():
        hashes = ", ".join(f"hash of the {key} {test_set[f'{key}_hash'][:HASH_DIGITS]}" for key in ("rows", "files"))
        stdout.print(f"  {name}: {test_set['rows']} rows, {test_set['captions']} captions, {hashes}")
    stdout.print(f"  licence: {summary['licence']}\n  details: {relative_path(written.sidecar)}")
    for reason, count in summary["skipped"].items():
        notify(f"skipped: {reason}: {count}")
    for note in draft.notes:
        stderr.print(f"note: {note}")
    if written.num_errors or written.num_warnings:
        notify(f"{written.num_errors} errors and {written.num_warnings} warnings; list them with `triptych validate`")
    flag = " --allow-outside" if written.needs_allow_outside else ""
    if flag:
        notify("files lie outside the manifest's folder: every command that reads this manifest needs --allow-outside")
    stderr.print(f"next: triptych validate {shlex.quote(relative_path(written.path))}{flag}")
