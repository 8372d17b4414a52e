"""A collection: a user's files, embedded once with one space, and the search over them."""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych import checkpoint
from triptych.data.cache import Cache
from triptych.errors import CollectionError, UsageError
from triptych.files import find_stale_temp_files, lock_file_names
from triptych.interfaces import Features, Hit, Modality, Source
from triptych.search.chance import BackgroundScores
from triptych.search.entry import StoredItem, features_from_rows, stored_item_from_row
from triptych.search.gallery import MAX_CACHED_FILTERS, Gallery, build_ivf_index
from triptych.search.index import NUM_CALIBRATION_QUERIES
from triptych.search.ingest import IndexResult, Ingest
from triptych.search.items import Item, merge_items, query_content_hashes
from triptych.search.lease import LOCK_FILE, WriteAccess, acquire_write_access
from triptych.search.query import EmbeddedQuery, Filter, Query, QueryPart, quote_sql
from triptych.search.ranking import EmbeddedPart, FilterResult, RankedItems, Ranker
from triptych.search.relevance import ScoreDistribution
from triptych.search.store import METADATA_COLUMNS, TABLE, VECTOR_COLUMNS, CollectionMetadata, Store, Version
from triptych.search.writer import Writer
from triptych.space import Space, features_without_parts

LEGACY_TABLE_FILE = "items.parquet"
INDEX_FOLDER = "ivf"
NOT_INDEXED_FILE = "not-indexed.tsv"
COLLECTION_FILES = {f"{TABLE}.lance", *lock_file_names(LOCK_FILE), INDEX_FOLDER, NOT_INDEXED_FILE}
OVERFETCH = 3  # times as many as are wanted are fetched, so that folded copies leave enough
REFRESH_SECONDS = 0.5  # between looks for a newer version of the store
MAX_CACHED_ITEMS = 20_000  # items whose facts are kept in memory once they were shown
NOTE_TEXT_LENGTH = 40  # characters of a text in a note
NOTE_MAX_NAMES = 3  # items that were asked with are named in a note
DUPLICATE_DISTANCE_RATIO = (
    1e-3  # two items count as copies of each other when they lie this much nearer than two items do on average
)


