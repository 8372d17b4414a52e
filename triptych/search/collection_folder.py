"""The folder of a collection: its files, and errors for folders without a collection. Imports no slow libraries."""

import hashlib
from pathlib import Path

from triptych.errors import CollectionError
from triptych.files import find_stale_temp_files, lock_file_names
from triptych.search.lease import LOCK_FILE, local_folder

TABLE = "items"
DEFAULT_COLLECTION = "collection"
SPACE_FILE = "space.safetensors"
INDEX_FOLDER, LEGACY_INDEX_FOLDER = "ivf", "lists"
NOT_INDEXED_FILE = "not-indexed.tsv"
LEGACY_TABLE_FILE = "items.parquet"
COLLECTION_FILES = {f"{TABLE}.lance", SPACE_FILE, *lock_file_names(LOCK_FILE), INDEX_FOLDER, NOT_INDEXED_FILE}
COLLECTION_FILES |= {LEGACY_INDEX_FOLDER}


def has_collection(uri: str) -> bool:
    """Return whether a folder contains a collection; False for an object store."""
    folder = local_folder(uri)
    return folder is not None and (folder.expanduser() / f"{TABLE}.lance").exists()


def check_collection(uri: str) -> None:
    """Raise CollectionError if a folder contains no collection. Object stores are not checked."""
    if local_folder(uri) is not None and not has_collection(uri):
        raise missing_collection_error(uri)


def missing_collection_error(uri: str) -> CollectionError:
    """Return the error for a folder or an object store without a collection."""
    if "://" not in uri and (Path(uri).expanduser() / LEGACY_TABLE_FILE).exists():
        return CollectionError(f"{uri}: made by an earlier version; delete the folder and index again")
    option = "" if uri == DEFAULT_COLLECTION else f" --collection {uri}"
    return CollectionError(f"{uri}: no collection here; create one with `triptych index FOLDER{option}`")


def check_writable_folder(folder: Path) -> None:
    """Raise CollectionError if a path is a file, or a folder that contains other files than those of a collection."""
    if folder.exists() and not folder.is_dir():
        raise CollectionError(f"{folder} is a file; give a folder for the collection")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set[str]()
    names -= COLLECTION_FILES
    if names and names - find_stale_temp_files(folder, [NOT_INDEXED_FILE, SPACE_FILE]):
        raise CollectionError(f"{folder}: contains other files; give an empty or new folder for the collection")


def find_index_folder(uri: str, cache_folder: Path) -> Path:
    """Return the folder of the IVF index. For a collection on an object store, the folder is in the local cache."""
    if "://" not in uri:
        return Path(uri) / INDEX_FOLDER
    return cache_folder / INDEX_FOLDER / hashlib.sha256(uri.encode()).hexdigest()[:16]
