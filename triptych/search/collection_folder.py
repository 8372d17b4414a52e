"""The files in the folder of a collection."""

import hashlib
from pathlib import Path

from triptych.errors import CollectionError
from triptych.files import find_stale_temp_files, lock_file_names
from triptych.search.collection_space import SPACE_FILE
from triptych.search.lease import LOCK_FILE
from triptych.search.presence import TABLE

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