class Collection:
    """Items embedded with one space, searchable by anything the space can embed."""

    def __init__(self, uri: str, space_path: Path, store: Store | None) -> None:
        self.uri, self.space_path, self.store = uri, space_path, store
        self.space: Space = checkpoint.load(space_path)
        self.fingerprint = checkpoint.compute_fingerprint(space_path)
        self.cache = Cache.default()
        self.background_scores = BackgroundScores(self.space)
        self._galleries: dict[Modality, tuple[Version, Gallery]] = {}
        self._filter_results: dict[tuple[Version, str], FilterResult] = {}
        self._stored_items: tuple[Version | None, dict[int, StoredItem]] = None, {}
        self._last_refresh = -math.inf
        self._should_rebuild = False

    def __len__(self) -> int:
        return self.store.count() if self.store else 0

    @property
    def folder(self) -> Path:
        """Where it is, where that is a folder."""
        return Path(self.uri)

    @property
    def not_indexed_path(self) -> Path:
        """The list of files that the last run of `triptych index` left out; absent where it left out none."""
        return (self._index_folder if "://" in self.uri else self.folder) / NOT_INDEXED_FILE

    @staticmethod
    def create(folder: str | Path, space: str | Path, rebuild: bool = False) -> Collection:
        """The collection in a folder (or at s3://…), new or as it is; another space than its own is refused.

        With rebuild the first index() removes what it holds, readable or not, and begins anew; what was embedded before
        comes back from the cache.
        """
        uri, space_path = str(folder), checkpoint.resolve_path(space).resolve()
        store = None if rebuild else Store.open(uri)
        if store is None and "://" not in uri:
            _check_folder(Path(uri))
        collection = Collection(uri, space_path, store)
        collection._should_rebuild = rebuild
        if store is not None:
            collection._check_space(store.metadata)
        return collection

    @staticmethod
    def open(folder: str | Path) -> Collection:
        """A collection that was made before."""
        uri = str(folder)
        store = Store.open(uri)
        if store is None and "://" not in uri and (Path(uri) / LEGACY_TABLE_FILE).exists():
            raise CollectionError(f"{uri}: made by an earlier version of triptych; delete the folder and index again")
        if store is None:
            raise CollectionError(f"{uri}: no collection here; make one with `triptych index FOLDER --space RUN`")
        if not Path(store.metadata.space_path).exists():
            raise CollectionError(f"{uri}: its space {store.metadata.space_path} is gone; index again with --space RUN")
        collection = Collection(uri, Path(store.metadata.space_path), store)
        collection._check_space(store.metadata)
        return collection

    def index(self, items: Iterable[Item], origin: str | Path, show_progress: bool = True) -> IndexResult:
        """Make the collection hold exactly these items of an origin (a folder, a manifest), beside those of others.

        Only what is new or changed is embedded. Killed at any moment, the next call goes on from what was stored.
        """
        unique_items = merge_items(items)
        with acquire_write_access(self.uri) as access:
            writer = self._open_writer(access)
            result = Ingest(writer, self.space, self.cache).run(
                unique_items, str(Path(origin).resolve()), show_progress
            )
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
        """The k most relevant items of the wanted modalities (all of them, unless told), most relevant first.

        Of items that are nearly the same only the first is listed, with the ids of its copies, unless fold is off.
        Items that the query asks with are left out, unless include_query is on: those it names by id, those with the
        same content, and a file of the collection that it gives.
        """
        if self.store is None:
            return []
        version = self._refresh_version()
        parts = Query.wrap(query).parts
        embedded_parts = [self._embed_part(part) for part in parts]
        query_row_ids = set[int]() if include_query else self._find_query_rows(version, parts)
        filter_result = (
            self._apply_filter(version, item_filter.sql) if item_filter and item_filter.sql else FilterResult()
        )
        ranked: list[RankedItems] = []
        for modality in modalities or self.space.modalities:
            gallery = self._load_gallery(version, modality)
            if len(gallery):
                ranker = Ranker(
                    self.space,
                    self.store,
                    gallery,
                    modality,
                    embedded_parts,
                    self._estimate_distributions(version, modality, embedded_parts),
                )
                ranked.append(ranker.rank(OVERFETCH * k + len(query_row_ids), filter_result))
        return self._merge_hits(version, ranked, query_row_ids, fold_duplicates, k)

    def search_similar(
        self, item_id: str, modalities: Sequence[Modality] = (), k: int = 10, item_filter: Filter | None = None
    ) -> list[Hit]:
        """The items most like one of the collection."""
        return self.search(Query((QueryPart(item_id),)), modalities, k, item_filter)

    def describe_excluded_items(self, query: Source | Query) -> str | None:
        """A sentence on the items that a search leaves out because the query asks with them, beside those it names."""
        if self.store is None:
            return None
        version, parts = self._refresh_version(), Query.wrap(query).parts
        row_ids = sorted(self._find_query_rows(version, parts))
        stored_items = self._load_stored_items(version, row_ids)
        named_ids = {part.value for part in parts if isinstance(part.value, str)}
        excluded = [
            stored_items[number]
            for number in row_ids
            if number in stored_items and stored_items[number].id not in named_ids
        ]
        names = list(dict.fromkeys(_display_name(entry) for entry in excluded))
        if not names:
            return None
        more = f" and {len(names) - NOTE_MAX_NAMES} more" if len(names) > NOTE_MAX_NAMES else ""
        return f"what was asked with is in the collection itself ({', '.join(names[:NOTE_MAX_NAMES])}{more}) and is not shown"

    def load_item(self, item_id: str) -> StoredItem:
        """An item of the collection by its id."""
        return stored_item_from_row(self._load_row(item_id, METADATA_COLUMNS))

    def load_features(self, item_id: str) -> Features:
        """What the collection has kept of an item for scoring."""
        row = self._load_row(item_id, ("modality", *VECTOR_COLUMNS))
        return features_from_rows([row], self.space.recipe.space.embed_dim, row["modality"])

    def list_items(
        self, item_filter: Filter | None = None, limit: int | None = None, offset: int = 0
    ) -> list[StoredItem]:
        """The items, or some of them, as they are kept."""
        if self.store is None:
            return []
        self.store.refresh()
        rows = self.store.select_rows(
            METADATA_COLUMNS, item_filter.sql if item_filter else "", limit, offset
        ).to_pylist()
        return sorted(map(stored_item_from_row, rows), key=lambda entry: entry.item.identity)

    def sample(self, modality: Modality, count: int) -> tuple[list[StoredItem], np.ndarray]:
        """At most so many items of a modality, always the same ones, with their keys (C, S): for maps."""
        if self.store is None:
            return [], np.empty((0, 1), np.float32)
        row_ids, keys = self._load_gallery(self._refresh_version(), modality).sample(count)
        rows = self.store.take(METADATA_COLUMNS, row_ids)
        return [stored_item_from_row(rows[int(number)]) for number in row_ids], keys

    def _embed_part(self, part: QueryPart) -> EmbeddedPart:
        if isinstance(part.value, EmbeddedQuery):
            return EmbeddedPart(part.value.features, part.value.modality, part.weight)
        if isinstance(part.value, Source):
            return EmbeddedPart(self.space.embed_one(part.value), part.value.modality, part.weight)
        row = self._load_row(part.value, ("modality", *VECTOR_COLUMNS))
        modality, embed_dim = row["modality"], self.space.recipe.space.embed_dim
        return EmbeddedPart(features_from_rows([row], embed_dim, modality), modality, part.weight)

    def _find_query_rows(self, version: Version, parts: Sequence[QueryPart]) -> set[int]:
        """The numbers of the items that a query asks with: by their content; of a longer file, all of its moments."""
        item_hashes, file_hashes = set[str](), set[str]()  # contents
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
        row_ids = self._select_row_ids(
            version, f"content_hash IN ({', '.join(map(quote_sql, sorted(item_hashes | file_hashes)))})"
        )
        stored_items = self._load_stored_items(version, row_ids)
        for source in {
            stored_items[n].item.source
            for n in row_ids
            if n in stored_items and stored_items[n].content_hash in file_hashes
        }:
            if source.start is not None:
                same_file = f"modality = {quote_sql(source.modality)} AND file = {quote_sql(str(source.content))}"
                row_ids += self._select_row_ids(version, same_file)
        return set(row_ids)

    def _select_row_ids(self, version: Version, sql: str) -> list[int]:
        row_ids = self._apply_filter(version, sql).row_ids
        return [] if row_ids is None else row_ids.tolist()

    def _merge_hits(
        self,
        version: Version,
        ranked_by_modality: Sequence[RankedItems],
        query_row_ids: set[int],
        fold_duplicates: bool,
        k: int,
    ) -> list[Hit]:
        """Everything found, rarest score first, without what was asked with; copies are folded into the first."""
        stored_items = self._load_stored_items(
            version, [int(number) for ranked in ranked_by_modality for number in ranked.row_ids]
        )
        order = sorted(
            ((ranked, i) for ranked in ranked_by_modality for i in range(len(ranked.row_ids))),
            key=lambda p: -p[0].neg_log_p[p[1]],
        )
        listed: list[tuple[StoredItem, np.ndarray, Hit, list[str]]] = []
        for ranked, i in order:
            stored_item, key = stored_items.get(int(ranked.row_ids[i])), ranked.keys[i]
            if stored_item is None or stored_item.row_id in query_row_ids:
                continue
            max_distance = DUPLICATE_DISTANCE_RATIO * ranked.gallery.mean_squared_distance
            duplicates = next(
                (copies for e, other, _, copies in listed if _is_duplicate(stored_item, key, e, other, max_distance)),
                None,
            )
            if fold_duplicates and duplicates is not None:
                duplicates.append(stored_item.id)
            elif len(listed) < k:
                listed.append((stored_item, key, _make_hit(stored_item, ranked, i), []))
        return [replace(hit, copies=tuple(copies)) for _, _, hit, copies in listed]

    def _load_stored_items(self, version: Version, row_ids: Sequence[int]) -> dict[int, StoredItem]:
        """Items by their numbers. A look into the table costs more than all the rest of a search: each is read once."""
        cached = self._stored_items[1] if self._stored_items[0] == version else {}
        missing = [number for number in row_ids if number not in cached]
        if missing:
            if len(cached) + len(missing) > MAX_CACHED_ITEMS:
                cached, missing = {}, row_ids
            cached |= {
                n: stored_item_from_row(row) for n, row in self._require_store().take(METADATA_COLUMNS, missing).items()
            }
            self._stored_items = version, cached
        return cached

    def _load_row(self, item_id: str, columns: Sequence[str]) -> dict[str, Any]:
        rows = (
            self._require_store().select_rows(columns, f"id = {quote_sql(item_id)}").to_pylist() if self.store else []
        )
        if not rows:
            raise UsageError(f"{self.uri}: no item {item_id!r} in this collection; a search shows the ids (--json)")
        return rows[0]

    def _require_store(self) -> Store:
        if self.store is None:
            raise CollectionError(f"{self.uri}: the collection is empty; index a folder first")
        if self.store.metadata.fingerprint != self.fingerprint:
            raise CollectionError(
                f"{self.uri}: was made anew with another space ({self.store.metadata.space_path}) since it was opened; open "
                "it again (a server: start it again)"
            )
        return self.store

    def _load_gallery(self, version: Version, modality: Modality) -> Gallery:
        cached_version, gallery = self._galleries.get(modality, (("", 0), None))
        if gallery is None or cached_version != version:
            is_same_table = cached_version[0] == version[0]  # of another table the same numbers are other items
            gallery = Gallery.load(
                self._require_store(), modality, self._index_folder, gallery if is_same_table else None
            )
            self._galleries[modality] = version, gallery
        return gallery

    def _estimate_distributions(
        self, version: Version, modality: Modality, embedded_parts: Sequence[EmbeddedPart]
    ) -> list[ScoreDistribution]:
        item_gallery = modality, self._load_gallery(version, modality)
        distributions = []
        for part in embedded_parts:
            query_gallery = part.modality, self._load_gallery(version, part.modality)
            distributions.append(
                self.background_scores.estimate(
                    self._require_store(), version, query_gallery, item_gallery, part.features
                )
            )
        return distributions

    def _refresh_version(self) -> Version:
        """The newest version of the store, looked for now and then: another process may be indexing."""
        if self.store is not None and time.monotonic() - self._last_refresh > REFRESH_SECONDS:
            self.store.refresh()
            self._last_refresh = time.monotonic()
        return self._require_store().version

    @property
    def _index_folder(self) -> Path:
        """Where lists of keys lie: beside the items; for a collection elsewhere, in this machine's cache."""
        if "://" not in self.uri:
            return self.folder / INDEX_FOLDER
        return self.cache.folder / INDEX_FOLDER / hashlib.sha256(self.uri.encode()).hexdigest()[:16]

    def _build_indexes(self) -> None:
        version = self._require_store().refresh()
        galleries: dict[Modality, Gallery] = {m: self._load_gallery(version, m) for m in self.space.modalities}
        sampled_keys = np.concatenate([gallery.sample(NUM_CALIBRATION_QUERIES)[1] for gallery in galleries.values()])
        queries = np.random.default_rng(0).permutation(sampled_keys)
        for modality, gallery in galleries.items():
            if gallery.should_build_index():
                build_ivf_index(self._require_store(), modality, self._index_folder, queries)
                self._galleries.clear()

    def _apply_filter(self, version: Version, sql: str) -> FilterResult:
        """The items that fulfil a condition."""
        if (version, sql) not in self._filter_results:
            if len(self._filter_results) >= MAX_CACHED_FILTERS:
                self._filter_results.clear()
            self._filter_results[version, sql] = FilterResult(
                sql, np.sort(self._require_store().select_rows(["row_id"], sql)["row_id"].to_numpy())
            )
        return self._filter_results[version, sql]

    def _check_space(self, metadata: CollectionMetadata) -> None:
        if self.fingerprint != metadata.fingerprint:
            raise CollectionError(
                f"{self.uri}: was made with another space than {self.space_path} is now; index into another folder "
                "(--collection), or make it anew with --rebuild"
            )

    def _open_writer(self, access: WriteAccess) -> Writer:
        """What changes the store: as it is now, or new, or made anew."""
        if self._should_rebuild:
            Writer.drop_table(self.uri, access)
            shutil.rmtree(self._index_folder, ignore_errors=True)
            self._should_rebuild = False
        elif self.store is None:
            self.store = Store.open(self.uri)  # another process may have made it meanwhile
        if self.store is not None:
            writer = Writer(self.store, access)
            self._check_space(self.store.metadata)
            return writer
        metadata = CollectionMetadata(str(self.space_path), self.fingerprint)
        keys = self.space.similarity.keys(features_without_parts(torch.randn(1, self.space.recipe.space.embed_dim)))
        writer = Writer.create(self.uri, metadata, keys.shape[1], access)
        self.store = writer.store
        return writer


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise CollectionError(f"{folder}: is a file; give a folder for the collection")
    if folder.exists() and {path.name for path in folder.iterdir()} - COLLECTION_FILES - find_stale_temp_files(
        folder, [NOT_INDEXED_FILE]
    ):
        raise CollectionError(f"{folder}: holds other things; give an empty or new folder for the collection")


def _display_name(stored_item: StoredItem) -> str:
    content = stored_item.item.source.content
    return content.name if isinstance(content, Path) else repr(content[:NOTE_TEXT_LENGTH])


def _make_hit(stored_item: StoredItem, ranked: RankedItems, i: int) -> Hit:
    source, item = stored_item.item.source, stored_item.item
    return Hit(
        item=str(source.content),
        modality=source.modality,
        score=float(ranked.scores[i]),
        captions=item.captions,
        start=source.start,
        end=source.end,
        id=stored_item.id,
        relevance=float(ranked.relevance[i]),
        parts=tuple(map(float, ranked.part_scores[i])),
        columns=item.columns,
        duration=item.duration,
        excerpt=stored_item.excerpt,
    )


def _is_duplicate(
    stored_item: StoredItem, key: np.ndarray, other: StoredItem, other_key: np.ndarray, max_distance: float
) -> bool:
    if stored_item.item.source.modality != other.item.source.modality:
        return False
    return stored_item.content_hash == other.content_hash or float(((key - other_key) ** 2).sum()) < max_distance
