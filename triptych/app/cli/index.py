"""The `triptych index` command."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app.cli.options import AllowOutside, accepts_plugins

Space = Annotated[
    str,
    typer.Option(
        help="Run folder, checkpoint file, or joint model: a folder, hf:NAME or st:NAME (sentence-transformers). "
        "A+B joins spaces."
    ),
]
Rebuild = Annotated[bool, typer.Option(help="Delete the collection and index again. Cached features are reused.")]


@accepts_plugins
def index(
    path: Annotated[Path, typer.Argument(help="Folder of media files, one file, or a manifest with captions.")],
    space: Space,
    uri: Annotated[str, typer.Option("--collection", help="Collection: a folder or s3://….")] = "collection",
    split: Annotated[str | None, typer.Option(help="Index only this split of a manifest.")] = None,
    rebuild: Rebuild = False,
    allow_outside: AllowOutside = False,
) -> None:
    """Embed files and store them in a searchable collection. Only new and changed files are embedded.

    Run the command again when files have changed, and for each further folder. If indexing is interrupted, run the same
    command to resume.
    Files that could not be indexed are listed with the reason in not-indexed.tsv in the collection's folder.

    \b
    Examples:
      triptych index ~/recordings --space runs/trimodal
      triptych index ~/photos --space hf:openai/clip-vit-base-patch32
      triptych index demo/data/manifest.csv --split test --space demo/run --collection demo/collection
      triptych index ~/recordings --space runs/trimodal --rebuild
    """
    from triptych.app import terminal
    from triptych.search.collection import Collection
    from triptych.search.scan import scan_path

    collection = Collection(uri, space, rebuild=rebuild)
    scan = scan_path(path, collection.space, split, allow_outside, exclude=collection.folder)
    terminal.print_scan(scan)
    result = collection.add_scan(scan)
    terminal.print_failures(result.failures.values(), collection.not_indexed_path)
    if collection.not_indexed_path.exists():
        terminal.stderr.print(f"files not indexed: {terminal.relative_path(collection.not_indexed_path)}")
    terminal.stdout.print(
        f"{uri}: {len(collection)} items ({result.added} new, {result.unchanged} unchanged, {result.removed} removed)"
    )
    terminal.print_search_commands(uri, collection.space.modalities)
