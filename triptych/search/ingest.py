"""From items to the store: only what is new or changed is embedded, in whole steps, so that a kill costs seconds."""

from __future__ import annotations

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
from triptych.errors import MediaError
from triptych.interfaces import Features, Modality, Source
from triptych.media import text
from triptych.progress import ProgressBar, track_progress
from triptych.search.entry import Provenance, StoredItem, make_metadata_columns, stored_item_from_row, to_arrow
from triptych.search.items import Item
from triptych.search.store import METADATA_COLUMNS, SQL_BATCH, VECTOR_COLUMNS
from triptych.search.writer import Writer
from triptych.space import Space, concat_features, features_without_parts

ITEMS_PER_CHUNK = 256  # items that go through an encoder together
SAVE_SECONDS = 2.0  # how much work a kill can cost, beside the chunk in hand
UNREADABLE = "unreadable"
EXCERPT_LENGTH = 2000  # characters of a text file that are kept to be shown
UNCHANGED_COLUMNS = (*VECTOR_COLUMNS, "text")  # of an item whose content has stayed


@dataclass(frozen=True)
class IndexResult:
    """What indexing did: new, unchanged and gone items, the files that could not be read, and where the time went."""

    added: int
    unchanged: int
    removed: int
    failures: dict[Source, str]
    seconds: dict[str, float] = field(default_factory=dict)  # looking, embedding, storing


