"""triptych search"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from triptych.contracts import Modality
    from triptych.search.query import Part

SAME = {"sound": "audio", "picture": "image", "words": "text"}
PARTS = ("words", "sound", "picture", "video", "item", "minus")


def search(
    words: Annotated[list[str] | None, typer.Argument(help="What to look for, in words.")] = None,
    sound: Annotated[list[Path] | None, typer.Option(help="Like this sound file; may be repeated.")] = None,
    picture: Annotated[list[Path] | None, typer.Option(help="Like this picture file.")] = None,
    video: Annotated[list[Path] | None, typer.Option(help="Like this film: its picture and its sound.")] = None,
    item: Annotated[list[str] | None, typer.Option(help="Like this item of the collection, by its id.")] = None,
    minus: Annotated[list[str] | None, typer.Option(help="But not like this: words, or an existing file.")] = None,
    weight: Annotated[list[str] | None, typer.Option(help=f"PART=NUMBER; a part is {', '.join(PARTS)}.")] = None,
    collection: Annotated[str, typer.Option("--in", help="Folder of the collection.")] = "collection",
    want: Annotated[str, typer.Option(help="Only these: image, audio, text (or picture, sound, words).")] = "",
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits.")] = 10,
    folder: Annotated[Path | None, typer.Option(help="Only files below this folder.")] = None,
    longer: Annotated[float | None, typer.Option(min=0, help="Only what lasts at least so many seconds.")] = None,
    shorter: Annotated[float | None, typer.Option(min=0, help="Only what lasts at most so many seconds.")] = None,
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
      triptych search "rain on a tin roof" --want audio -k 20 --json
      triptych search --sound bark.wav --want image,text
      triptych search "rain" --sound roof.wav --minus speech --weight sound=0.5
      triptych search --item 3f2a90c1d2e4b5a6 --folder ~/sounds/field --longer 3
      triptych search "a bell" --where split=test --since 2025-01-01
    """
    from triptych.app import show
    from triptych.errors import UsageError
    from triptych.search.collection import Collection
    from triptych.search.query import Query, Where, read_moment
    from triptych.search.relevance import RELEVANT

    weights = _weights(weight or ())
    if not any((words, sound, picture, video, item, minus)):
        raise UsageError("nothing to look for: give words, --sound, --picture, --video or --item")
    wanted = _modalities(want)
    first, last = (None if day is None else read_moment(day) for day in (since, until))
    limits = Where(folder, longer, shorter, first, last, dict(_pair(pair, "--where") for pair in where or ()))
    opened = Collection.open(collection)
    parts = _parts(words, sound, picture, video, item, minus, weights, opened.space.modalities)
    query = Query(parts)
    found = opened.search(query, wanted, k, limits, include_query=include_query)
    left_out = None if include_query else opened.note_on_own_items(query)
    if left_out:
        show.notes.print(f"{left_out}; --include-query shows it")
    if as_json:
        typer.echo(json.dumps([asdict(hit) for hit in found], indent=2, ensure_ascii=False))
        return
    show.hits(found)
    if not found:
        show.notes.print("nothing of that kind is in this collection")
    elif found[0].relevance < RELEVANT:
        show.notes.print("probably nothing here matches: no score is unusual for this collection")


def _parts(
    words: Sequence[str] | None,
    sounds: Sequence[Path] | None,
    pictures: Sequence[Path] | None,
    films: Sequence[Path] | None,
    items: Sequence[str] | None,
    minus: Sequence[str] | None,
    weights: dict[str, float],
    modalities: "Sequence[Modality]",
) -> "tuple[Part, ...]":
    from triptych.contracts import Source
    from triptych.search.query import Part, film_parts, unwanted

    return (
        *([Part(Source("text", " ".join(words)), weights["words"])] if words else []),
        *(Part(Source("audio", path), weights["sound"]) for path in sounds or ()),
        *(Part(Source("image", path), weights["picture"]) for path in pictures or ()),
        *(part for path in films or () for part in film_parts(path, modalities, weights["video"])),
        *(Part(name, weights["item"]) for name in items or ()),
        *(part for what in minus or () for part in unwanted(what, modalities, weights["minus"])),
    )


def _weights(pairs: Sequence[str]) -> dict[str, float]:
    from triptych.errors import UsageError, unknown

    found: dict[str, float] = {part: 1.0 for part in PARTS}  # noqa: C420 - typed by hand
    for pair in pairs:
        name, value = _pair(pair, "--weight")
        if name not in PARTS:
            raise UsageError(f"--weight: {unknown('part', name, PARTS)}")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = 0.0
        if not 0 < found[name] < float("inf"):
            raise UsageError(f"--weight {pair}: give a number above 0; what is not wanted goes to --minus")
    return found


def _pair(pair: str, option: str) -> tuple[str, str]:
    from triptych.errors import UsageError

    name, found, value = pair.partition("=")
    if not found or not name:
        raise UsageError(f"{option} {pair}: write NAME=VALUE")
    return name, value


def _modalities(want: str) -> "list[Modality]":
    from triptych.contracts import MODALITIES
    from triptych.errors import UsageError, unknown

    wanted = [SAME.get(name.strip(), name.strip()) for name in want.split(",") if name.strip()]
    for name in wanted:
        if name not in MODALITIES:
            raise UsageError(f"--want: {unknown('kind', name, MODALITIES)}")
    return [modality for modality in MODALITIES if modality in wanted]
