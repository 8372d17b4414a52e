"""triptych index"""

from pathlib import Path
from typing import Annotated

import typer


def index(
    path: Annotated[Path, typer.Argument(help="A folder of files, or a manifest whose captions come along.")],
    space: Annotated[
        str, typer.Option(help="A run folder, a space file, a joint model's folder, or hf:NAME of one on the hub.")
    ],
    uri: Annotated[
        str, typer.Option("--collection", help="Folder of the collection, or s3://… of one.")
    ] = "collection",
    split: Annotated[str | None, typer.Option(help="Of a manifest, only these rows.")] = None,
    rebuild: Annotated[bool, typer.Option(help="Make it anew; what was embedded before comes from the cache.")] = False,
    allow_outside: Annotated[bool, typer.Option(help="Accept files outside the manifest's folder.")] = False,
) -> None:
    """Embed files so that they can be searched. Run it again after changes: only what is new or changed is embedded.

    Several folders may go into one collection, one after the other. Killed at any moment, the same command goes on.
    Files that were left out are listed with their reasons in not-indexed.tsv in the collection's folder.

    \b
    Examples:
      triptych index ~/sounds --space runs/trimodal
      triptych index ~/pictures --space hf:openai/clip-vit-base-patch32
      triptych index demo/data/manifest.csv --split test --space demo/run --collection demo/collection
      triptych index ~/sounds --space runs/trimodal --rebuild
    """
    from triptych.app import terminal
    from triptych.data import manifest
    from triptych.errors import UsageError
    from triptych.media import modalities_of
    from triptych.search.collection import Collection
    from triptych.search.items import SkippedPath, items_from_folder, items_from_rows
    from triptych.search.not_indexed import write_not_indexed

    collection = Collection.create(uri, space, rebuild)
    skipped: list[SkippedPath] = []
    if path.is_dir():
        if split:
            raise UsageError(f"--split {split} needs a manifest; {path} is a folder")
        items = list(items_from_folder(path, collection.space, skipped, exclude=collection.folder))
        if any((path / name).exists() for name in manifest.MANIFEST_NAMES):
            terminal.stderr.print(
                f"note: {path} holds a manifest; index that file instead, and its captions come along"
            )
    else:
        if modalities_of(path):
            raise UsageError(f"{path}: is a single file; give the folder it is in, or a manifest")
        table = manifest.read(path, allow_outside)
        terminal.print_unusable_rows(table)
        items = list(items_from_rows((table.split(split) if split else table).rows, collection.space))
    terminal.print_skipped(skipped)
    if not items:
        raise UsageError(f"{path}: nothing here that this space can embed ({', '.join(collection.space.modalities)})")
    result = collection.index(items, path)
    is_listed = write_not_indexed(collection.not_indexed_path, result.failures, skipped)
    terminal.print_failures(result.failures.values(), collection.not_indexed_path)
    if is_listed:
        terminal.stderr.print(f"what was left out, with reasons: {terminal.relative_path(collection.not_indexed_path)}")
    terminal.stdout.print(
        f"{uri}: {len(collection)} items ({result.added} new, {result.unchanged} as before, {result.removed} gone)"
    )
    example = ["some words"] if "text" in collection.space.modalities else ["--audio", "one.wav"]
    search_command, serve_command = (
        terminal.format_command("search", *example, "--collection", uri),
        terminal.format_command("serve", uri),
    )
    terminal.stderr.print(f"next: {search_command}, or {serve_command}")
