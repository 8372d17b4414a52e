"""A collection: an index of files and texts that are embedded with one space, and the search in this index."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych import checkpoint, plugins
from triptych.data.cache import Cache
from triptych.errors import CollectionError, UsageError
from triptych.files import find_stale_temp_files, lock_file_names
from triptych.interfaces import Features, Modality, Source, features_from_embeddings
from triptych.search.index import NUM_CALIBRATION_QUERIES, Gallery, GalleryMask, build_ivf_index
from triptych.search.ingest import IndexResult, Ingest
from triptych.search.item import (
    METADATA_COLUMNS,
    VECTOR_COLUMNS,
    Hit,
    Item,
    features_from_rows,
    item_from_row,
    merge_items,
)
from triptych.search.lease import LOCK_FILE, WriteAccess, acquire_write_access
from triptych.search.query import EmbeddedQuery, Filter, Query, QueryPart, quote_sql
from triptych.search.ranking import BackgroundScores, EmbeddedPart, RankedItems, Ranker, ScoreDistribution, merge_hits
from triptych.search.scan import query_content_hashes
from triptych.search.store import TABLE, CollectionMetadata, Store, Version, Writer
from triptych.space import Space

LEGACY_TABLE_FILE = "items.parquet"
INDEX_FOLDER, LEGACY_INDEX_FOLDER = "ivf", "lists"
NOT_INDEXED_FILE = "not-indexed.tsv"
COLLECTION_FILES = {f"{TABLE}.lance", *lock_file_names(LOCK_FILE), INDEX_FOLDER, NOT_INDEXED_FILE, LEGACY_INDEX_FOLDER}
OVERFETCH = 3  # number of items that are ranked per requested hit; near-duplicates are folded after ranking
REFRESH_SECONDS = 0.5  # minimum time between two checks for a newer version of the store
MAX_CACHED_ITEMS, MAX_CACHED_FILTERS = 20_000, 16  # a cache that exceeds its limit is emptied
NOTE_TEXT_LENGTH = 40  # maximum number of characters of a text that a note shows
NOTE_MAX_NAMES = 3  # maximum number of items that a note names


class Snapshot:
    """The data in memory that is derived from one version of the store. Each new version gets a new snapshot.

    If the table was not rebuilt, the galleries of the previous snapshot are updated instead of loaded again.
    """

    def __init__(
        self, store: Store, space: Space, background: BackgroundScores, index_folder: Path, previous: Snapshot | None
    ) -> None:
        self.version: Version = store.version
        self.store, self.space = store, space
        self._background, self._index_folder = background, index_folder
        self._galleries, self._previous_galleries = dict[Modality, Gallery](), dict[Modality, Gallery]()
        # After a rebuild, the same row id belongs to another item.
        if previous is not None and previous.version[0] == self.version[0]:
            self._previous_galleries = previous._previous_galleries | previous._galleries
        self._filtered_row_ids: dict[str, np.ndarray] = {}
        self._masks: dict[tuple[Modality, str], GalleryMask] = {}
        self._items: dict[int, Item] = {}
        self._distributions: dict[tuple[Modality, Modality], ScoreDistribution] = {}

    def load_gallery(self, modality: Modality) -> Gallery:
        """Return the gallery of a modality, which contains the keys of its items."""
        if modality not in self._galleries:
            previous = self._previous_galleries.get(modality)
            self._galleries[modality] = Gallery.load(self.store, modality, self._index_folder, previous)
        return self._galleries[modality]

    def load_items(self, row_ids: Sequence[int]) -> dict[int, Item]:
        """Return a dictionary from row id to item. The dictionary also contains items that were loaded before."""
        missing = [row_id for row_id in row_ids if row_id not in self._items]
        if len(self._items) + len(missing) > MAX_CACHED_ITEMS:
            self._items.clear()
            missing = list(row_ids)
        if missing:
            self._items |= {n: item_from_row(row) for n, row in self.store.take(METADATA_COLUMNS, missing).items()}
        return self._items

    def filter_row_ids(self, sql: str) -> np.ndarray:
        """Return the row ids of the items that satisfy an SQL condition, in ascending order."""
        if sql not in self._filtered_row_ids:
            if len(self._filtered_row_ids) >= MAX_CACHED_FILTERS:
                self._filtered_row_ids.clear()
                self._masks.clear()
            self._filtered_row_ids[sql] = np.sort(self.store.select_rows(["row_id"], sql)["row_id"].to_numpy())
        return self._filtered_row_ids[sql]

    def make_mask(self, modality: Modality, sql: str) -> GalleryMask | None:
        """Return the mask of the items that satisfy an SQL condition; None if the condition is empty."""
        if not sql:
            return None
        row_ids = self.filter_row_ids(sql)
        if (modality, sql) not in self._masks:
            self._masks[modality, sql] = self.load_gallery(modality).make_mask(row_ids)
        return self._masks[modality, sql]

    def estimate_background(self, part: EmbeddedPart, modality: Modality) -> ScoreDistribution:
        """Return the scores of random queries, of the same modality as the query part, with random items of `modality`.

        If no random queries are available, the query part itself is scored, and the scores are not cached.
        """
        query_modality = part.features.require_modality()
        key = query_modality, modality
        if key in self._distributions:
            return self._distributions[key]
        gallery, query_gallery = self.load_gallery(modality), self.load_gallery(query_modality)
        row_ids, sampled = self._background.sample_queries(self.store, query_modality, query_gallery)
        queries = part.features if sampled is None else sampled
        distribution = self._background.score_items(self.store, row_ids, queries, modality, gallery)
        if sampled is not None:
            self._distributions[key] = distribution
        return distribution

    def rank(self, parts: Sequence[EmbeddedPart], modality: Modality, k: int, sql: str) -> RankedItems:
        """Return the k best items of a modality among those that satisfy an SQL condition."""
        distributions = [self.estimate_background(part, modality) for part in parts]
        ranker = Ranker(self.space, self.store, self.load_gallery(modality), modality, parts, distributions)
        return ranker.rank(k, self.make_mask(modality, sql))


class Collection:
    """Items embedded with one space. A query can be of any modality of the space."""

    def __init__(self, uri: str, space_path: Path, store: Store | None, rebuild: bool = False) -> None:
        self.uri, self.space_path, self.store = uri, space_path, store
        self.space: Space = checkpoint.load(space_path)
        self.fingerprint = checkpoint.compute_fingerprint(space_path)
        self.cache = Cache.default()
        self._rebuild = rebuild  # the first call of `index` replaces the existing table
        self._background = BackgroundScores(self.space)
        self._snapshot: Snapshot | None = None
        if store is not None:
            self._check_space(store.metadata)

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

    @staticmethod
    def create(
        uri: str | Path, space: str | Path, rebuild: bool = False, allow_plugins: str | Iterable[str] = ()
    ) -> Collection:
        """Create a collection in a folder or at a URI (s3://…), or open an existing collection of the same space.

        If `rebuild` is True, the first call of `index` deletes the existing items, even if the store is damaged.
        Embeddings are taken from the cache where possible. `triptych.load` describes `allow_plugins`.
        """
        space_path = checkpoint.resolve_path(space).resolve()
        store = None if rebuild else Store.open(str(uri))
        if store is None and "://" not in str(uri):
            _check_folder(Path(uri))
        with plugins.allow(allow_plugins):
            return Collection(str(uri), space_path, store, rebuild)

    @staticmethod
    def open(uri: str | Path, allow_plugins: str | Iterable[str] = ()) -> Collection:
        """Open an existing collection; `triptych.load` describes `allow_plugins`."""
        store = Store.open(str(uri))
        if store is None and "://" not in str(uri) and (Path(uri) / LEGACY_TABLE_FILE).exists():
            raise CollectionError(f"{uri}: made by an earlier version of triptych; delete the folder and index again")
        if store is None:
            raise CollectionError(f"{uri}: no collection here; create one with `triptych index FOLDER --space RUN`")
        space_path = Path(store.metadata.space_path)
        if not space_path.exists():
            raise CollectionError(f"{uri}: the space {space_path} does not exist; index again with --space RUN")
        with plugins.allow(allow_plugins):
            return Collection(str(uri), space_path, store)

    def index(self, items: Iterable[Item], origin: str | Path, show_progress: bool = True) -> IndexResult:
        """Add or update the items of an origin (a folder or manifest); remove its stored items that are not in `items`.

        Items of other origins are kept. Only new and changed items are embedded. After an interruption, call `index`
        again to resume.
        """
        unique_items = merge_items(items)
        with acquire_write_access(self.uri) as access:
            writer = self._open_writer(access)
            origin = str(Path(origin).resolve())
            result = Ingest(writer, self.space, self.cache).run(unique_items, origin, show_progress)
            writer.optimize()
            self._build_indexes()
        return result

    @torch.inference_mode()
    def search(
        self,
        query: Source | Query,
        modalities: Sequence[Modality] = (),
        k: int = 10,
        item_filter: Filter | None = None,
        fold_duplicates: bool = True,
        include_query: bool = False,
    ) -> list[Hit]:
        """Return the k most relevant items of the modalities (default: all), most relevant first.

        Of several near-duplicates only the first is returned, with the ids of the others in `Hit.duplicates`. To return
        all near-duplicates, set `fold_duplicates` to False. Items that are in the query are excluded: items given by
        id, items with the same content as a query file, and the query file itself. To return these items, set
        `include_query` to True.
        """
        if self.store is None:
            return []
        snapshot, parts = self._load_snapshot(), Query.wrap(query).parts
        embedded_parts = [self._embed_part(part) for part in parts]
        query_row_ids = set[int]() if include_query else self._find_query_rows(snapshot, parts)
        sql, num_ranked = item_filter.sql if item_filter else "", OVERFETCH * k + len(query_row_ids)
        searched: list[Modality] = [m for m in modalities or self.space.modalities if len(snapshot.load_gallery(m))]
        ranked = [snapshot.rank(embedded_parts, modality, num_ranked, sql) for modality in searched]
        items = snapshot.load_items([int(row_id) for ranking in ranked for row_id in ranking.row_ids])
        return merge_hits(items, ranked, query_row_ids, k, fold_duplicates)

    def search_similar(
        self, item_id: str, modalities: Sequence[Modality] = (), k: int = 10, item_filter: Filter | None = None
    ) -> list[Hit]:
        """Return the items most similar to an item of the collection."""
        return self.search(Query((QueryPart(item_id),)), modalities, k, item_filter)

    def describe_excluded_items(self, query: Source | Query) -> str | None:
        """Return a sentence that names the items that a search excludes, without the items given by id.

        Return None if no item is excluded.
        """
        if self.store is None:
            return None
        snapshot, parts = self._load_snapshot(), Query.wrap(query).parts
        row_ids = sorted(self._find_query_rows(snapshot, parts))
        items = snapshot.load_items(row_ids)
        query_ids = {part.value for part in parts if isinstance(part.value, str)}
        excluded = [items[row_id] for row_id in row_ids if row_id in items and items[row_id].id not in query_ids]
        names = list(dict.fromkeys(_display_name(item.source) for item in excluded))
        if not names:
            return None
        more = f" and {len(names) - NOTE_MAX_NAMES} more" if len(names) > NOTE_MAX_NAMES else ""
        return f"the query is in the collection ({', '.join(names[:NOTE_MAX_NAMES])}{more}) and is not shown"

    def load_item(self, item_id: str) -> Item:
        """Return the item with an id."""
        return item_from_row(self._load_row(item_id, METADATA_COLUMNS))

    def load_features(self, item_id: str) -> Features:
        """Return the stored features of an item."""
        row = self._load_row(item_id, ("modality", *VECTOR_COLUMNS))
        return features_from_rows([row], self.space.recipe.space.embed_dim, row["modality"])

    def list_items(self, item_filter: Filter | None = None, limit: int | None = None, offset: int = 0) -> list[Item]:
        """Return the items that pass a filter."""
        if self.store is None:
            return []
        self.store.refresh()
        rows = self.store.select_rows(METADATA_COLUMNS, item_filter.sql if item_filter else "", limit, offset)
        return sorted(map(item_from_row, rows.to_pylist()), key=lambda item: item.identity)

    def sample(self, modality: Modality, count: int) -> tuple[list[Item], np.ndarray]:
        """Return at most `count` random items of a modality and their keys (C, S), with a fixed seed."""
        if self.store is None:
            return [], np.empty((0, 1), np.float32)
        row_ids, keys = self._load_snapshot().load_gallery(modality).sample(count)
        rows = self.store.take(METADATA_COLUMNS, row_ids)
        return [item_from_row(rows[int(row_id)]) for row_id in row_ids], keys

    def _embed_part(self, part: QueryPart) -> EmbeddedPart:
        if isinstance(part.value, EmbeddedQuery):
            return EmbeddedPart(part.value.features, part.weight)
        if isinstance(part.value, Source):
            return EmbeddedPart(self.space.embed_one(part.value), part.weight)
        return EmbeddedPart(self.load_features(part.value), part.weight)

    def _find_query_rows(self, snapshot: Snapshot, parts: Sequence[QueryPart]) -> set[int]:
        """Return the row ids of the items with the content of a query part. For a file, include all of its segments."""
        item_hashes, file_hashes = set[str](), set[str]()
        for value in (part.value for part in parts):
            if isinstance(value, str):
                item_hashes.add(self._load_row(value, ["content_hash"])["content_hash"])
            elif isinstance(value, EmbeddedQuery):
                file_hashes |= value.content_hashes
            else:
                is_whole_file = value.start is None and value.end is None
                (file_hashes if is_whole_file else item_hashes).update(query_content_hashes(value, self.space))
        if not item_hashes | file_hashes:
            return set()
        hashes = ", ".join(map(quote_sql, sorted(item_hashes | file_hashes)))
        row_ids: list[int] = snapshot.filter_row_ids(f"content_hash IN ({hashes})").tolist()
        items = snapshot.load_items(row_ids)
        matches = (items[row_id] for row_id in row_ids if row_id in items)
        for source in {item.source for item in matches if item.content_hash in file_hashes}:
            if source.start is not None:
                same_file = f"modality = {quote_sql(source.modality)} AND file = {quote_sql(str(source.content))}"
                row_ids += snapshot.filter_row_ids(same_file).tolist()
        return set(row_ids)

    def _load_row(self, item_id: str, columns: Sequence[str]) -> dict[str, Any]:
        condition = f"id = {quote_sql(item_id)}"
        rows = self._require_store().select_rows(columns, condition).to_pylist() if self.store else []
        if not rows:
            raise UsageError(f"{self.uri}: no item {item_id!r} in this collection; `triptych search --json` shows ids")
        return rows[0]

    def _require_store(self) -> Store:
        if self.store is None:
            raise CollectionError(f"{self.uri}: the collection is empty; index a folder first")
        if self.store.metadata.fingerprint != self.fingerprint:
            raise CollectionError(
                f"{self.uri}: the collection was rebuilt with another space ({self.store.metadata.space_path}) after "
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
        """The folder of the IVF index. For a collection on an object store, the folder is in the local cache."""
        if "://" not in self.uri:
            return self.folder / INDEX_FOLDER
        return self.cache.folder / INDEX_FOLDER / hashlib.sha256(self.uri.encode()).hexdigest()[:16]

    def _build_indexes(self) -> None:
        snapshot = self._load_snapshot(max_age=0.0)
        galleries: dict[Modality, Gallery] = {m: snapshot.load_gallery(m) for m in self.space.modalities}
        sampled_keys = np.concatenate([gallery.sample(NUM_CALIBRATION_QUERIES)[1] for gallery in galleries.values()])
        queries = np.random.default_rng(0).permutation(sampled_keys)
        outdated: list[Modality] = [m for m, gallery in galleries.items() if gallery.should_build_index()]
        for modality in outdated:
            build_ivf_index(snapshot.store, modality, self._index_folder, queries)
        if outdated:
            self._snapshot = None  # the galleries of this snapshot do not use the new index

    def _check_space(self, metadata: CollectionMetadata) -> None:
        if self.fingerprint != metadata.fingerprint:
            raise CollectionError(
                f"{self.uri}: the collection was made with another space than {self.space_path}; index into another "
                "folder (--collection), or replace the collection (--rebuild)"
            )

    def _open_writer(self, access: WriteAccess) -> Writer:
        """Open the existing table for writing, or create a table."""
        if self.store is None and self._rebuild:
            Writer.drop_table(self.uri, access)
            shutil.rmtree(self._index_folder, ignore_errors=True)
            if "://" not in self.uri:
                shutil.rmtree(self.folder / LEGACY_INDEX_FOLDER, ignore_errors=True)
        elif self.store is None:
            self.store = Store.open(self.uri)  # another process may have created the table
        if self.store is not None:
            writer = Writer(self.store, access)  # refreshes the metadata of the store
            self._check_space(self.store.metadata)
            return writer
        metadata = CollectionMetadata(str(self.space_path), self.fingerprint)
        keys = self.space.similarity.keys(features_from_embeddings(torch.randn(1, self.space.recipe.space.embed_dim)))
        writer = Writer.create(self.uri, metadata, keys.shape[1], access)
        self.store = writer.store
        return writer


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise CollectionError(f"{folder} is a file; give a folder for the collection")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set[str]()
    if names - COLLECTION_FILES and names - COLLECTION_FILES - find_stale_temp_files(folder, [NOT_INDEXED_FILE]):
        raise CollectionError(f"{folder}: contains other files; give an empty or new folder for the collection")


def _display_name(source: Source) -> str:
    return source.content.name if isinstance(source.content, Path) else repr(str(source.content)[:NOTE_TEXT_LENGTH])
