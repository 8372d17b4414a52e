"""The space of a collection: a copy of its file in the collection, or else its name or path.

A copy is made if the space is one file of at most MAX_SPACE_BYTES: the file contains no weights of frozen encoders. A
joint model is stored by its name and revision on the Hugging Face hub, or by the path of its folder. The fingerprint
decides whether a space is the right one.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from triptych import checkpoint
from triptych.encoders.joint_models import LIBRARIES
from triptych.errors import CheckpointError, CollectionError
from triptych.files import atomic_write, extract_os_error_code, remove_stale_temp_files, suggest_remedy
from triptych.search.collection_folder import SPACE_FILE
from triptych.search.lease import local_folder, summarise_store_error
from triptych.search.store import CollectionMetadata, Store
from triptych.space import Space
from triptych.spaces.presence import split_names

MAX_SPACE_BYTES = 512 * 2**20  # a larger space is not copied, but found by its path
COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")


def describe_space(source: Space | str | Path, space: Space) -> tuple[str, str | None]:
    """Return the name or path of a space for the collection, and its commit on the Hugging Face hub.

    `source` is what the user gave: a name is stored unchanged, a path as an absolute path. The members of a composite
    space have commits of their own, which are not stored.
    """
    name_or_path = str(space.name_or_path)
    commit = Path(name_or_path.partition("?")[0]).name  # the cache of the hub has a folder for each commit
    revision = commit if COMMIT_PATTERN.fullmatch(commit) else None
    names = split_names(source) if isinstance(source, str) else ()
    if isinstance(source, str) and not any(map(_is_local, names)):
        return source, revision if len(names) == 1 else None
    return name_or_path, None


def _is_local(name: str) -> bool:
    """Return whether a name of a space is the path of an existing file or folder, also with a prefix and settings."""
    has_prefix = name[:3] in LIBRARIES
    return Path(name[3:].partition("?")[0] if has_prefix else name).expanduser().exists()


def load_space(store: Store, cache_folder: Path, allow_plugins: str | Iterable[str] = ()) -> Space:
    """Load the space of a collection: the copy in the collection, or else the space with the stored name or path.

    Raise a CollectionError that names the option --space if neither exists, or if it is another space.
    """
    uri, metadata, reference = store.uri, store.metadata, store.space_path
    copy = find_space_copy(uri, metadata.fingerprint, cache_folder)
    if copy is not None:
        if checkpoint.compute_fingerprint(copy) != metadata.fingerprint:
            problem = f"{copy}: this copy of the space was changed (expected fingerprint {metadata.fingerprint})"
            raise CollectionError(f"{problem}; delete the file, and give the space with --space RUN")
        return checkpoint.load(copy, allow_plugins)
    try:
        return checkpoint.load(pin_revision(reference, metadata.space_revision), allow_plugins)
    except CheckpointError as error:
        command = shlex.join(["triptych", "collection", "relocate", uri, "--space"])
        remedy = f"if it was moved, give its new path with --space RUN, or store it: {command} RUN"
        problem = f"cannot be loaded: {error}" if reference else "is not in the collection"
        name = f"the space {reference} (fingerprint {metadata.fingerprint})".replace("  ", " ")
        raise CollectionError(f"{uri}: {name} {problem}; {remedy}") from error


def pin_revision(name: str, revision: str | None) -> str:
    """Return the name of a model on the Hugging Face hub with its revision, unless the name contains a revision."""
    if revision is None or name[:3] not in LIBRARIES or re.search(r"[?&]revision=", name):
        return name
    return f"{name}{'&' if '?' in name else '?'}revision={revision}"


def check_fingerprint(uri: str, metadata: CollectionMetadata, fingerprint: str, space_path: str) -> None:
    """Raise a CollectionError if a space is not the one that embedded the items of a collection."""
    if fingerprint != metadata.fingerprint:
        raise CollectionError(
            f"{uri}: the collection was made with another space than {space_path} (fingerprint {metadata.fingerprint}, "
            f"not {fingerprint}); give that space with --space, index into another folder (--collection), or replace "
            "the collection (index --rebuild)"
        )


def copy_space(uri: str, path: Path, fingerprint: str) -> bool:
    """Copy the file of a space into a collection, unless it is there; return whether the collection contains a copy.

    Nothing is copied if the space is not one file, or if the file is too large.
    """
    if uri.startswith("memory://") or not path.is_file() or path.stat().st_size > MAX_SPACE_BYTES:
        return False
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest()[:16] != fingerprint:
        raise CollectionError(f"{path}: the space changed while it was used; run the same command again")
    folder = local_folder(uri)
    if folder is None:
        with _translate_store_errors(uri):
            obstore.put(from_url(uri), SPACE_FILE, content)
        return True
    target = folder / SPACE_FILE
    if not target.is_file() or target.read_bytes() != content:
        _write_bytes(target, content)
    return True


def find_space_copy(uri: str, fingerprint: str, cache_folder: Path) -> Path | None:
    """Return the path of the copy of a space in a collection; None if there is no copy.

    A copy on an object store is downloaded to the folder `cache_folder`, once.
    """
    folder = local_folder(uri)
    if folder is not None:
        path = folder / SPACE_FILE
        return path if path.is_file() else None
    if uri.startswith("memory://"):
        return None
    target = cache_folder / SPACE_FILE
    if target.is_file() and checkpoint.compute_fingerprint(target) == fingerprint:
        return target
    try:
        store = from_url(uri)
    except (BaseError, ValueError):  # a URI that only LanceDB can open
        return None
    with _translate_store_errors(uri):
        try:
            response = obstore.get(store, SPACE_FILE)
        except FileNotFoundError:
            return None
        if response.meta["size"] > MAX_SPACE_BYTES:
            return None  # was not written by `copy_space`
        _write_bytes(target, bytes(response.bytes()))
    return target


def _write_bytes(path: Path, content: bytes) -> None:
    remove_stale_temp_files(path.parent, [path.name])
    try:
        with atomic_write(path) as temp_path:
            temp_path.write_bytes(content)
    except OSError as error:
        remedy = suggest_remedy(extract_os_error_code(error) or 0)
        raise CollectionError(f"{path}: the space cannot be copied ({error.strerror}); {remedy}") from error


@contextmanager
def _translate_store_errors(uri: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        raise CollectionError(
            f"{uri}: the copy of the space cannot be read or written ({summarise_store_error(error)}); check the URI, "
            "the network and the credentials in the environment, or give the space with --space RUN"
        ) from error
