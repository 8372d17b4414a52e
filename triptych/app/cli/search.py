"""The `triptych search` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import AsJson, MovedRoots, MovedSpace, accepts_execution, accepts_plugins

Day = Annotated[str | None, typer.Option(metavar="DAY", help="Only files modified on this day or later.")]
LastDay = Annotated[str | None, typer.Option(metavar="DAY", help="Only files modified on this day or earlier.")]
Uri = Annotated[
    str, typer.Option("--collection", help="Collection: a folder or s3://….", callback=checks.check_collection)
]
CHECK = checks.check_query_files
AudioFiles = Annotated[list[Path] | None, typer.Option(help="Audio file as query. Can be repeated.", callback=CHECK)]
ImageFiles = Annotated[list[Path] | None, typer.Option(help="Image file as query.", callback=CHECK)]
VideoFiles = Annotated[
    list[Path] | None, typer.Option(help="Video file as query: middle frame and audio.", callback=CHECK)
]
Weights = Annotated[list[str] | None, typer.Option(help="PART=WEIGHT; PART: text, audio, image, video, item or not.")]


@accepts_plugins
@accepts_execution
def search(
    text: Annotated[list[str] | None, typer.Argument(help="Text query.")] = None,
    audio: AudioFiles = None,
    image: ImageFiles = None,
    video: VideoFiles = None,
    item: Annotated[list[str] | None, typer.Option(help="Id of an item of the collection as query.")] = None,
    exclude: Annotated[list[str] | None, typer.Option("--not", help="Negative query: a text or a file.")] = None,
    weight: Weights = None,
    uri: Uri = "collection",
    modality: Annotated[str, typer.Option(help="Modalities to return, comma-separated. Default: all.")] = "",
    k: Annotated[int, typer.Option("-k", min=1, help="Number of hits.")] = 10,
    folder: Annotated[Path | None, typer.Option(help="Only files in this folder and its subfolders.")] = None,
    min_duration: Annotated[float | None, typer.Option(min=0, help="Only items of at least this many seconds.")] = None,
    max_duration: Annotated[float | None, typer.Option(min=0, help="Only items of at most this many seconds.")] = None,
    since: Day = None,
    until: LastDay = None,
    where: Annotated[list[str] | None, typer.Option(help="Only rows with COLUMN=VALUE in the manifest.")] = None,
    space: MovedSpace = None,
    root: MovedRoots = None,
    include_query: Annotated[bool, typer.Option(help="Also return items that are identical to the query.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search a collection by text, audio, image, video or stored item, or by a combination of these.

    The relevance, from 0 to 100%, measures how unusual a score is in this collection. Hits below 50% are probably not
    relevant.

    \b
    Examples:
      triptych search "rain on a tin roof" --modality audio -k 20 --json
      triptych search --audio bark.wav --modality image,text
      triptych search "rain" --audio roof.wav --not speech --weight audio=0.5
      triptych search --item 3f2a90c1d2e4b5a6 --folder ~/recordings/field --min-duration 3
      triptych search "a bell" --where split=test --since 2025-01-01
      triptych search "rain" --root recordings=/mnt/recordings  # the indexed folder was moved
    """
    from triptych.app import collections, terminal
    from triptych.search import query as queries
    from triptych.search.collection import Collection
    from triptych.search.roots import parse_roots

    inputs = queries.QueryInputs(
        " ".join(text or ()), audio or (), image or (), video or (), item or (), exclude or (),
        queries.parse_weights(weight or ()),
    )  # fmt: skip
    inputs.check_not_empty()
    modalities = queries.parse_modalities(modality)
    first, last = (None if day is None else queries.parse_date(day) for day in (since, until))
    columns = queries.parse_pairs(where or (), "--where")
    item_filter = queries.Filter(folder, min_duration, max_duration, first, last, columns)
    collection = Collection(uri, space, roots=parse_roots(root or ()))
    collections.print_missing_roots(collection)
    query = inputs.make_query(collection.space.modalities)
    hits = collection.search(query, modalities, k, item_filter=item_filter, include_query=include_query)
    if not include_query and (note := collection.describe_excluded_items(query)):
        terminal.stderr.print(f"{note}; --include-query shows it")
    if as_json:
        terminal.print_json(hits.to_dicts())
    else:
        terminal.print_search_results(hits)
