"""Whether a folder contains a collection, without the import of libraries that take seconds."""

from pathlib import Path

from triptych.errors import CollectionError
from triptych.search.lease import local_folder

TABLE = "items"
DEFAULT_COLLECTION = "collection"
LEGACY_TABLE_FILE = "items.parquet"


def has_collection(uri: str) -> bool:
    """Return whether a folder contains a collection; False for an object store."""
    folder = local_folder(uri)
    return folder is not None and (folder.expanduser() / f"{TABLE}.lance").exists()


def check_folder(uri: str) -> None:
    """Raise CollectionError if a folder contains no collection. Object stores are not checked."""
    if local_folder(uri) is not None and not has_collection(uri):
        raise missing_collection_error(uri)


def missing_collection_error(uri: str) -> CollectionError:
    """Return the error for a folder or an object store without a collection."""
    if "://" not in uri and (Path(uri).expanduser() / LEGACY_TABLE_FILE).exists():
        return CollectionError(f"{uri}: made by an earlier version; delete the folder and index again")
    option = "" if uri == DEFAULT_COLLECTION else f" --collection {uri}"
    return CollectionError(f"{uri}: no collection here; create one with `triptych index FOLDER{option}`")
