"""Items and hits as they go over the wire. Where files lie is told from what was indexed, not from the disk's root."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from triptych.app.server.schemas import CollectionInfo, HitResponse, ItemResponse, MediaKind
from triptych.interfaces import MODALITIES, Hit, Modality
from triptych.media import VIDEO_EXTENSIONS
from triptych.search.collection import Collection
from triptych.search.entry import StoredItem
from triptych.search.query import quote_sql
from triptych.search.store import Version

SAMPLE_SIZE = 2000  # items of each modality that are looked at for columns, folders and examples
MAX_COLUMN_VALUES = 60  # values of a column that can be chosen from a list
NUM_EXAMPLES = 4


def make_item_response(entry: StoredItem) -> ItemResponse:
    """An item of the collection."""
    source, item = entry.item.source, entry.item
    return ItemResponse(
        id=entry.id,
        captions=list(item.captions),
        start=source.start,
        end=source.end,
        duration=item.duration,
        columns={name: list(values) for name, values in item.columns.items()},
        **_display_fields(source.modality, source.content, entry.excerpt, _indexed_roots(entry.origins)),
    )


def make_hit_responses(hits: Sequence[Hit], roots: Sequence[Path]) -> list[HitResponse]:
    """What was found."""
    return [
        HitResponse(
            id=hit.id,
            captions=list(hit.captions),
            start=hit.start,
            end=hit.end,
            duration=hit.duration,
            columns={name: list(values) for name, values in hit.columns.items()},
            score=hit.score,
            relevance=hit.relevance,
            parts=list(hit.parts),
            copies=list(hit.copies),
            **_display_fields(hit.modality, Path(hit.item) if _is_file(hit, roots) else hit.item, hit.excerpt, roots),
        )
        for hit in hits
    ]


def _is_file(hit: Hit, roots: Sequence[Path]) -> bool:
    """Whether a hit is a file; a text may be either, and a file lies below something that was indexed."""
    if hit.modality != "text" or hit.excerpt is not None:
        return True
    return hit.item.startswith("/") and any(Path(hit.item).is_relative_to(root) for root in roots)


def _display_fields(
    modality: Modality, content: str | Path, excerpt: str | None, roots: Sequence[Path]
) -> dict[str, Any]:
    path = content if isinstance(content, Path) else None
    text = None
    if modality == "text":
        # Of a file what was kept at indexing: the path may lead anywhere by now.
        text = str(content) if path is None else excerpt or path.name
    return {
        "modality": modality,
        "media_kind": infer_media_kind(modality, path),
        "name": path.name if path else "",
        "folder": _display_folder(path, roots) if path else "",
        "text": text,
    }


def infer_media_kind(modality: Modality, path: Path | None) -> MediaKind:
    """What a person would call it."""
    if path is not None and path.suffix.lower() in VIDEO_EXTENSIONS:
        return "video"
    media_kinds: dict[Modality, MediaKind] = {"image": "image", "audio": "audio", "text": "text"}
    return media_kinds[modality]


def _display_folder(path: Path, roots: Sequence[Path]) -> str:
    for root in roots:
        if path.is_relative_to(root):
            relative_folder = path.relative_to(root).parent
            return root.name if relative_folder == Path() else f"{root.name}/{relative_folder}"
    return path.parent.name


def _indexed_roots(origins: Iterable[str]) -> list[Path]:
    """The folders that were indexed, the deepest first: the origins themselves, or where a manifest lies."""
    paths = map(Path, origins)
    roots = {path if not path.suffix or path.is_dir() else path.parent for path in paths}
    return sorted(roots, key=lambda root: -len(root.parts))


class RootCache:
    """The folders that were indexed, looked up once for each version of the collection."""

    def __init__(self) -> None:
        self._cached: tuple[Version | None, list[Path]] = None, []

    def load_roots(self, collection: Collection) -> list[Path]:
        """All of them, the deepest first."""
        if collection.store is None:
            return []
        version = collection.store.version
        if self._cached[0] != version:
            origins = (
                collection.store.select_rows(["origins"])["origins"].combine_chunks().flatten().unique().to_pylist()
            )
            self._cached = version, _indexed_roots(origins)
        return self._cached[1]


def describe_collection(collection: Collection) -> CollectionInfo:
    """What the collection holds, by a look at a sample of it; limits, report and review are for the route to add."""
    counts: dict[Modality, int] = {}
    columns: dict[str, Counter[str]] = {}
    folders: Counter[str] = Counter()
    examples: list[str] = []
    for modality in MODALITIES:
        if modality not in collection.space.modalities or collection.store is None:
            continue
        counts[modality] = collection.store.count(f"modality = {quote_sql(modality)}")
        entries, _ = collection.sample(modality, SAMPLE_SIZE)
        for entry in entries:
            for name, values in entry.item.columns.items():
                columns.setdefault(name, Counter()).update(values)
            response = make_item_response(entry)
            if response.folder:
                folders[response.folder] += 1
            examples += [text for text in (*entry.item.captions[:1], response.text) if text and 12 < len(text) < 90]
    step = max(1, len(examples) // NUM_EXAMPLES)
    return CollectionInfo(
        name=Path(collection.uri).resolve().name if "://" not in collection.uri else collection.uri,
        items=sum(counts.values()),
        modalities={modality: count for modality, count in counts.items() if count},
        folders=[name for name, _ in folders.most_common(MAX_COLUMN_VALUES)],
        columns={name: sorted(values) for name, values in columns.items() if 1 < len(values) <= MAX_COLUMN_VALUES},
        examples=list(dict.fromkeys(examples[step // 2 :: step]))[:NUM_EXAMPLES],
        similarity=collection.space.recipe.space.similarity.name,
        embed_dim=collection.space.recipe.space.embed_dim,
        fingerprint=collection.fingerprint,
        limits={},
        report=False,
        review=False,
    )