class Ingest:
    """One run of indexing into a store."""

    def __init__(self, writer: Writer, space: Space, cache: Cache) -> None:
        store = writer.store
        # Parts are not kept a second time: those of frozen encoders are in the cache already.
        name, embed_dim = f"space-{store.metadata.fingerprint}", space.recipe.space.embed_dim
        description = f"embeddings of the space {store.metadata.fingerprint}"
        self._feature_store = (
            None if space.similarity.reads_parts else FeatureStore(cache.folder / name, embed_dim, description)
        )
        self.writer, self.store, self.space, self.cache = writer, store, space, cache
        self.failures: dict[Source, str] = {}
        self.seconds: dict[str, float] = {"scanning": 0.0, "embedding": 0.0, "storing": 0.0}
        self._pending: list[pa.Table] = []
        self._last_flush = time.monotonic()
        self._next_row_id = 0
        self._stored_rows: dict[str, dict[str, Any]] = {}

    def run(self, items: Sequence[Item], origin: str, show_progress: bool) -> IndexResult:
        """Make the store hold exactly these items of an origin, beside those of others.

        An item that several origins have is kept as long as one of them has it, with what all of them say.
        """
        with self._measure_time("scanning"):
            rows = self.store.select_rows(["id", "row_id", "origins", "content_hash", "metadata_hash"]).to_pylist()
            self._stored_rows = {row["id"]: row for row in rows}
            self._next_row_id = self.store.find_next_row_id()
            item_ids = {item.id for item in items}
            other_origins = self._load_other_origins(
                [row for row in rows if origin in row["origins"] or row["id"] in item_ids], origin
            )
            unlisted_ids = [row["id"] for row in rows if origin in row["origins"] and row["id"] not in item_ids]
            removed_ids = [name for name in unlisted_ids if name not in other_origins]
            stored_items = self._make_stored_items(items, origin, other_origins)
        changed = [entry for entry in stored_items if not self._is_unchanged(entry)]
        unchanged = [entry for entry in stored_items if self._is_unchanged(entry)]
        self._delete(removed_ids)
        self._update_metadata([other_origins[name] for name in unlisted_ids if name in other_origins])
        self._update_metadata(
            [entry for entry in unchanged if self._stored_rows[entry.id]["metadata_hash"] != entry.metadata_hash]
        )
        added = self._embed_and_store(changed, show_progress)
        # What was here and can no longer be read has a vector of a content that is gone.
        self._delete([e.id for e in changed if e.item.source in self.failures and e.id in self._stored_rows])
        return IndexResult(added, len(unchanged), len(removed_ids), self.failures, self.seconds)

    def _load_other_origins(self, rows: Sequence[dict[str, Any]], origin: str) -> dict[str, StoredItem]:
        """What other origins have of these rows, by id, with what they alone say."""
        row_ids = [row["row_id"] for row in rows if set(row["origins"]) - {origin}]
        stored_items = [stored_item_from_row(row) for row in self.store.take(METADATA_COLUMNS, row_ids).values()]
        return {
            entry.id: entry.with_provenance([c for c in entry.provenance if c.origin != origin])
            for entry in stored_items
        }

    def _make_stored_items(
        self, items: Sequence[Item], origin: str, other_origins: dict[str, StoredItem]
    ) -> list[StoredItem]:
        """Every item with the hash of its content, which decides whether it is known, and its file's date."""
        keys = self.cache.content_keys([item.source for item in items])
        stored_items = []
        for item, key in zip(items, keys, strict=True):
            content_hash = UNREADABLE if isinstance(key, MediaError) else key.hex()
            stored_item = StoredItem(
                item, (Provenance.from_item(item, origin),), content_hash, _read_modified_time(item.source.content)
            )
            other = other_origins.get(stored_item.id)
            stored_items.append(
                stored_item.with_provenance([*other.provenance, *stored_item.provenance]) if other else stored_item
            )
        return stored_items

    def _is_unchanged(self, stored_item: StoredItem) -> bool:
        row = self._stored_rows.get(stored_item.id)
        return row is not None and row["content_hash"] == stored_item.content_hash != UNREADABLE

    def _embed_and_store(self, stored_items: Sequence[StoredItem], show_progress: bool) -> int:
        """Embed what is new or changed, and store it as it comes."""
        by_modality: dict[Modality, list[StoredItem]] = {}
        for entry in stored_items:
            by_modality.setdefault(entry.item.source.modality, []).append(entry)
        added = 0
        try:
            with track_progress("indexing", len(stored_items), show_progress) as progress_bar:
                for modality, group in by_modality.items():
                    for first in range(0, len(group), ITEMS_PER_CHUNK):
                        added += self._embed(modality, group[first : first + ITEMS_PER_CHUNK], progress_bar)
                        if time.monotonic() - self._last_flush > SAVE_SECONDS:
                            self._flush()
        finally:
            self._flush()
        return added

    @torch.inference_mode()
    def _embed(self, modality: Modality, stored_items: Sequence[StoredItem], progress_bar: ProgressBar) -> int:
        with self._measure_time("embedding"):
            cached = self._load_cached_embeddings(stored_items)
            cached_items = [entry for entry in stored_items if entry.content_hash in cached]
            uncached_items = [entry for entry in stored_items if entry.content_hash not in cached]
            progress_bar.advance(len(cached_items))
            features = (
                [features_without_parts(torch.stack([cached[entry.content_hash] for entry in cached_items]), modality)]
                if cached_items
                else []
            )
            embedded_items: list[StoredItem] = []
            similarity, sources = self.space.similarity, [entry.item.source for entry in uncached_items]
            if sources:
                embedded = self.space.embed(
                    sources, modality, progress=progress_bar, with_parts=similarity.reads_parts, cache=self.cache
                )
                self.failures |= embedded.failures
                embedded_items = [uncached_items[i] for i in embedded.indices]
                self._cache_embeddings(embedded_items, embedded.features)
                features.append(embedded.features)
            new_items = [
                replace(entry, row_id=self._next_row_id + i, excerpt=_read_excerpt(entry.item.source))
                for i, entry in enumerate([*cached_items, *embedded_items])
            ]
            self._next_row_id += len(new_items)
            if new_items:
                self._pending.append(
                    to_arrow(
                        new_items, concat_features(features, self.space.recipe.space.embed_dim, modality), similarity
                    )
                )
        return len(new_items)

    def _load_cached_embeddings(self, stored_items: Sequence[StoredItem]) -> dict[str, Tensor]:
        """Embeddings that this space has made of these contents before, whatever became of the collection."""
        if self._feature_store is None:
            return {}
        records = self._feature_store.find(
            bytes.fromhex(entry.content_hash) for entry in stored_items if entry.content_hash != UNREADABLE
        )
        pooled = {key.hex(): self._feature_store.read_pooled(record) for key, record in records.items()}
        return {content: torch.from_numpy(rows[0].copy()) for content, rows in pooled.items() if rows is not None}

    def _cache_embeddings(self, stored_items: Sequence[StoredItem], features: Features) -> None:
        if self._feature_store is not None and stored_items:
            rows = zip(stored_items, features.embedding.float(), strict=True)
            self._feature_store.add([(bytes.fromhex(entry.content_hash), row.unsqueeze(0)) for entry, row in rows])

    def _flush(self) -> None:
        with self._measure_time("storing"):
            if self._pending:
                self.writer.upsert(pa.concat_tables(self._pending))
                self._pending.clear()
        self._last_flush = time.monotonic()

    def _update_metadata(self, stored_items: Sequence[StoredItem]) -> None:
        """New captions, columns, dates or origin for items whose content has stayed."""
        with self._measure_time("storing"):
            for first in range(0, len(stored_items), SQL_BATCH):
                batch = stored_items[first : first + SQL_BATCH]
                row_ids = [self._stored_rows[entry.id]["row_id"] for entry in batch]
                current_rows = self.store.take(UNCHANGED_COLUMNS, row_ids)
                updated_items = [replace(entry, row_id=number) for entry, number in zip(batch, row_ids, strict=True)]
                unchanged = {name: [current_rows[number][name] for number in row_ids] for name in UNCHANGED_COLUMNS}
                column_types = {name: self.store.schema.field(name).type for name in UNCHANGED_COLUMNS}
                unchanged_columns = {name: pa.array(values, column_types[name]) for name, values in unchanged.items()}
                self.writer.upsert(pa.table(make_metadata_columns(updated_items) | unchanged_columns))

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


def _read_excerpt(source: Source) -> str | None:
    """How a text file begins; None of anything else, or where it cannot be read any more."""
    if source.modality != "text" or isinstance(source.content, str):
        return None
    try:
        return text.read(source.content)[:EXCERPT_LENGTH]
    except MediaError:
        return None


def _read_modified_time(content: str | Path) -> float | None:
    try:
        return None if isinstance(content, str) else content.stat().st_mtime
    except OSError:
        return None
