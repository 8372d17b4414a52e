"""A description of a collection: its items, roots, space, format version and size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from triptych.data.cache import Cache
from triptych.errors import CollectionError
from triptych.interfaces import MODALITIES
from triptych.search.collection_folder import find_index_folder, missing_collection_error
from triptych.search.collection_space import find_space_copy
from triptych.search.lease import local_folder, summarise_store_error
from triptych.search.locations import make_root_condition
from triptych.search.query import quote_sql
from triptych.search.store import Store


@dataclass(frozen=True)
class RootInfo:
    """A root of a collection. The path is None if the folder is not known on this machine."""

    name: str
    path: str | None
    is_missing: bool
    num_items: int


@dataclass(frozen=True)
class CollectionContents:
    """The contents of a collection. Sizes are in bytes."""

    uri: str
    format_version: int
    items: dict[str, int]  # number of items by modality
    roots: list[RootInfo]
    space: str  # the path or name of the space
    space_revision: str | None
    fingerprint: str  # of the space
    space_copy_size: int | None  # None if the collection does not contain its space
    size: int  # of all files of the collection


def describe_collection(uri: str) -> CollectionContents:
    """Describe the collection at a URI. The space of the collection is not loaded."""
    store = Store.open(uri)
    if store is None:
        raise missing_collection_error(uri)
    counts = {m: store.count(f"modality = {quote_sql(m)}") for m in MODALITIES}
    space_copy = find_space_copy(uri, store.metadata.fingerprint, find_index_folder(uri, Cache.default().folder))
    return CollectionContents(
        uri=uri,
        format_version=store.metadata.format_version,
        items={modality: count for modality, count in counts.items() if count},
        roots=[_describe_root(store, name) for name in sorted(store.roots.paths)],
        space=store.space_path,
        space_revision=store.metadata.space_revision,
        fingerprint=store.metadata.fingerprint,
        space_copy_size=None if space_copy is None else space_copy.stat().st_size,
        size=_measure_size(uri),
    )


def _describe_root(store: Store, name: str) -> RootInfo:
    path, count = store.roots.paths[name], store.count(make_root_condition(name))
    return RootInfo(name, None if path is None else str(path), store.roots.is_missing(name), count)


def _measure_size(uri: str) -> int:
    folder = local_folder(uri)
    if folder is not None:
        return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    try:
        return sum(item["size"] for batch in obstore.list(from_url(uri)) for item in batch)
    except (BaseError, OSError, ValueError) as error:
        problem = f"the object store cannot be listed ({summarise_store_error(error)})"
        raise CollectionError(f"{uri}: {problem}; check the URI and the credentials in the environment") from error
