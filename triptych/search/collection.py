"""A collection: an index of files and texts that are embedded with one space, and the search in this index."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from triptych import checkpoint
from triptych.data.cache import Cache
from triptych.errors import CollectionError, UsageError, describe_unknown
from triptych.execution.backends import describe_backends
from triptych.inputs import Input
from triptych.interfaces import MODALITIES, Features, Modality, Source, features_from_embeddings
from triptych.progress import notify
from triptych.search.collection_folder import (
    LEGACY_INDEX_FOLDER,
    NOT_INDEXED_FILE,
    check_writable_folder,
    find_index_folder,
    missing_collection_error,
)
from triptych.search.collection_space import check_fingerprint, copy_space, describe_space, load_space
from triptych.search.index import NUM_CALIBRATION_QUERIES, Gallery, build_ivf_index
from triptych.search.ingest import IndexResult, Ingest
from triptych.search.item import (
    METADATA_COLUMNS,
    PUBLIC_COLUMNS,
    VECTOR_COLUMNS,
    Hits,
    Item,
    features_from_rows,
    item_from_row,
    make_schema,
)
from triptych.search.lease import WriteAccess, acquire_write_access
from triptych.search.locations import check_moved_roots, describe_missing_roots, locate_items
from triptych.search.query import EmbeddedQuery, Filter, Query, QueryPart, StoredItem, quote_sql
from triptych.search.query_items import describe_excluded_items, find_query_rows
from triptych.search.ranking import BackgroundScores, EmbeddedPart, merge_hits
from triptych.search.roots import resolve_roots
from triptych.search.scan import PathScan, scan_path, write_not_indexed
from triptych.search.snapshot import Snapshot
from triptych.search.store import CollectionMetadata, Store, Writer
from triptych.space import Space

if TYPE_CHECKING:
    import pandas as pd

OVERFETCH = 3  # number of items that are ranked per requested hit; near-duplicates are folded after ranking
REFRESH_SECONDS = 0.5  # minimum time between two checks for a newer version of the store


class Collection:
    """Items embedded with one space, on disk or on an object store. A query can be of any modality of the space.

    Args:
        uri: A folder, or a URI on an object store (s3://…). It is created when items are added.
        space: The space, as `triptych.load` returns it, or anything that `triptych.load` accepts. Default: the space of
            the existing collection, which contains a copy unless the space is large or a joint model. For a new
            collection, `triptych.load()` returns the default space.
        rebuild: If True, the first call of `add` or `index` deletes the existing items, even if the store is damaged.
            Embeddings are taken from the cache where possible.
        roots: New folders of roots that were moved, by name; see `triptych collection info`. They apply to this object,
            and are stored when items are added. Roots that do not exist yet are names for folders that will be added.
        allow_plugins: Packages whose plug-ins the space may import; see `triptych.load`.

    Raises:
        CollectionError: The folder contains no collection and `space` is not given, the folder contains other files, or
            the collection was made with another space.

    Example:
        >>> media = triptych.Collection("media", space)
        >>> result = media.add("recordings")
        >>> hits = media.search("rain on a tin roof", modality="audio", k=5)
        >>> hits[0].source.modality
        'audio'
    """

    def __init__(
        self, uri: str | Path, space: Space | str | Path | None = None, rebuild: bool = False, *,
        roots: Mapping[str, str | Path] | None = None, allow_plugins: str | Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.uri = str(uri) if "://" in str(uri) else str(Path(uri).expanduser())
        self.cache = Cache.default()
        self._given_roots = resolve_roots(roots or {})
        self.store = None if rebuild else self._open_store()
        if space is None:
            existing = Store.open(self.uri) if rebuild else self.store
            if existing is None:
                raise missing_collection_error(self.uri)
            self.space = load_space(existing, self._index_folder, allow_plugins)
        else:
            if self.store is None and "://" not in self.uri:
                check_writable_folder(self.folder)
            self.space: Space = space if isinstance(space, Space) else checkpoint.load(space, allow_plugins)
        if self.space.name_or_path is None:
            remedy = "write it with space.save_pretrained(FOLDER), and give FOLDER"
            raise CollectionError(f"{self.uri}: the space is only in memory; {remedy}")
        self.space_path: str = self.space.name_or_path
        self.fingerprint = checkpoint.compute_fingerprint(self.space_path)
        self._given_space = space
        self._rebuild = rebuild  # the first call of `index` replaces the existing table
        self._background = BackgroundScores(self.space)
        self._snapshot: Snapshot | None = None
        if self.store is not None:
            check_fingerprint(self.uri, self.store.metadata, self.fingerprint, self.space_path)

    def __repr__(self) -> str:
        return f"Collection({self.uri!r}, items={len(self)}, space={self.space_path!r})"

    def __len__(self) -> int:
        return self.store.count() if self.store else 0

    @property
    def folder(self) -> Path:
        """The folder of the collection. Do not use this property for a collection on an object store."""
        return Path(self.uri)

    @property
    def not_indexed_path(self) -> Path:
        """The path of the list of skipped files. The list exists only if the last `triptych index` skipped files."""
        return (self._index_folder if "://" in self.uri else self.folder) / NOT_INDEXED_FILE

    def add(
        self, path: str | Path, *, split: str | None = None, allow_outside: bool = False, show_progress: bool = True
    ) -> IndexResult:
        """Add a folder, a file or a manifest. Only new and changed files are embedded.

        Files that are in the collection, but no longer in the folder or manifest, are removed. Files that cannot be
        indexed are listed with the reason in `not_indexed_path`. After an interruption, call `add` again to resume.

        Args:
            path: A folder of media files, one file, or a manifest (CSV, JSONL or Parquet) with captions.
            split: Add only this split of a manifest.
            allow_outside: Accept files of a manifest that are outside the folder of the manifest.
            show_progress: Show a progress bar on stderr.

        Returns:
            The numbers of added, unchanged and removed items, and the failures.

        Example:
            >>> result = media.add("recordings")
            >>> result.added + result.unchanged
            9
        """
        scan = scan_path(Path(path).expanduser(), self.space, split, allow_outside, exclude=self.folder)
        return self.add_scan(scan, show_progress)

    def add_scan(self, scan: PathScan, show_progress: bool = True) -> IndexResult:
        """Add the items of a scanned folder, file or manifest, and list the files that were not indexed."""
        scan.check_not_empty(self.space)
        result = self.index(scan.items, scan.path, show_progress)
        write_not_indexed(self.not_indexed_path, result.failures, scan.skipped)
        return result

    def index(self, items: Iterable[Item], origin: str | Path, show_progress: bool = True) -> IndexResult:
        """Add or update the items of an origin (a folder or manifest); remove its stored items that are not in `items`.

        Items of other origins are kept. Only new and changed items are embedded. After an interruption, call `index`
        again to resume.
        """
        items = list(items)
        with acquire_write_access(self.uri) as access:
            writer = self._open_writer(access)
            located = locate_items(writer.store, items, Path(origin), self._given_roots, self.cache)
            for name, path in located.moved.items():
                notify(f"root {name}: moved from {path or 'another machine'} to {located.roots.paths[name]}")
            writer.set_roots(located.roots)
            result = Ingest(writer, self.space, self.cache).run(located.items, located.origin, show_progress)
            writer.optimize()
            self._build_indexes()
        return result

    @torch.inference_mode()
    def search(
        self,
        query: Input | Query,
        modality: Modality | Sequence[Modality] | None = None,
        k: int = 10,
        *,
        item_filter: Filter | None = None,
        fold_duplicates: bool = True,
        include_query: bool = False,
    ) -> Hits:
        """Return the k most relevant items, most relevant first.

        Args:
            query: A text, a path, a PIL image, (samples, rate) or another form that `Space.encode` accepts; or a
                `Query`, which combines several inputs.
            modality: The modality of the hits, or several modalities. Default: all.
            k: The maximum number of hits.
            item_filter: Conditions that hits must satisfy.
            fold_duplicates: If True, only the first of several near-duplicates is returned. The ids of the others are
                in `Hit.duplicates`.
            include_query: If False, items that are in the query are not returned: items given by id, and items with the
                same content as a query file.

        Returns:
            The hits, a list with the methods `to_pandas`, `to_arrow` and `to_dicts`.

        Example:
            >>> hits = media.search(triptych.Query.combine("rain", negatives=["speech"]))
        """
        if not isinstance(k, int) or k < 1:
            raise UsageError(f"k = {k}; give the maximum number of hits, an integer of at least 1")
        modalities = (modality,) if isinstance(modality, str) else tuple(modality or self.space.modalities)
        for name in modalities:
            if name not in MODALITIES:
                raise UsageError(describe_unknown("modality", name, MODALITIES))
        if self.store is None:
            return Hits()
        snapshot, parts = self._load_snapshot(), Query.wrap(query).parts
        embedded_parts = [self.embed_part(part) for part in parts]
        query_row_ids = set[int]() if include_query else find_query_rows(snapshot, parts, self._load_row)
        sql, num_ranked = self._to_sql(item_filter), OVERFETCH * k + len(query_row_ids)
        searched: list[Modality] = [m for m in modalities if len(snapshot.load_gallery(m))]
        ranked = [snapshot.rank(embedded_parts, modality, num_ranked, sql) for modality in searched]
        items = snapshot.load_items([int(row_id) for ranking in ranked for row_id in ranking.row_ids])
        return Hits(merge_hits(items, ranked, query_row_ids, k, fold_duplicates))

    def search_similar(self, item_id: str, modality: Modality | Sequence[Modality] | None = None, k: int = 10) -> Hits:
        """Return the items most similar to an item of the collection, given by its id; see `search`.

        Example:
            >>> rain = media.search("rain on a tin roof", k=1)[0]
            >>> hits = media.search_similar(rain.id, modality="audio")
        """
        return self.search(Query.combine(StoredItem(item_id)), modality, k)

    def to_arrow(self, item_filter: Filter | None = None, with_vectors: bool = False) -> pa.Table:
        """Return the items as an Arrow table: id, modality, file or text, segment, captions and columns.

        Args:
            item_filter: Conditions that items must satisfy.
            with_vectors: If True, the column `vector` contains the index vector of each item.

        Returns:
            A table with one row per item.

        Example:
            >>> media.to_arrow(with_vectors=True).column_names[:3]
            ['id', 'modality', 'file']
        """
        columns = [*PUBLIC_COLUMNS, *(["vector"] if with_vectors else [])]
        if self.store is None:
            return make_schema(1).empty_table().select(columns)
        self.store.refresh()
        table, roots = self.store.select_rows(columns, self._to_sql(item_filter)).select(columns), self.store.roots
        files = [None if file is None else str(roots.find_path(file)) for file in table["file"].to_pylist()]
        return table.set_column(columns.index("file"), table.schema.field("file"), pa.array(files, pa.string()))

    def to_pandas(self, item_filter: Filter | None = None, with_vectors: bool = False) -> pd.DataFrame:
        """Return the items as a pandas data frame; see `to_arrow` for the arguments. pandas must be installed.

        Example:
            >>> durations = media.to_pandas()["duration"]
        """
        return self.to_arrow(item_filter, with_vectors).to_pandas()

    def describe_excluded_items(self, query: Input | Query) -> str | None:
        """Return a sentence that names the items that a search excludes, without items given by id; None if none."""
        if self.store is None:
            return None
        return describe_excluded_items(self._load_snapshot(), Query.wrap(query).parts, self._load_row)

    def load_item(self, item_id: str) -> Item:
        """Return the item with an id."""
        row = self._load_row(item_id, METADATA_COLUMNS)
        return item_from_row(row, self._require_store().roots)

    def load_features(self, item_id: str) -> Features:
        """Return the stored features of an item."""
        row = self._load_row(item_id, ("modality", *VECTOR_COLUMNS))
        return features_from_rows([row], self.space.recipe.space.embed_dim, row["modality"])

    def list_items(self, item_filter: Filter | None = None, limit: int | None = None, offset: int = 0) -> list[Item]:
        """Return the items that pass a filter, sorted by modality and location; `limit` and `offset` select a page."""
        if self.store is None:
            return []
        self.store.refresh()
        rows = self.store.select_rows(METADATA_COLUMNS, self._to_sql(item_filter)).to_pylist()
        return sorted(self._make_items(rows), key=lambda item: item.identity)[offset:][:limit]

    def sample(self, modality: Modality, count: int) -> tuple[list[Item], np.ndarray]:
        """Return at most `count` random items of a modality and their keys (C, S), with a fixed seed."""
        if self.store is None:
            return [], np.empty((0, 1), np.float32)
        row_ids, keys = self._load_snapshot().load_gallery(modality).sample(count)
        rows = self.store.take(METADATA_COLUMNS, row_ids)
        return self._make_items([rows[int(row_id)] for row_id in row_ids]), keys

    def describe_missing_roots(self) -> list[str]:
        """Return a sentence for each root whose folder is missing, with the command that gives a new folder."""
        return describe_missing_roots(self.store) if self.store else []

    def relocate(self) -> None:
        """Store the folders in `roots` and the path of `space`, as given to the constructor; copy the space."""
        self.check_root_names()
        with acquire_write_access(self.uri) as access:
            writer = self._open_writer(access)
            writer.set_roots(writer.store.roots)
            if self._given_space is not None:
                writer.set_space_path(describe_space(self._given_space, self.space)[0])

    def check_root_names(self) -> None:
        """Raise a UsageError if `roots`, as given to the constructor, has a name that is no root of the collection."""
        self._require_store().roots.check_names(self._given_roots)

    def _open_store(self) -> Store | None:
        """Open the store, with the given folders of its roots. Raise an error if these contain other files."""
        store = Store.open(self.uri)
        known = {n: path for n, path in self._given_roots.items() if store is not None and n in store.roots.paths}
        if store is not None and known:
            check_moved_roots(store, known, self.cache)
            store.moved_roots = known
        return store

    def _to_sql(self, item_filter: Filter | None) -> str:
        return item_filter.to_sql(self.store.roots) if item_filter and self.store else ""

    def _make_items(self, rows: Iterable[Mapping[str, Any]]) -> list[Item]:
        roots = self._require_store().roots
        return [item_from_row(row, roots) for row in rows]

    def embed_part(self, part: QueryPart) -> EmbeddedPart:
        """Return the features of a query part."""
        if isinstance(part.value, EmbeddedQuery):
            return EmbeddedPart(part.value.features, part.weight)
        if isinstance(part.value, Source):
            return EmbeddedPart(self.space.embed_one(part.value, "query"), part.weight)
        return EmbeddedPart(self.load_features(part.value.id), part.weight)

    def _load_row(self, item_id: str, columns: Sequence[str]) -> dict[str, Any]:
        condition = f"id = {quote_sql(item_id)}"
        if rows := self._require_store().select_rows(columns, condition).to_pylist() if self.store else []:
            return rows[0]
        raise UsageError(f"{self.uri}: no item {item_id!r} in this collection; `triptych search --json` shows ids")

    def _require_store(self) -> Store:
        if self.store is None:
            raise CollectionError(f"{self.uri}: the collection is empty; index a folder first")
        if self.store.metadata.fingerprint != self.fingerprint:
            raise CollectionError(
                f"{self.uri}: the collection was rebuilt with another space ({self.store.space_path}) after "
                "this process opened the collection; open the collection again, or restart the server"
            )
        return self.store

    def _load_snapshot(self, max_age: float | None = None) -> Snapshot:
        """Return a snapshot of the newest version of the store, which other processes may have changed."""
        if self.store is not None:
            self.store.refresh(REFRESH_SECONDS if max_age is None else max_age)
        store = self._require_store()
        if self._snapshot is None or self._snapshot.version != store.version:
            self._snapshot = Snapshot(store, self.space, self._background, self._index_folder, self._snapshot)
        return self._snapshot

    @property
    def _index_folder(self) -> Path:
        return find_index_folder(self.uri, self.cache.folder)

    def _build_indexes(self) -> None:
        snapshot = self._load_snapshot(max_age=0.0)
        galleries: dict[Modality, Gallery] = {m: snapshot.load_gallery(m) for m in self.space.modalities}
        sampled_keys = np.concatenate([gallery.sample(NUM_CALIBRATION_QUERIES)[1] for gallery in galleries.values()])
        queries = np.random.default_rng(0).permutation(sampled_keys)
        outdated: list[Modality] = [m for m, gallery in galleries.items() if gallery.should_build_index()]
        for modality in outdated:
            build_ivf_index(snapshot.store, modality, self._index_folder, queries)
        self._snapshot = None if outdated else self._snapshot  # its galleries do not use the new index

    def _open_writer(self, access: WriteAccess) -> Writer:
        """Open the existing table for writing, or create a table."""
        if self.store is None and self._rebuild:
            Writer.drop_table(self.uri, access)
            shutil.rmtree(self._index_folder, ignore_errors=True)
            if "://" not in self.uri:
                shutil.rmtree(self.folder / LEGACY_INDEX_FOLDER, ignore_errors=True)
        elif self.store is None:
            self.store = self._open_store()  # another process may have created the table
        if self.store is not None:
            writer = Writer(self.store, access)  # refreshes the metadata of the store
            check_fingerprint(self.uri, self.store.metadata, self.fingerprint, self.space_path)
            copy_space(self.uri, Path(self.space_path), self.fingerprint)
            return writer
        copy_space(self.uri, Path(self.space_path), self.fingerprint)
        space_path, revision = describe_space(self._given_space or self.space, self.space)
        backends = describe_backends(self.space)
        metadata = CollectionMetadata(space_path, self.fingerprint, revision, backends=backends)
        keys = self.space.similarity.keys(features_from_embeddings(torch.randn(1, self.space.recipe.space.embed_dim)))
        writer = Writer.create(self.uri, metadata, keys.shape[1], access)
        self.store = writer.store
        return writer
