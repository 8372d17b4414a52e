"""triptych search"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from triptych.interfaces import Modality
    from triptych.search.query import QueryPart

MODALITY_ALIASES = {"sound": "audio", "picture": "image", "words": "text"}
PART_NAMES = ("text", "audio", "image", "video", "item", "not")


def search(
    text: Annotated[list[str] | None, typer.Argument(help="What to look for, in words.")] = None,
    audio: Annotated[list[Path] | None, typer.Option(help="Like this sound file; may be repeated.")] = None,
    image: Annotated[list[Path] | None, typer.Option(help="Like this picture file.")] = None,
    video: Annotated[list[Path] | None, typer.Option(help="Like this film: its picture and its sound.")] = None,
    item: Annotated[list[str] | None, typer.Option(help="Like this item of the collection, by its id.")] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--not", help="But not like this: words, or an existing file.")
    ] = None,
    weight: Annotated[list[str] | None, typer.Option(help=f"PART=NUMBER; a part is {', '.join(PART_NAMES)}.")] = None,
    uri: Annotated[str, typer.Option("--collection", help="Folder of the collection.")] = "collection",
    modality: Annotated[str, typer.Option(help="Only these: image, audio, text (or picture, sound, words).")] = "",
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits.")] = 10,
    folder: Annotated[Path | None, typer.Option(help="Only files below this folder.")] = None,
    min_duration: Annotated[float | None, typer.Option(min=0, help="Only what lasts at least so many seconds.")] = None,
    max_duration: Annotated[float | None, typer.Option(min=0, help="Only what lasts at most so many seconds.")] = None,
    since: Annotated[str | None, typer.Option(metavar="DAY", help="Only files changed on this day or later.")] = None,
    until: Annotated[str | None, typer.Option(metavar="DAY", help="Only files changed on this day or earlier.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="COLUMN=VALUE of the manifest.")] = None,
    include_query: Annotated[bool, typer.Option(help="Also find the items and files that are asked with.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Search a collection by words, sounds, pictures, films, items it has, or several of these at once.

    Relevance tells how unusual a score is in this collection; below 50% a hit is probably not relevant.

    \b
    Examples:
      triptych search "rain on a tin roof" --modality audio -k 20 --json
      triptych search --audio bark.wav --modality image,text
      triptych search "rain" --audio roof.wav --not speech --weight audio=0.5
      triptych search --item 3f2a90c1d2e4b5a6 --folder ~/sounds/field --min-duration 3
      triptych search "a bell" --where split=test --since 2025-01-01
    """
    from triptych.app import terminal
    from triptych.errors import UsageError
    from triptych.search.collection import Collection
    from triptych.search.query import Filter, Query, parse_date
    from triptych.search.relevance import RELEVANCE_THRESHOLD

    weights = _parse_weights(weight or ())
    if not any((text, audio, image, video, item, exclude)):
        raise UsageError("nothing to look for: give words, --audio, --image, --video or --item")
    modalities = _parse_modalities(modality)
    first, last = (None if day is None else parse_date(day) for day in (since, until))
    filters = Filter(
        folder, min_duration, max_duration, first, last, dict(_parse_pair(pair, "--where") for pair in where or ())
    )
    collection = Collection.open(uri)
    parts = _make_query_parts(text, audio, image, video, item, exclude, weights, collection.space.modalities)
    query = Query(parts)
    hits = collection.search(query, modalities, k, filters, include_query=include_query)
    own_items_note = None if include_query else collection.describe_excluded_items(query)
    if own_items_note:
        terminal.stderr.print(f"{own_items_note}; --include-query shows it")
    if as_json:
        typer.echo(json.dumps([asdict(hit) for hit in hits], indent=2, ensure_ascii=False))
        return
    terminal.print_hits(hits)
    if not hits:
        terminal.stderr.print("nothing of that kind is in this collection")
    elif hits[0].relevance < RELEVANCE_THRESHOLD:
        terminal.stderr.print("probably nothing here matches: no score is unusual for this collection")


def _make_query_parts(
    text: Sequence[str] | None,
    audio: Sequence[Path] | None,
    images: Sequence[Path] | None,
    videos: Sequence[Path] | None,
    items: Sequence[str] | None,
    exclude: Sequence[str] | None,
    weights: dict[str, float],
    modalities: "Sequence[Modality]",
) -> "tuple[QueryPart, ...]":
    from triptych.interfaces import Source
    from triptych.search.query import QueryPart, make_negative_parts, make_video_parts

    return (
        *([QueryPart(Source("text", " ".join(text)), weights["text"])] if text else []),
        *(QueryPart(Source("audio", path), weights["audio"]) for path in audio or ()),
        *(QueryPart(Source("image", path), weights["image"]) for path in images or ()),
        *(part for path in videos or () for part in make_video_parts(path, modalities, weights["video"])),
        *(QueryPart(name, weights["item"]) for name in items or ()),
        *(part for excluded in exclude or () for part in make_negative_parts(excluded, modalities, weights["not"])),
    )


def _parse_weights(pairs: Sequence[str]) -> dict[str, float]:
    from triptych.errors import UsageError, describe_unknown

    weights: dict[str, float] = {part: 1.0 for part in PART_NAMES}  # noqa: C420 - typed by hand
    for pair in pairs:
        name, value = _parse_pair(pair, "--weight")
        if name not in PART_NAMES:
            raise UsageError(f"--weight: {describe_unknown('part', name, PART_NAMES)}")
        try:
            weights[name] = float(value)
        except ValueError:
            weights[name] = 0.0
        if not 0 < weights[name] < float("inf"):
            raise UsageError(f"--weight {pair}: give a number above 0; what is not wanted goes to --not")
    return weights


def _parse_pair(pair: str, option: str) -> tuple[str, str]:
    from triptych.errors import UsageError

    name, separator, value = pair.partition("=")
    if not separator or not name:
        raise UsageError(f"{option} {pair}: write NAME=VALUE")
    return name, value


def _parse_modalities(names: str) -> "list[Modality]":
    from triptych.errors import UsageError, describe_unknown
    from triptych.interfaces import MODALITIES

    modalities = [MODALITY_ALIASES.get(name.strip(), name.strip()) for name in names.split(",") if name.strip()]
    for name in modalities:
        if name not in MODALITIES:
            raise UsageError(f"--modality: {describe_unknown('modality', name, MODALITIES)}")
    return [modality for modality in MODALITIES if modality in modalities]
