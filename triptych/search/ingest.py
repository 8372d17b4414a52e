"""Embed new and changed items and write them to the store, with a commit every few seconds."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from triptych.data.cache import Cache, FeatureStore
from triptych.errors import CollectionError, MediaError
from triptych.execution.backends import describe_backends
from triptych.interfaces import Features, Modality, Source, concat_features, features_from_embeddings
from triptych.media import text
from triptych.progress import ProgressBar, track_progress
from triptych.search.item import METADATA_COLUMNS, VECTOR_COLUMNS, Item, item_from_row, make_metadata_table, to_arrow
from triptych.search.store import SQL_BATCH, Store, Writer
from triptych.space import Space

ITEMS_PER_CHUNK = 256  # number of items that are embedded together
SAVE_SECONDS = 2.0  # time between two commits; an interruption loses the work since the last commit
UNREADABLE = "unreadable"  # the content hash of a file that cannot be read
EXCERPT_LENGTH = 2000  # maximum number of characters of a text file that are stored for display


@dataclass(frozen=True)
class IndexResult:
    """The numbers of new, unchanged and removed items, the files that could not be read, and the time taken."""

    added: int
    unchanged: int
    removed: int
    failures: dict[Source, str]
    seconds: dict[str, float] = field(default_factory=dict)  # time of each phase: scanning, embedding, storing


class Ingest:
    """Indexes the items of one folder or manifest."""

    def __init__(self, writer: Writer, space: Space, cache: Cache) -> None:
        store = writer.store
        _check_backends(store, space)
        # Part vectors are not cached here, because the feature cache has the parts of frozen encoders.
        fingerprint, embed_dim = store.metadata.fingerprint, space.recipe.space.embed_dim
        if store.metadata.backends:
            fingerprint = f"{fingerprint}-{store.metadata.backends}"
        folder, description = cache.folder / f"space-{fingerprint}", f"embeddings of the space {fingerprint}"
        reads_parts = space.similarity.reads_parts
        self._feature_store = None if reads_parts else FeatureStore(folder, embed_dim, description)
        self.writer, self.store, self.space, self.cache = writer, store, space, cache
        self.failures: dict[Source, str] = {}
        self.seconds: dict[str, float] = {"scanning": 0.0, "embedding": 0.0, "storing": 0.0}
        self._pending: list[pa.Table] = []
        self._last_flush = time.monotonic()
        self._next_row_id = 0
        self._stored_rows: dict[str, dict[str, Any]] = {}
        self._row_ids_by_content: dict[tuple[str, str], int] = {}  # by modality and content hash

    def run(self, items: Sequence[Item], origin: str, show_progress: bool) -> IndexResult:
        """Add or update the items of an origin; remove stored items of the origin that are not in `items`.

        Items have locations, and so has the origin.

        An item of several origins has the metadata of all its origins. The item is removed when no origin lists it.
        """
        with self._measure_time("scanning"):
            columns = ["id", "row_id", "modality", "origins", "content_hash", "metadata_hash"]
            rows = self.store.select_rows(columns).to_pylist()
            self._stored_rows = {row["id"]: row for row in rows}
            self._row_ids_by_content = {(row["modality"], row["content_hash"]): row["row_id"] for row in rows}
            self._next_row_id = self.store.find_next_row_id()
            item_ids = {item.id for item in items}
            affected = [row for row in rows if origin in row["origins"] or row["id"] in item_ids]
            other_origins = self._load_other_origins(affected, origin)
            unlisted_ids = [row["id"] for row in rows if origin in row["origins"] and row["id"] not in item_ids]
            removed_ids = [item_id for item_id in unlisted_ids if item_id not in other_origins]
            completed = self._complete_items(items, origin, other_origins)
        changed = [item for item in completed if not self._is_unchanged(item)]
        unchanged = [item for item in completed if self._is_unchanged(item)]
        hashes = {item_id: row["metadata_hash"] for item_id, row in self._stored_rows.items()}
        self._update_metadata([other_origins[item_id] for item_id in unlisted_ids if item_id in other_origins])
        self._update_metadata([item for item in unchanged if hashes[item.id] != item.metadata_hash])
        added = self._embed_and_store(changed, show_progress)
        self._delete(removed_ids)  # after new items: a file that was renamed gets the vectors of the removed item
        # If a changed file cannot be read, delete its item: the stored vector is of the previous content.
        self._delete([item.id for item in changed if item.source in self.failures and item.id in self._stored_rows])
        return IndexResult(added, len(unchanged), len(removed_ids), self.failures, self.seconds)

    def _load_other_origins(self, rows: Sequence[dict[str, Any]], origin: str) -> dict[str, Item]:
        """Return, by id, those items of the rows that have other origins, with only the metadata of other origins."""
        row_ids = [row["row_id"] for row in rows if set(row["origins"]) - {origin}]
        items = [item_from_row(row, self.store.roots) for row in self.store.take(METADATA_COLUMNS, row_ids).values()]
        return {item.id: item.with_provenance([p for p in item.provenance if p.origin != origin]) for item in items}

    def _complete_items(self, items: Sequence[Item], origin: str, other_origins: dict[str, Item]) -> list[Item]:
        """Return the items with content hashes, modification times, and the metadata of all origins."""
        keys = self.cache.content_keys([item.source for item in items])
        completed = []
        for item, key in zip(items, keys, strict=True):
            content_hash = UNREADABLE if isinstance(key, MediaError) else key.hex()
            modified_time = _read_modified_time(item.source)
            item = replace(item.with_origin(origin), content_hash=content_hash, modified_time=modified_time)
            other = other_origins.get(item.id)
            completed.append(item.with_provenance([*other.provenance, *item.provenance]) if other else item)
        return completed

    def _is_unchanged(self, item: Item) -> bool:
        row = self._stored_rows.get(item.id)
        return row is not None and row["content_hash"] == item.content_hash != UNREADABLE

    def _embed_and_store(self, items: Sequence[Item], show_progress: bool) -> int:
        """Embed and store items, in several commits; return the number of embedded items."""
        by_modality: dict[Modality, list[Item]] = {}
        for item in items:
            by_modality.setdefault(item.source.modality, []).append(item)
        added = 0
        try:
            with track_progress("indexing", len(items), show_progress) as progress_bar:
                for modality, group in by_modality.items():
                    for first in range(0, len(group), ITEMS_PER_CHUNK):
                        added += self._embed(modality, group[first : first + ITEMS_PER_CHUNK], progress_bar)
                        if time.monotonic() - self._last_flush > SAVE_SECONDS:
                            self._flush()
        finally:
            self._flush()
        return added

    @torch.inference_mode()
    def _embed(self, modality: Modality, items: Sequence[Item], progress_bar: ProgressBar) -> int:
        num_stored_items, items = self._add_with_stored_vectors(items)
        progress_bar.advance(num_stored_items)
        with self._measure_time("embedding"):
            cached = self._load_cached_embeddings(items)
            ready_items = [item for item in items if item.content_hash in cached]
            uncached = [item for item in items if item.content_hash not in cached]
            progress_bar.advance(len(ready_items))
            features: list[Features] = []
            if ready_items:
                embeddings = torch.stack([cached[item.content_hash] for item in ready_items])
                features.append(features_from_embeddings(embeddings, modality))
            if uncached:
                sources, reads_parts = [item.source for item in uncached], self.space.similarity.reads_parts
                embedded = self.space.embed(
                    sources,
                    modality,
                    progress=progress_bar,
                    with_parts=reads_parts,
                    cache=self.cache,
                    prompt_name="document",
                )
                self.failures |= embedded.failures
                computed_items = [uncached[i] for i in embedded.indices]
                self._cache_embeddings(computed_items, embedded.features)
                features.append(embedded.features)
                ready_items += computed_items
            new_items = self._make_new_items(ready_items)
            if new_items:
                all_features = concat_features(features, self.space.recipe.space.embed_dim, modality)
                self._pending.append(to_arrow(new_items, all_features, self.space.similarity))
        return num_stored_items + len(new_items)

    def _make_new_items(self, items: Sequence[Item]) -> list[Item]:
        """Return the items with new row ids and excerpts."""
        rows = enumerate(items, start=self._next_row_id)
        self._next_row_id += len(items)
        return [replace(item, row_id=row_id, excerpt=_read_excerpt(item.source)) for row_id, item in rows]

    def _add_with_stored_vectors(self, items: Sequence[Item]) -> tuple[int, list[Item]]:
        """Add those items whose content another item of the collection has; return their number, and the other items.

        The files were moved or copied, so their vectors are copied, too: also if the cache does not contain them.
        """
        contents = [(item.source.modality, item.content_hash) for item in items]
        row_ids = [None if c[1] == UNREADABLE else self._row_ids_by_content.get(c) for c in contents]
        with self._measure_time("storing"):
            rows = self.store.take(VECTOR_COLUMNS, {row_id for row_id in row_ids if row_id is not None})
        pairs = list(zip(items, row_ids, strict=True))
        known = [(item, rows[row_id]) for item, row_id in pairs if row_id in rows]
        if known:
            new_items = self._make_new_items([item for item, _ in known])
            self._pending.append(self._make_table(new_items, [row for _, row in known]))
        return len(known), [item for item, row_id in pairs if row_id not in rows]

    def _load_cached_embeddings(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Return the cached embeddings of items, by content hash."""
        if self._feature_store is None:
            return {}
        hashes = (item.content_hash for item in items if item.content_hash != UNREADABLE)
        records = self._feature_store.find(map(bytes.fromhex, hashes))
        pooled = {key.hex(): self._feature_store.read_pooled(record) for key, record in records.items()}
        return {key: torch.from_numpy(rows[0].copy()) for key, rows in pooled.items() if rows is not None}

    def _cache_embeddings(self, items: Sequence[Item], features: Features) -> None:
        if self._feature_store is not None and items:
            rows = zip(items, features.embedding.float(), strict=True)
            self._feature_store.add([(bytes.fromhex(item.content_hash), row.unsqueeze(0)) for item, row in rows])

    def _flush(self) -> None:
        with self._measure_time("storing"):
            if self._pending:
                self.writer.upsert(pa.concat_tables(self._pending))
                self._pending.clear()
        self._last_flush = time.monotonic()

    def _update_metadata(self, items: Sequence[Item]) -> None:
        """Store the new metadata of items whose content is unchanged."""
        with self._measure_time("storing"):
            for first in range(0, len(items), SQL_BATCH):
                batch = items[first : first + SQL_BATCH]
                row_ids = [self._stored_rows[item.id]["row_id"] for item in batch]
                current = self.store.take((*VECTOR_COLUMNS, "text"), row_ids)
                rows = zip(batch, row_ids, strict=True)
                updated = [replace(item, row_id=row_id, excerpt=current[row_id]["text"]) for item, row_id in rows]
                self.writer.upsert(self._make_table(updated, [current[row_id] for row_id in row_ids]))

    def _make_table(self, items: Sequence[Item], rows: Sequence[dict[str, Any]]) -> pa.Table:
        """Convert items to table rows with the vectors of stored rows."""
        table = make_metadata_table(items)
        for name in VECTOR_COLUMNS:
            values = pa.array([row[name] for row in rows], self.store.schema.field(name).type)
            table = table.append_column(name, values)
        return table

    def _delete(self, ids: Sequence[str]) -> None:
        with self._measure_time("storing"):
            self.writer.delete(ids)

    @contextmanager
    def _measure_time(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - started


def _check_backends(store: Store, space: Space) -> None:
    """Raise CollectionError if the space computes in another way than for the items of the collection."""
    recorded, current = (name or "none" for name in (store.metadata.backends, describe_backends(space)))
    if recorded != current:
        problem = f"the collection was made with other backends ({recorded}) than this space has ({current})"
        remedy = "give the same --precision and --runtime, or replace the collection (--rebuild)"
        raise CollectionError(f"{store.uri}: {problem}; {remedy}")


def _read_excerpt(source: Source) -> str | None:
    """Return the beginning of a text file; None for other sources, or if the file cannot be read."""
    if source.modality != "text" or isinstance(source.content, str):
        return None
    try:
        return text.read(source.path)[:EXCERPT_LENGTH]
    except MediaError:
        return None


def _read_modified_time(source: Source) -> float | None:
    try:
        return source.content.stat().st_mtime if isinstance(source.content, Path) else None
    except OSError:
        return None
