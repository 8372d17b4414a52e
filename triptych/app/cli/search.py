"""triptych search"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

SAME = {"sound": "audio", "picture": "image", "words": "text"}


def search(
    words: Annotated[list[str] | None, typer.Argument(help="What to look for, in words.")] = None,
    sound: Annotated[Path | None, typer.Option(help="Search by this sound file instead.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Search by this picture file instead.")] = None,
    collection: Annotated[Path, typer.Option("--in", help="Folder of the collection.")] = Path("collection"),
    want: Annotated[str, typer.Option(help="Only these: image, audio, text (or picture, sound, words).")] = "",
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits of each kind.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Search a collection by words, by a sound or by a picture. Higher scores are closer, within one kind of hit.

    \b
    Examples:
      triptych search "two red bells" --in demo/collection
      triptych search --sound bark.wav --want image,text -k 10
      triptych search --picture dog.jpg --want audio --json
    """
    from triptych.app import show
    from triptych.contracts import MODALITIES, Source
    from triptych.errors import UsageError, unknown
    from triptych.search.collection import Collection

    queries = [
        *([Source("text", " ".join(words))] if words else []),
        *([Source("audio", sound)] if sound else []),
        *([Source("image", picture)] if picture else []),
    ]
    if len(queries) != 1:
        raise UsageError(f"give words, --sound or --picture: one of them; found {len(queries)}")
    wanted = [SAME.get(name.strip(), name.strip()) for name in want.split(",") if name.strip()]
    for name in wanted:
        if name not in MODALITIES:
            raise UsageError(f"--want: {unknown('kind', name, MODALITIES)}")
    found = Collection.open(collection).search(queries[0], [m for m in MODALITIES if m in wanted], k)
    if as_json:
        typer.echo(json.dumps([asdict(hit) for hit in found], indent=2, ensure_ascii=False))
    else:
        show.hits(found)
        if not found:
            show.notes.print("nothing of that kind is in this collection")
