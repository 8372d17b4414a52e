"""The `triptych index` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app import checks
from triptych.app.cli.options import AllowOutside, MovedRoots, accepts_execution, accepts_plugins

MediaPath = Annotated[
    Path,
    typer.Argument(help="Folder of media files, one file, or a manifest with captions.", callback=checks.check_media),
]
Space = Annotated[
    str | None,
    typer.Option(
        help="Run folder, checkpoint file, starter, or joint model: a folder, hf:NAME or st:NAME. A+B joins spaces. "
        "Default: the space of the collection; for a new collection, the default space of `triptych spaces`.",
        callback=checks.check_space,
    ),
]
Rebuild = Annotated[bool, typer.Option(help="Delete the collection and index again. Cached features are reused.")]


@accepts_plugins
@accepts_execution
def index(
    path: MediaPath,
    space: Space = None,
    uri: Annotated[str, typer.Option("--collection", help="Collection: a folder or s3://….")] = "collection",
    split: Annotated[str | None, typer.Option(help="Index only this split of a manifest.")] = None,
    rebuild: Rebuild = False,
    root: MovedRoots = None,
    allow_outside: AllowOutside = False,
) -> None:
    """Embed files and store them in a searchable collection. Only new and changed files are embedded.

    Run the command again when files have changed, and for each further folder. If indexing is interrupted, run the same
    command to resume.
    Files that could not be indexed are listed with the reason in not-indexed.tsv in the collection's folder.

    \b
    Examples:
      triptych index ~/media
      triptych index ~/recordings --space runs/trimodal
      triptych index ~/photos --space hf:openai/clip-vit-base-patch32
      triptych index demo/data/manifest.csv --split test --space demo/run --collection demo/collection
      triptych index ~/media --rebuild
      triptych index /mnt/recordings --root recordings=/mnt/recordings  # the folder was moved
    """
    from triptych.app import space_choice, terminal

    space = space or space_choice.choose_space(uri)
    from triptych.search.collection import Collection
    from triptych.search.roots import parse_roots
    from triptych.search.scan import scan_path

    collection = Collection(uri, space, rebuild=rebuild, roots=parse_roots(root or ()))
    if space is None:
        terminal.stderr.print(f"space: {collection.space_path} (of the collection)")
    scan = scan_path(path, collection.space, split, allow_outside, exclude=collection.folder)
    terminal.print_scan(scan)
    result = collection.add_scan(scan)
    terminal.print_failures(result.failures.values(), collection.not_indexed_path)
    if collection.not_indexed_path.exists():
        count, list_path = len(result.failures) + len(scan.skipped), terminal.relative_path(collection.not_indexed_path)
        terminal.stderr.print(f"files not indexed: {count}; {list_path} lists them with the reasons")
    terminal.stdout.print(
        f"{uri}: {len(collection)} items ({result.added} new, {result.unchanged} unchanged, {result.removed} removed)"
    )
    terminal.print_search_commands(uri, collection.space.modalities)
