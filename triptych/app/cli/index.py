"""triptych index"""

from pathlib import Path
from typing import Annotated

import typer


def index(
    what: Annotated[Path, typer.Argument(help="A folder of files, or a manifest whose captions come along.")],
    space: Annotated[
        str, typer.Option(help="A run folder, a space file, a joint model's folder, or hf:NAME of one on the hub.")
    ],
    into: Annotated[str, typer.Option("--into", help="Folder of the collection, or s3://… of one.")] = "collection",
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
      triptych index demo/world/manifest.csv --split test --space demo/run --into demo/collection
      triptych index ~/sounds --space runs/trimodal --rebuild
    """
    from triptych.app import show
    from triptych.data import manifest
    from triptych.errors import UsageError
    from triptych.media import modalities_of
    from triptych.search.collection import Collection
    from triptych.search.items import Skipped, items_in, items_of
    from triptych.search.not_indexed import write_list

    collection = Collection.create(into, space, rebuild)
    skipped: list[Skipped] = []
    if what.is_dir():
        if split:
            raise UsageError(f"--split {split} needs a manifest; {what} is a folder")
        items = list(items_in(what, collection.space, skipped, except_for=collection.folder))
        if any((what / name).exists() for name in manifest.FOLDER_NAMES):
            show.notes.print(f"note: {what} holds a manifest; index that file instead, and its captions come along")
    else:
        if modalities_of(what):
            raise UsageError(f"{what}: is a single file; give the folder it is in, or a manifest")
        table = manifest.read(what, allow_outside)
        show.left_out(table)
        items = list(items_of((table.split(split) if split else table).rows, collection.space))
    show.passed_over(skipped)
    if not items:
        raise UsageError(f"{what}: nothing here that this space can embed ({', '.join(collection.space.modalities)})")
    done = collection.index(items, what)
    is_listed = write_list(collection.not_indexed, done.failures, skipped)
    show.failed(done.failures.values(), collection.not_indexed)
    if is_listed:
        show.notes.print(f"what was left out, with reasons: {show.from_here(collection.not_indexed)}")
    show.out.print(f"{into}: {len(collection)} items ({done.added} new, {done.kept} as before, {done.dropped} gone)")
    example = ["some words"] if "text" in collection.space.modalities else ["--sound", "one.wav"]
    search, serve = show.command("search", *example, "--in", into), show.command("serve", into)
    show.notes.print(f"next: {search}, or {serve}")
