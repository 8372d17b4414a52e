"""The files in the folder of a collection, and errors for folders that contain no collection."""

import hashlib
from pathlib import Path

from triptych.errors import CollectionError
from triptych.files import find_stale_temp_files, lock_file_names
from triptych.search.collection_space import SPACE_FILE
from triptych.search.lease import LOCK_FILE, local_folder
from triptych.search.store import TABLE

LEGACY_TABLE_FILE = "items.parquet"
INDEX_FOLDER, LEGACY_INDEX_FOLDER = "ivf", "lists"
NOT_INDEXED_FILE = "not-indexed.tsv"
COLLECTION_FILES = {f"{TABLE}.lance", SPACE_FILE, *lock_file_names(LOCK_FILE), INDEX_FOLDER, NOT_INDEXED_FILE}
COLLECTION_FILES |= {LEGACY_INDEX_FOLDER}


def find_index_folder(uri: str, cache_folder: Path) -> Path:
    """Return the folder of the IVF index. For a collection on an object store, the folder is in the local cache."""
    if "://" not in uri:
        return Path(uri) / INDEX_FOLDER
    return cache_folder / INDEX_FOLDER / hashlib.sha256(uri.encode()).hexdigest()[:16]


def check_folder(folder: Path) -> None:
    """Raise a CollectionError if a path is a file, or a folder that contains other files than those of a collection."""
    if folder.exists() and not folder.is_dir():
        raise CollectionError(f"{folder} is a file; give a folder for the collection")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set[str]()
    names -= COLLECTION_FILES
    if names and names - find_stale_temp_files(folder, [NOT_INDEXED_FILE, SPACE_FILE]):
        raise CollectionError(f"{folder}: contains other files; give an empty or new folder for the collection")


def make_missing_error(uri: str) -> CollectionError:
    """Return the error for a URI at which there is no collection."""
    folder = local_folder(uri)
    if folder is not None and (folder / LEGACY_TABLE_FILE).exists():
        return CollectionError(f"{uri}: made by an earlier version; delete the folder and index again")
    return CollectionError(f"{uri}: no collection here; create one with `triptych index PATH --space RUN`")
