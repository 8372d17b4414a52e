"""The `triptych collection` commands: describe a collection, move it, export it to one file and import such a file."""

from pathlib import Path
from typing import Annotated

import typer

from triptych.app.cli.options import AsJson, MovedRoots, MovedSpace, accepts_plugins

collection = typer.Typer(rich_markup_mode="rich", no_args_is_help=True)

Uri = Annotated[str, typer.Argument(metavar="COLLECTION", help="Collection: a folder or s3://….")]


@collection.callback()
def describe() -> None:
    """Describe a collection, tell it where its folders are, export it to one file, or import such a file."""


@collection.command("info")
def info(uri: Uri = "collection", as_json: AsJson = False) -> None:
    """Print the items, roots, space, format version and size of a collection. The space is not loaded.

    A root is a folder that was indexed. Paths of items are relative to roots.

    \b
    Examples:
      triptych collection info
      triptych collection info s3://bucket/collection --json
    """
    from dataclasses import asdict

    from triptych.app import collections, terminal
    from triptych.search.collection_info import describe_collection

    collection_info = describe_collection(uri)
    if as_json:
        terminal.print_json(asdict(collection_info))
    else:
        collections.print_collection(collection_info)


@collection.command("relocate", no_args_is_help=True)
@accepts_plugins
def relocate(uri: Uri, root: MovedRoots = None, space: MovedSpace = None) -> None:
    """Store where the folders and the space of a collection are now, after they were moved. Nothing is embedded.

    A sample of the files in each folder is compared with the content that was indexed.

    \b
    Examples:
      triptych collection relocate collection --root recordings=/mnt/archive/recordings
      triptych collection relocate collection --space ~/models/clip
    """
    from triptych.app import terminal
    from triptych.search.collection import Collection
    from triptych.search.roots import parse_roots

    Collection(uri, space, roots=parse_roots(root or ())).relocate()
    terminal.stdout.print(f"{uri}: stored")


@collection.command("export", no_args_is_help=True)
def export(
    uri: Uri, output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")]
) -> None:
    """Write a collection to one file, with its space if the space is one file. The media files are not included.

    The file contains no absolute paths. It is replaced only when the new file is complete.

    \b
    Examples:
      triptych collection export collection -o recordings.triptych
      triptych collection export s3://bucket/collection -o backup.triptych
    """
    from triptych.app import collections
    from triptych.search.archive import export_collection

    collections.print_exported(output, export_collection(uri, output.expanduser()))


@collection.command("import", no_args_is_help=True)
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that `triptych collection export` wrote.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="COLLECTION", help="New folder or s3://….")],
    root: MovedRoots = None,
) -> None:
    """Create a collection from an exported file. The content of the file is verified first.

    \b
    Examples:
      triptych collection import recordings.triptych -o collection
      triptych collection import recordings.triptych -o collection --root recordings=/mnt/recordings
    """
    from triptych.app import collections
    from triptych.search.import_archive import import_collection
    from triptych.search.roots import parse_roots

    moved_roots = parse_roots(root or ())
    header = import_collection(file.expanduser(), output, moved_roots)
    collections.print_imported(output, header, moved_roots)
